"""One call of the SDK about claims: its items with their payloads, and the hand that notes the answers."""

from __future__ import annotations

import base64
import contextlib
import operator
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.encoding import encode_item
from urifilter_redis.engine.hand import Claim
from urifilter_redis.http_api import COMMANDS
from urifilter_redis.sdk.asked import Asked
from urifilter_redis.sdk.parts import cuts, in_json, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.hand import Hand
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.sdk.asked import Part

__all__ = ["AskedClaims"]


class AskedClaims(Asked):
    """One call about claims.

    Attributes:
        hand: the hand that notes the answers; None: none does.
        payloads: claim: the payload of each item; None: each item is its own.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is what a call is
        self,
        filter_typeid: str,
        method: Method[Any],
        path: str,
        more: dict[str, Any],
        objects: Sequence[Any],
        key: Key = None,
        payloads: Sequence[Any] | None = None,
        hand: Hand | None = None,
    ) -> None:
        """Check and cut the items.

        Raises:
            FilterAPIError: JSON cannot carry some items or payloads (``bad_item``).
        """
        self.payloads, self._ends = payloads, method.command != "claim"
        what = (filter_typeid, method.command, None)
        super().__init__(what, COMMANDS[method.command], path, more, objects, self._cuts, key)
        self.hand, self.term = hand, method.term

    def is_like(self, other: Asked) -> bool:
        """Whether both calls are for the same items, of one process, and of one object of claims."""
        return super().is_like(other) and self.hand is other.hand

    def body(self, part: Part) -> dict[str, Any]:
        """Return the body of the request for a part; items that JSON cannot carry go as base64 of their bytes."""
        content = super().body(part)
        if self.payloads is not None:
            content["payloads"] = list(self.payloads[part.start : part.start + len(part.items)])
        places = [number for number, item in enumerate(part.items) if not in_json(item)] if self._ends else []
        if places:
            listed = list(part.items)
            for place in places:
                listed[place] = base64.b64encode(encode_item(listed[place])).decode()
            content |= {"URI_list": listed, "base64": places}
        return content

    @contextlib.contextmanager
    def under_way(self, part: Part) -> Iterator[None]:
        """Note in the hand that a part is under way, and then its answers."""
        if self.hand is None:
            yield
            return
        self.hand.begin(0, part)
        try:
            yield
        finally:
            if part.reply is not None:
                self._note(self.hand, part)
            self.hand.end(0, part, answered=part.reply is not None, in_doubt=part.in_doubt)

    def _note(self, hand: Hand, part: Part) -> None:
        answers = self.answers_of(part)
        for number, (item, answer) in enumerate(zip(part.items, answers, strict=True)):
            if self._ends:
                hand.drop(0, encode_item(item))
            elif answer == 0:
                payload = item if self.payloads is None else self.payloads[part.start + number]
                hand.take(0, encode_item(item), Claim(item, payload))
        if self.what[1] == "release" and any(answers):
            hand.note_released(0, self.more["delay"])

    def _cuts(self, items: Sequence[object]) -> list[int]:
        weights = sizes(items, in_base64=self._ends)
        if self.payloads is not None:
            weights = list(map(operator.add, weights, sizes(self.payloads)))
        return cuts(weights)
