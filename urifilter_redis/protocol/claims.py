"""Calls of the scripts about claims, and the entries that they answer."""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from urifilter_redis.bloom.encoding import unpack
from urifilter_redis.checks import is_whole
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.calls import Call, SegmentNames, encoded
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.protocol.outcomes import nonsense

#: Most items of one call of ``claim``, ``commit`` or ``release`` (250 take some ms).
CLAIMS_A_CALL = 250

#: The answer of ``claim`` for an item that somebody has in flight.
IN_FLIGHT = -1

#: Most bytes of what is kept in one call of ``claim``; ``reclaim`` answers as many.
BYTES_A_CALL = 256 * 1024

#: Most items that one call of ``reclaim`` answers (100 of 64 KiB would take 12.6 ms, but for the bytes).
RECLAIMED_A_CALL = 100

#: Seconds of the shortest and the longest lease.
LEAST_LEASE, MOST_LEASE = 5.0, 3600.0

#: Seconds of the longest delay of a release; the delay holder that has the items meanwhile does not beat.
MOST_DELAY = 7 * 86400.0

#: Seconds for which a program that cannot use an item leaves it to others.
PARKED = 600.0

#: Bytes of the longest reason for which an item is rejected.
MOST_REASON = 200

#: The beginning of an entry of ``leases``: holder, failures, lapses.
_ENTRY = struct.Struct("<8sHH")

#: The beginning of a dead letter: time, failures, lapses, and the length of the reason.
_DEAD_LETTER = struct.Struct("<dHHB")

#: Seconds of the default lease of a filter with few shards, and of one with many. Each shard in which a holder has
#: something wants a beat, of 10 us, every third of a lease.
LEASE, LEASE_OF_MANY = 60.0, 600.0


@dataclass(frozen=True, slots=True)
class Holding:
    """A holder, as the scripts take it.

    Attributes:
        holder: 16 hex digits that do not begin with 00; ``-``: no holder (``commit`` and ``release``).
        lease: the ms for which the holder lives without another call.
    """

    holder: str
    lease: int


#: No holder: ``release`` acts on the items of all holders, and nothing beats.
NO_HOLDER = Holding("-", 0)


#: The failures and lapses of an item.
Counts: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class InFlight:
    """An item that somebody has in flight.

    Attributes:
        item: the item: a str, bytes or any JSON value.
        payload: what its claimant gave as ``payload=``; by default the item itself.
        holder: who has it: 16 hex digits.
        failures: how many times it was released as failed.
        lapses: how many holders of it have died.
        lease: the seconds for which the holder lives without another sign of life; 0: it has lapsed.

    Example:
        >>> news.in_flight()
        []
    """

    item: Any
    payload: Any
    holder: str
    failures: int
    lapses: int
    lease: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was rejected.

    Attributes:
        item: the item: a str, bytes or any JSON value.
        payload: what its claimant gave as ``payload=``; by default the item itself.
        failures: how many times it was released as failed.
        lapses: how many holders of it had died.
        at: when it was rejected, seconds since 1970 by the server's clock.
        reason: the reason.

    Example:
        >>> news.dead_letters()
        []
    """

    item: Any
    payload: Any
    failures: int
    lapses: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of ``leases`` that ``reclaim`` has claimed.

    Attributes:
        digest: of the item, 16 bytes.
        failures: how many times it was released as failed.
        lapses: how many holders of it have died.
        kept: the item and its payload, as ``bloom.encoding`` packs them.
    """

    digest: bytes
    failures: int
    lapses: int
    kept: bytes


def default_lease(shards: int) -> float:
    """Return the seconds of a lease that the caller does not set."""
    return LEASE if shards <= 64 else min(float(shards), LEASE_OF_MANY)  # noqa: PLR2004 - design: 60 s up to 64


def check_lease(lease: float) -> float:
    """Return ``lease``, in seconds, if a holder may have it.

    Raises:
        ValueError: it is not 5 seconds to an hour.
    """
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not LEAST_LEASE <= lease <= MOST_LEASE:
        raise ValueError(f"a lease is {LEAST_LEASE:g} to {MOST_LEASE:g} seconds, and not {lease!r}")
    return float(lease)


def check_delay(delay: float, most: float = MOST_DELAY) -> float:
    """Return ``delay``, in seconds, if items may be released for so long.

    Raises:
        ValueError: it is not 0 to ``most`` seconds.
    """
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= most:
        text = f"a delay is 0 to {most:g} seconds, and not {delay!r}"
        raise ValueError(f"{text}: keep a longer one yourself, and release then")
    return float(delay)


def check_limit(limit: int) -> None:
    """Raise ValueError unless ``limit`` is a number of items."""
    if not is_whole(limit, 1):
        raise ValueError(f"limit is a number of items, {RECLAIMED_A_CALL} for example, and not {limit!r}")


def check_holder(holder: str) -> str:
    """Return ``holder`` in lower case if it may be one.

    Raises:
        ValueError: it is not 16 hex digits, or begins with 00.
    """
    if not isinstance(holder, str) or not re.fullmatch(r"(?!00)[0-9a-fA-F]{16}", holder):
        raise ValueError(f"a holder is 16 hex digits that do not begin with 00, and not {holder!r}")
    return holder.lower()


def new_holder() -> str:
    """Draw a holder: 16 hex digits, whose first byte is not 0."""
    return f"{1 + secrets.randbelow(255):02x}{secrets.token_hex(7)}"


def new_delay_holder() -> str:
    """Draw a delay holder, which has released items until they are due: 16 hex digits, whose first byte is 0."""
    return f"00{secrets.token_hex(7)}"


