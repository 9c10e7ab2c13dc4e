"""Calls of the scripts: which keys and arguments each takes (the headers in ``lua/`` say the same; tested)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.config import Config, View
    from urifilter_redis.keys import ShardKeys
    from urifilter_redis.scripts import Script
    from urifilter_redis.steps import Arguments

__all__ = ["ITEMS_A_CALL", "NO_CALL_ID", "Call", "create", "drop", "items"]

#: Items in one call, so that none holds the server for long (500 take 1 to 8 ms).
ITEMS_A_CALL = 500

#: The call id of calls that are not recorded.
NO_CALL_ID = "-"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]

    def command(self) -> Arguments:
        """Return EVALSHA and its arguments."""
        return ("EVALSHA", self.script.sha1, len(self.keys), *self.keys, *self.args)


def items(  # noqa: PLR0913, PLR0917 - the header of the scripts has as many
    command: str,
    config: Config,
    keys: ShardKeys,
    view: View,
    call_id: str,
    digests: Sequence[bytes] | bytes,
) -> Call:
    """Build ``insert``, ``contains`` or ``forget``.

    Args:
        command: one of the three.
        config: of the filter.
        keys: of the shard that all items belong to.
        view: the shard's live slices.
        call_id: or ``NO_CALL_ID``; ``contains`` takes no other.
        digests: 16 bytes an item, packed in one (sent as they are) or as a sequence (sent as hex).
    """
    script = scripts.load(command, config.layout, config.k)
    replies = () if command == "contains" else (keys.replies,)
    slices = (keys.slice(each.name) for each in view.slices)
    encoded = ("bin", digests) if isinstance(digests, bytes) else ("hex", *(d.hex() for d in digests))
    return Call(script, (keys.meta, *replies, keys.forgotten, *slices), (config.uid, call_id, 0, *encoded))


def create(step: str, config: Config, keys: ShardKeys, fields: Sequence[str] = ()) -> Call:
    """Build ``create``: step ``make`` with the fields of ``meta``, or ``finish``."""
    all_keys = (keys.meta, keys.replies, keys.forgotten, keys.slice("today"))
    return Call(scripts.load("create"), all_keys, (step, config.uid, config.bytes, *fields))


def drop(step: str, uid: str, keys: ShardKeys, slices: Sequence[str]) -> Call:
    """Build ``drop``: step ``begin`` or ``delete``; ``slices`` are all names that may exist."""
    all_keys = (keys.meta, keys.replies, keys.forgotten, *(keys.slice(name) for name in slices))
    return Call(scripts.load("drop"), all_keys, (step, uid))
