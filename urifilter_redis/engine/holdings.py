"""Holdings: what one holder has claimed and not yet committed or released, as its client knows it; and claim options.

There is no I/O here and no lock, because Ctrl-C or a fork could leave it locked. Sets and dicts change in single steps.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeAlias

from urifilter_redis.bloom.digest import split
from urifilter_redis.bloom.encoding import bad_items, pack
from urifilter_redis.engine.pending import Owner, current_owner
from urifilter_redis.engine.session import Session
from urifilter_redis.errors import BadItem
from urifilter_redis.protocol import claims
from urifilter_redis.protocol.call_ids import CALL_LIFE
from urifilter_redis.protocol.calls import Call
from urifilter_redis.protocol.claims import IN_FLIGHT, Counts, Holding

#: The commands of claims that are about items.
CLAIM_COMMANDS = ("claim", "commit", "release")

#: A holder beats at this share of its lease, where it has made no other call.
BEATS = 1 / 3

#: Seconds of the longest pause between two rounds of reclaims, while others have nothing in flight.
LONGEST_PAUSE = 600.0

#: Seconds after the next lapse is due at which the next round may find it: the clocks are read at different moments.
AFTER_DUE = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """An item that was claimed.

    Attributes:
        item: the item: a str, bytes or any JSON value.
        payload: what its first claimant gave as ``payload=``; by default the item itself.
        failures: how many times it was released as failed since it was last final.
        lapses: how many holders of it have died since then.

    Example:
        >>> mine.claim("https://example.com/a")
        True
        >>> mine.release(["https://example.com/a"], failed=True)
        [True]
        >>> mine.reclaim(1)
        [Claim(item='https://example.com/a', payload='https://example.com/a', failures=1, lapses=0)]
    """

    item: Any
    payload: Any
    failures: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The items that others have in flight; true if there are any.

    Attributes:
        others: their number, those that were released and are not due yet included.
        due: in how many seconds the next of them may be reclaimed, if its holder gives no sign of life; None if there
            are none. Until then ``reclaim`` finds nothing.

    Example:
        >>> mine.claim("https://example.com/a")
        True
        >>> mine.outstanding()
        Outstanding(others=0, due=None)
    """

    others: int
    due: float | None

    def __bool__(self) -> bool:
        return self.others > 0


#: Items that a reclaim has claimed: shard, digest and claim of each.
Found: TypeAlias = list[tuple[int, bytes, Claim]]


