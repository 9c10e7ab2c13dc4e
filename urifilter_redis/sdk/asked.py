"""The items of one call of the SDK, and how far it has come."""

from __future__ import annotations

import collections
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.flows.items import selected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.http_api import Command
    from urifilter_redis.protocol.call_ids import CallId

__all__ = ["Asked", "Part", "What"]


@dataclass(slots=True)
class Part:
    """Some items of a call, which go out in one request.

    Attributes:
        start: position of the first in the call.
        items: they.
        call_id: its key and slot, kept until it is answered; None for what inserts nothing.
        in_doubt: it may have run.
        reply: the answer.
    """

    start: int
    items: Sequence[object]
    call_id: CallId | None = None
    in_doubt: bool = False
    reply: dict[str, Any] | None = None

    def is_answered_by(self, reply: dict[str, Any], field: str) -> bool:
        """Whether a reply is about as many items as this has."""
        found = reply.get(field, reply.get("URI_list_unique"))
        enough = len(self.items) if field in reply else reply.get("unique")
        return isinstance(found, list) and len(found) == enough and reply.get("total") == len(self.items)


#: What a call is, beside its items; see ``Asked``.
What: TypeAlias = tuple[str, str, int | None]


class Asked:
    """A call of the SDK, and how far it has come.

    Attributes:
        what: the filter, the method, and max_age.
        command: that the items are for.
        path: of the endpoint; more: of the request's body, beside the items.
        items: as the caller gave them.
        parts: of them.
        process: that made it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is what a call is
        self,
        what: What,
        command: Command,
        path: str,
        more: dict[str, Any],
        items: Sequence[object],
        cuts: Sequence[int],
    ) -> None:
        self.what = what
        self.command = command
        self.path, self.more = path, more
        self.items = list(items)
        self.parts = [Part(begin, self.items[begin:end]) for begin, end in itertools.pairwise(cuts)]
        self.process = os.getpid()

    def is_of(self, what: What, items: Sequence[object]) -> bool:
        """Whether it is the same call, in the same process: a forked child's answers are not its parent's."""
        same = self.what == what and self.process == os.getpid()
        return same and encode_items(self.items) == encode_items(items)

    @property
    def writes(self) -> bool:
        """Whether it changes anything, so that its answers must not be lost."""
        return self.command.writes

    @property
    def answers(self) -> list[int | None]:
        """The ages, or 1 and 0 for was there and was not, that arrived; None for each item without one."""
        found: list[int | None] = []
        for part in self.parts:
            found += [None] * len(part.items) if part.reply is None else _ages(part, self.command.field)
        return found

    @property
    def whole(self) -> list[int]:
        """The same of a call that got them all."""
        return [answer for answer in self.answers if answer is not None]

    @property
    def new(self) -> list[Any]:
        """The items that are new."""
        return selected(self.items, self.answers)

    @property
    def told(self) -> dict[str, Any]:
        """What the endpoint that answers which are new would say of the whole call."""
        replies = [part.reply for part in self.parts if part.reply is not None]
        new = [item for reply in replies for item in reply["URI_list_unique"]]
        return {"filter_typeid": self.what[0], "URI_list_unique": new, "total": len(self.items), "unique": len(new)}

    @property
    def truths(self) -> list[bool]:
        """The same as whether each was there."""
        return [answer == 1 for answer in self.whole]


def _ages(part: Part, field: str) -> list[int]:
    """Return an answer for each item of a part that was answered."""
    assert part.reply is not None  # noqa: S101 - see above
    if field in part.reply:
        return list(map(int, part.reply[field]))
    new = collections.deque(encode_items(part.reply["URI_list_unique"]))
    ages = []
    for item in encode_items(part.items):
        is_new = bool(new) and new[0] == item
        ages.append(0 if is_new else 1)
        if is_new:
            new.popleft()
    return ages