def claim(  # noqa: PLR0913, PLR0917 - the header of the script has as many
    config: Config,
    keys: ShardKeys,
    view: View,
    call_id: str,
    digests: Sequence[bytes] | bytes,
    kept: Sequence[bytes],
    holding: Holding,
) -> Call:
    """Build ``claim``; ``kept`` is what the filter keeps of each item. See ``calls.items``."""
    arguments = (config.uid, call_id, "0", *encoded(digests, holding.holder, str(holding.lease)), *kept)
    return Call(scripts.load("claim", config.layout, config.k), _all_keys(config, keys, view, digests), arguments)


def commit(  # noqa: PLR0913, PLR0917 - likewise
    config: Config,
    keys: ShardKeys,
    view: View,
    call_id: str,
    digests: Sequence[bytes] | bytes,
    holding: Holding,
    reason: bytes | None = None,
) -> Call:
    """Build ``commit``; with a ``reason``, of at most ``MOST_REASON`` bytes, it gives the items up. See ``claim``."""
    text = "-" if reason is None else b"+" + reason
    arguments = (config.uid, call_id, "0", *encoded(digests, holding.holder, str(holding.lease), text))
    return Call(scripts.load("commit", config.layout, config.k), _all_keys(config, keys, view, digests), arguments)


def release(  # noqa: PLR0913 - likewise
    uid: str,
    keys: ShardKeys,
    call_id: str,
    digests: Sequence[bytes] | bytes,
    holding: Holding,
    *,
    delay_holder: str,
    delay: int = 0,
    failed: bool = False,
    again: bool = False,
) -> Call:
    """Build ``release``; ``delay`` is in ms, and ``delay_holder`` is drawn for this call. See ``claim``.

    ``again``: offer dead letters once more.
    """
    given = (holding.holder, str(holding.lease), delay_holder, str(delay), "again" if again else str(int(failed)))
    arguments = (uid, call_id, "0", *encoded(digests, *given))
    all_keys = (keys.meta, keys.replies, keys.forgotten, *keys.of_claims, *keys.of_dead_letters)
    return Call(scripts.load("release"), all_keys, arguments)


def reclaim(uid: str, keys: ShardKeys, call_id: str, holding: Holding, limit: int) -> Call:
    """Build ``reclaim`` for at most ``limit`` items, 1 to ``RECLAIMED_A_CALL``."""
    arguments = (uid, call_id, holding.holder, str(holding.lease), str(limit))
    return Call(scripts.load("reclaim"), (keys.meta, keys.replies, *keys.of_claims), arguments)


def beat(uid: str, keys: ShardKeys, holding: Holding) -> Call:
    """Build ``beat``."""
    return Call(
        scripts.load("beat"), (keys.meta, keys.in_flight, keys.holders), (uid, holding.holder, str(holding.lease))
    )


def in_flight_range(holder: bytes) -> tuple[bytes, bytes]:
    """Return the range of a holder's members of ``in_flight``, for ZRANGEBYLEX and ZLEXCOUNT."""
    return b"[" + holder, b"(" + holder + b"\xff" * 17  # a digest has 16 bytes


def answers_of(reply: Any, count: int) -> tuple[list[int], dict[int, Counts]]:
    """Return the answers in a reply of ``claim`` for ``count`` items, and the counts of those that have any, by index.

    Raises:
        ServerUnavailable: the reply is none of ``claim``.
    """
    if not isinstance(reply, list) or len(reply) < count or (len(reply) - count) % 3:
        raise nonsense(reply)
    threes = zip(*[iter(reply[count:])] * 3, strict=True)
    return reply[:count], {position - 1: (failures, lapses) for position, failures, lapses in threes}


def dead_letter_of(text: bytes) -> DeadLetter:
    """Return the dead letter of an entry of ``dead_letters`` (see ``lua/_dead_letters.lua``).

    Raises:
        ValueError: the scripts cannot have written it.
    """
    try:
        at, failures, lapses, length = _DEAD_LETTER.unpack_from(text)
    except struct.error as error:
        raise ValueError(f"not a dead letter: {text[:20]!r}") from error
    reason, kept = text[_DEAD_LETTER.size : _DEAD_LETTER.size + length], text[_DEAD_LETTER.size + length :]
    return DeadLetter(*unpack(kept), failures, lapses, at / 1000, reason.decode(errors="replace"))


def in_flight_of(entry: bytes, text: bytes | None, lease: float) -> InFlight:
    """Return what an entry of ``leases`` tells, with the text of its own field, if it has one.

    Raises:
        ValueError: the scripts cannot have written it.
    """
    try:
        holder, failures, lapses = _ENTRY.unpack_from(entry)
    except struct.error as error:
        raise ValueError(f"not an entry: {entry[:20]!r}") from error
    return InFlight(*unpack(entry[_ENTRY.size :] or text or b""), holder.hex(), failures, lapses, lease)


def entries_of(reply: Any) -> list[Entry]:
    """Return the entries in a reply of ``reclaim``.

    Raises:
        ServerUnavailable: the reply is none of ``reclaim``.
    """
    if not isinstance(reply, list) or len(reply) % 4:
        raise nonsense(reply)
    return [Entry(bytes(a), int(b), int(c), bytes(d)) for a, b, c, d in zip(*[iter(reply)] * 4, strict=True)]


def _all_keys(config: Config, keys: ShardKeys, view: View, digests: Sequence[bytes] | bytes) -> tuple[str, ...]:
    slices = SegmentNames(config, keys, view).of(digests)
    return (keys.meta, keys.replies, keys.forgotten, *keys.of_claims, *keys.of_dead_letters, *slices)