class Holdings:
    """The items of one holder, by shard and digest, and the calls of it that are under way.

    A forked child has another holder and holds nothing.

    Args:
        lease: seconds for which the holder lives without a call or beat.
        holder: 16 hex digits; None: draw one.
        pauses: whether rounds that found nothing are followed by pauses; not where each call has holdings of its own.

    Attributes:
        holding: the holder and its lease, as the scripts take them.
        held: the claims of each shard by digest.
        orphans: by shard, the digests of items that the holder may have on the server, and of which no caller was told;
            each with the time by ``monotonic`` from which it can be given back.
        suspects: the shards that may have other such items, whose digests are not known here.
        partial: whether the figures of some shards may be older than the last change to others' items.
        pauses: see above.
        look: the last look for lapsed items that began; see ``looks``.
    """

    def __init__(self, lease: float, holder: str | None = None, *, pauses: bool = True) -> None:
        self.lease, self._given, self.pauses = lease, holder, pauses
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.holding = Holding(self._given or claims.new_holder(), round(self.lease * 1000))
        self.held: defaultdict[int, dict[bytes, Claim]] = defaultdict(dict)
        self.orphans: defaultdict[int, dict[bytes, float]] = defaultdict(dict)
        self.suspects: set[int] = set()
        self._under_way: defaultdict[int, dict[object, tuple[Owner, float]]] = defaultdict(dict)
        self._doubtful: dict[int, float] = {}
        self._changed: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._beaten: dict[int, float] = {}
        self._figures: dict[int, _Figures] = {}
        self.partial = False
        self.look: Look | None = None
        self._pause = self._next_round = 0.0
        self._noted = self._heard = -math.inf
        self._ends: tuple[float, float] = 0.0, 0.0
        self._offered = math.inf

    def check_process(self) -> None:
        """In a forked child become another holder, because the old one is the parent's."""
        if self._process != os.getpid():
            self._given = None
            self._begin()

    def take(self, shard: int, digest: bytes, claim: Claim) -> None:
        """Note an item that is in flight now."""
        self.held[shard][digest] = claim
        self.orphans[shard].pop(digest, None)

    def drop(self, shard: int, digest: bytes) -> None:
        """Note an item that is in flight no longer."""
        self.held[shard].pop(digest, None)
        self.orphans[shard].pop(digest, None)

    def drop_claim(self, shard: int, digest: bytes, claim: Claim | None) -> None:
        """Note that a claim is over; one of the same item that was made since goes on. None: it was not held."""
        if self.claim_of((shard, digest)) is claim:
            self.drop(shard, digest)

    def leave(self, shard: int, digest: bytes) -> None:
        """Make an orphan of an item in flight; the next beat gives it back."""
        self.orphans[shard][digest] = 0.0
        self.held[shard].pop(digest, None)

    def leave_all(self, found: Found) -> None:
        """Note that a reclaim was interrupted: what it had found becomes orphans."""
        self.abandon()
        for shard, digest, _ in found:
            self.leave(shard, digest)

    def doubt(self, shard: int, digests: Iterable[bytes], *, in_doubt: bool) -> None:
        """Make orphans of items that a call may have taken; the next beat gives them back.

        A call in doubt may still run: then a beat after its deadline gives them back.
        """
        at = monotonic() + CALL_LIFE / 1000 if in_doubt else 0.0
        for digest in digests:
            if not self.has(shard, digest):  # the call has not claimed what was there before
                self.orphans[shard][digest] = at

    def orphaned(self, now: float | None = None) -> list[bytes]:
        """Return the orphans that can be given back now; ``math.inf``: all of them."""
        by = monotonic() if now is None else now
        return [digest for each in list(self.orphans.values()) for digest, at in list(each.items()) if at <= by]

    def has(self, shard: int, digest: bytes) -> bool:
        """Whether an item is in flight."""
        return digest in self.held.get(shard, ())

    def claim_of(self, name: tuple[int, bytes]) -> Claim | None:
        """Return the claim of the item of a shard and digest; None if it is not in flight."""
        shard, digest = name
        return self.held.get(shard, {}).get(digest)

    @property
    def claims(self) -> list[Claim]:
        """All claims that are in flight."""
        return [claim for claims in list(self.held.values()) for claim in list(claims.values())]

    @property
    def has_any(self) -> bool:
        """Whether something is in flight, or may be."""
        return any([*self.held.values(), *self.orphans.values(), self.suspects])

    def has_unknown(self, shard: int) -> bool:
        """Whether the server may count items of a shard that are not held."""
        return shard in self.suspects or bool(self.orphans.get(shard))

    def known(self, shard: int, count: int) -> int:
        """Return how many of the holder's ``count`` items on the server are no orphans."""
        return min(count, len(self.held.get(shard, ()))) if self.has_unknown(shard) else count

    @property
    def digests(self) -> list[bytes]:
        """The digests of all items that are in flight."""
        return [digest for claims in list(self.held.values()) for digest in list(claims)]

    def begin(self, shard: int, call: object) -> None:
        """Note a call to a shard before it is sent."""
        self._under_way[shard][call] = current_owner(), monotonic()
        self._changed[shard] = next(self._numbers)

    def end(self, shard: int, call: object, *, answered: bool, in_doubt: bool) -> None:
        """Note the end of a call to a shard. One that is in doubt may still run until its deadline."""
        _, begun = self._under_way[shard].get(call, (None, 0.0))
        if answered:
            self.has_beaten(shard, begun)
        if in_doubt:
            self._doubtful[shard] = monotonic() + CALL_LIFE / 1000
        self._changed[shard] = next(self._numbers)
        self._under_way[shard].pop(call, None)

    def abandon(self) -> None:
        """Note that this thread or task was interrupted in its calls, which may still run."""
        own = current_owner()
        for shard, calls in list(self._under_way.items()):
            for call, (owner, _) in list(calls.items()):
                if owner is own:
                    self.suspects.add(shard)
                    self.end(shard, call, answered=False, in_doubt=True)

    def mark(self, shard: int) -> int | None:
        """Return a mark for ``undisturbed``; None if a call to the shard is under way, or may be."""
        if self._under_way.get(shard) or monotonic() < self._doubtful.get(shard, 0.0):
            return None
        return self._changed.get(shard, 0)

    def undisturbed(self, shard: int, mark: int | None) -> bool:
        """Whether no call to a shard was under way since ``mark``."""
        return mark is not None and mark == self.mark(shard)

    @property
    def beat_interval(self) -> float:
        """Seconds between two beats."""
        return self.lease * BEATS

    def shards_to_beat(self) -> list[int]:
        """Return the shards in which something is in flight, and no call was made within a third of the lease.

        The suspects are among them, because all calls there, beats too, would keep unknown items in flight.
        """
        since = monotonic() - self.beat_interval * 0.99  # a beat that is hardly early must not wait for the next
        silent = {
            shard for shard, claims in list(self.held.items()) if claims and self._beaten.get(shard, 0.0) <= since
        }
        return sorted(silent | set(self.suspects))

    def silent(self, shards: Iterable[int]) -> list[int]:
        """Return those shards in which the holder may have something, and made no call for a third of the lease.

        A holder that was given may have something anywhere, from before.
        """
        since = monotonic() - self.beat_interval * 0.99
        some = [*list(self.held.items()), *list(self.orphans.items())]
        known = self.suspects.union(shard for shard, each in some if each)
        may_have = (shard for shard in shards if self._given is not None or shard in known)
        return [shard for shard in may_have if self._beaten.get(shard, -math.inf) <= since]

    def has_beaten(self, shard: int, at: float) -> None:
        """Note that a beat or a call that was sent at a time by ``monotonic`` was answered."""
        self._beaten[shard] = max(at, self._beaten.get(shard, 0.0))

    @property
    def may_reclaim(self) -> bool:
        """Whether the pause after the last round that found nothing is over."""
        return monotonic() >= self._next_round

    @property
    def figures_are_old(self) -> bool:
        """Whether the figures of some shard are older than a third of the lease, or missing."""
        since = monotonic() - self.beat_interval
        return self.partial or min((each.at for each in list(self._figures.values())), default=-math.inf) < since

    def with_old_figures(self, shards: Iterable[int]) -> list[int]:
        """Return those shards whose figures are older than a third of the lease, or missing."""
        return self.read_before(shards, monotonic() - self.beat_interval)

    def read_before(self, shards: Iterable[int], at: float) -> list[int]:
        """Return those shards whose figures were asked for before a time by ``monotonic``, or are missing."""
        return [shard for shard in shards if shard not in self._figures or self._figures[shard].at < at]

    def note_figures(self, shard: int, others: int, dies: float | None, at: float) -> None:
        """Note how many items others have in a shard, and when the first of them dies; None: nobody has any.

        ``at`` is when the server was asked; both times are by ``monotonic``.
        """
        self._figures[shard] = _Figures(others, dies, at)
        if others:
            self._shorten()

    def note_others(self) -> None:
        """Note that others have something in flight, as an answer of -1 or ``info`` tells."""
        self._heard = monotonic()
        self._shorten()

    def note_total(self, count: int) -> None:
        """Note how many items anybody has in flight, as ``info`` tells."""
        if count > sum(map(len, list(self.held.values()))):
            self.note_others()

    def note_reclaimed(self, shard: int, count: int) -> None:
        """Note that this holder has items now that others had."""
        figures = self._figures.get(shard)
        if figures is not None:
            self._figures[shard] = replace(figures, others=max(0, figures.others - count))

    def note_released(self, shard: int, delay: float) -> None:
        """Note that released items can be reclaimed after ``delay`` seconds: no pause may be longer."""
        self._figures.pop(shard, None)
        self.partial, self._pause, self._heard = True, 0.0, monotonic()
        self._offered = min(self._offered, monotonic() + delay + AFTER_DUE)
        self._next_round = min(self._next_round, self._offered)

    def begin_round(self) -> float:
        """Return the time of a round's beginning, for ``note_round``."""
        self._offered = math.inf  # what was released before is seen by the round itself
        return monotonic()

    def note_round(self, found: int, begun: float) -> None:
        """Note the end of a round; after one that found nothing the next comes after a pause.

        The pause is a third of the lease. While others have nothing in flight it doubles with each round that began
        after the end of the last one. What is heard of others, or released by this holder, meanwhile or later ends it
        early.
        """
        if found or not self.pauses:
            self._pause = self._next_round = 0.0
            return
        now, third = monotonic(), min(self.beat_interval, LONGEST_PAUSE)
        again = 2 * self._pause if begun >= self._noted else self._pause
        self._pause, self._noted = min(max(third, again), LONGEST_PAUSE), now
        self._ends = now + third / 2, now + random.uniform(third / 2, third)  # noqa: S311 - no secret
        self._next_round = min(now + self._pause, self._offered)
        if self._heard >= begun or self._first_lapse() is not None:
            self._shorten()

    def _shorten(self) -> None:
        """End the pause early, because others have something, which they may release at any moment.

        It ends at a time by chance, so that idle holders do not look all at once; and it ends, but not before a sixth
        of the lease, when the next lapse is due.
        """
        first, last = self._ends
        due = self._first_lapse()
        self._pause = 0.0
        self._next_round = min(self._next_round, last if due is None else max(first, min(last, due + AFTER_DUE)))

    def outstanding(self, within: float | None = None) -> Outstanding:
        """Return the sum of the last figures; nothing, if nothing is due ``within`` so many seconds.

        Figures say that there is nothing only if they were asked for after it was last heard that others have
        something; until then one item counts.
        """
        others, wait = self._sum(within)
        if not others and self._heard < min((each.at for each in list(self._figures.values())), default=math.inf):
            return Outstanding(0, None)
        return Outstanding(others or 1, max(wait, self._next_round - monotonic()))

    def must_read(self, within: float | None = None) -> bool:
        """Whether ``outstanding`` wants new figures: they are old, or say that there is nothing, which ends crawls."""
        return self.figures_are_old or not self._sum(within)[0]

    def _sum(self, within: float | None) -> tuple[int, float]:
        """Return how many items others have, and in how many seconds the first of their holders dies."""
        now = monotonic()
        wait = max(0.0, (self._first_lapse() or now) - now)
        if within is not None and wait > within:
            return 0, 0.0
        return sum(each.others for each in list(self._figures.values())), wait

    def _first_lapse(self) -> float | None:
        """Return when the first of the other holders dies, by ``monotonic``; None if there is none."""
        times = [each.dies for each in list(self._figures.values()) if each.others and each.dies is not None]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The items of other holders in a shard.

    Attributes:
        others: their number.
        dies: when the first of these holders dies, by ``monotonic``; None: there is none.
        at: when the server was asked, by ``monotonic``.
    """

    others: int
    dies: float | None
    at: float


@dataclass(slots=True, eq=False)
class Look:
    """A look for lapsed items by a call, for the calls that come meanwhile.

    Attributes:
        ended: whether it has ended.
        saw_all: whether it has claimed whatever was there.
    """

    ended: bool = False
    saw_all: bool = False


@dataclass
class ClaimOptions(ABC):
    """What a batch about claims has beside its items; each command has a class of its own.

    Attributes:
        holding: the holder and its lease.
        holdings: notes the answers; None: nothing does.
        ended: by digest the claim that is held as a call is first sent, which is the one that it ends.
    """

    holding: Holding
    holdings: Holdings | None = None
    ended: dict[bytes, Claim | None] = field(default_factory=dict, init=False)

    @property
    @abstractmethod
    def method(self) -> str:
        """The plainest method that asks this."""

    def keep(self, positions: Iterable[int]) -> Mapping[int, int]:  # noqa: ARG002 - of ``claim``
        """Make what the filter keeps of the items at some positions, which are asked about; return the bytes of each.

        Raises:
            BadItem: an item or payload is bad, or has more than 64 KiB; the error has the indices of all of them.
        """
        return {}

    @abstractmethod
    def call(self, session: Session, shard: int, call_id: str, packed: bytes, positions: Sequence[int]) -> Call:
        """Build the call of a script for the items of a batch at some positions, all of one shard."""

    def learn(self, positions: Sequence[int], reply: Any) -> Sequence[int]:  # noqa: ARG002 - likewise
        """Return the answers in the reply to a call for the items of a batch at some positions; note the counts in it.

        Raises:
            ServerUnavailable: the reply is none of the command.
        """
        return reply  # type: ignore[no-any-return]

    def note(self, shard: int, packed: bytes, positions: Sequence[int], answers: Sequence[int | None]) -> None:
        """Let the holdings note the answers of a call for the items of a batch at some positions; None: no answer."""
        if self.holdings is not None:
            for digest, _, answer in zip(split(packed), positions, answers, strict=True):
                if answer is not None:
                    self.holdings.drop_claim(shard, digest, self.ended.get(digest))

    def begin(self, shard: int, call: object, packed: bytes) -> None:
        """Let the holdings note a call before it is sent."""
        if self.holdings is not None:
            held = self.holdings.held.get(shard, {})
            for digest in () if self.method == "claim" else split(packed):
                self.ended.setdefault(digest, held.get(digest))
            self.holdings.begin(shard, call)

    def end(self, shard: int, call: object, packed: bytes, *, answered: bool, in_doubt: bool) -> None:  # noqa: ARG002 - likewise
        """Let the holdings note the end of a call; see ``Holdings.end``."""
        if self.holdings is not None:
            self.holdings.end(shard, call, answered=answered, in_doubt=in_doubt)


@dataclass
class Claiming(ClaimOptions):
    """The options of ``claim``.

    Attributes:
        claim_of: makes the claim of the item at a position of the batch, without counts; None: ``kept`` is all.
        claimed: by position the claims of those items that are asked about.
        kept: by position what the filter keeps of them.
        counts: by position in the batch the failures and lapses of items that were claimed and have any.
    """

    claim_of: Callable[[int], Claim] | None = None
    claimed: dict[int, Claim] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """``claim``."""
        return "claim"

    def keep(self, positions: Iterable[int]) -> Mapping[int, int]:
        """Make the claims of the items, too."""
        bad = []
        if self.claim_of is not None:
            for position in sorted(positions):
                claim = self.claimed[position] = self.claim_of(position)
                try:
                    self.kept[position] = pack(claim.item, claim.payload)
                except BadItem as error:
                    bad.append((position, str(error)))
        if bad:
            raise bad_items(bad, 1)
        return {position: len(kept) for position, kept in self.kept.items()}

    def call(self, session: Session, shard: int, call_id: str, packed: bytes, positions: Sequence[int]) -> Call:
        """Build ``claim``."""
        kept = [self.kept[position] for position in positions]
        keys, view = session.keys.shard(shard), session.view(shard)
        return claims.claim(session.config, keys, view, call_id, packed, kept, self.holding)

    def learn(self, positions: Sequence[int], reply: Any) -> Sequence[int]:
        """Note the counts, too."""
        answers, counts = claims.answers_of(reply, len(positions))
        self.counts |= {positions[index]: each for index, each in counts.items()}
        return answers

    def note(self, shard: int, packed: bytes, positions: Sequence[int], answers: Sequence[int | None]) -> None:
        """Note what is in flight now, and whether others have something."""
        if self.holdings is None:
            return
        told = False
        for digest, position, answer in zip(split(packed), positions, answers, strict=True):
            if answer == IN_FLIGHT:
                told = told or not self.holdings.has(shard, digest)
            elif answer == 0:
                failures, lapses = self.counts.get(position, (0, 0))
                claim = replace(self.claimed[position], failures=failures, lapses=lapses)
                self.holdings.take(shard, digest, claim)
        if told:
            self.holdings.note_others()

    def end(self, shard: int, call: object, packed: bytes, *, answered: bool, in_doubt: bool) -> None:
        """Note the items of a call that has no answer and may still run, too."""
        if self.holdings is not None and in_doubt:
            self.holdings.doubt(shard, split(packed), in_doubt=True)
        super().end(shard, call, packed, answered=answered, in_doubt=in_doubt)


@dataclass
class Committing(ClaimOptions):
    """The options of ``commit``.

    Attributes:
        reason: why the items are rejected; None: they are not.
    """

    reason: bytes | None = None

    @property
    def method(self) -> str:
        """``commit`` or ``reject``."""
        return "commit" if self.reason is None else "reject"

    def call(self, session: Session, shard: int, call_id: str, packed: bytes, _: Sequence[int]) -> Call:
        """Build ``commit``."""
        keys, view = session.keys.shard(shard), session.view(shard)
        return claims.commit(session.config, keys, view, call_id, packed, self.holding, self.reason)


@dataclass
class Releasing(ClaimOptions):
    """The options of ``release``.

    Attributes:
        delay: ms before the items are offered again.
        failed: whether a failure of each item is counted.
        again: whether to offer dead letters once more.
        delay_holder: the holder that has the items until then.
    """

    delay: int = 0
    failed: bool = False
    again: bool = False
    delay_holder: str = field(default_factory=claims.new_delay_holder)

    @property
    def method(self) -> str:
        """``release`` or ``retry_dead_letters``."""
        return "retry_dead_letters" if self.again else "release"

    def call(self, session: Session, shard: int, call_id: str, packed: bytes, _: Sequence[int]) -> Call:
        """Build ``release``."""
        return claims.release(
            session.config.uid,
            session.keys.shard(shard),
            call_id,
            packed,
            self.holding,
            delay_holder=self.delay_holder,
            delay=self.delay,
            failed=self.failed,
            again=self.again,
        )

    def note(self, shard: int, packed: bytes, positions: Sequence[int], answers: Sequence[int | None]) -> None:
        """Note when the items can be reclaimed, too."""
        super().note(shard, packed, positions, answers)
        if self.holdings is not None and 1 in answers:
            self.holdings.note_released(shard, self.delay / 1000)
