"""Claims in plain Python, without a server: the model of a shard whose items may be in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.model import ModelShard, Refused
from urifilter_redis.protocol.claims import BYTES_A_CALL

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A count that has come so far stays.
_MOST = 65535


@dataclass
class ModelEntry:
    """An item that somebody has, or had, in flight.

    Attributes:
        holder: 8 bytes; the first is 0 for a delay holder, who has what was released.
        failures: how many times it was released as failed.
        lapses: how many holders of it have died.
        kept: what is kept of it for another holder.
    """

    holder: bytes
    failures: int
    lapses: int
    kept: bytes

    def taken_by(self, holder: bytes, kept: bytes | None = None) -> ModelEntry:
        """Return the entry of the next holder. Where a delay holder had it, nothing has died."""
        lapses = min(self.lapses + (self.holder[0] != 0), _MOST)
        return ModelEntry(holder, self.failures, lapses, self.kept if kept is None else kept)


@dataclass
class ClaimingShard(ModelShard):
    """One shard of a filter with claims. All times are in ms.

    Attributes:
        leases: what is in flight or has lapsed, by digest.
        holders: until when each holder lives. Those that have nothing in flight may be missing.
        dead_letters: failures, lapses, reason and what is kept of each item that was rejected.
        total: how many items were rejected.
    """

    leases: dict[bytes, ModelEntry] = field(default_factory=dict)
    holders: dict[bytes, int] = field(default_factory=dict)
    dead_letters: dict[bytes, tuple[int, int, bytes, bytes]] = field(default_factory=dict)
    total: int = 0

    def claim(self, holder: bytes, lease: int, digests: Sequence[bytes], kept: Sequence[bytes]) -> list[int]:
        """Return 0 for each item that the holder has in flight from now on; n: seen; -1: in flight, perhaps its own.

        Then position, failures and lapses of each of the former that has any.
        """
        self._room({d for d in digests if not self._is_own(d, holder)})
        answers = [self._claim(holder, *each) for each in zip(digests, kept, strict=True)]
        for digest, answer in zip(digests, answers, strict=True):
            if answer > 0 and self.expire_after == "last-seen":
                super()._insert(digest, 0)
        self._beat(holder, lease)
        return answers + self.counts(digests, answers)

    def counts(self, digests: Sequence[bytes], answers: Sequence[int]) -> list[int]:
        """Return position, failures and lapses of each item that was answered 0 and has any."""
        told = []
        for position, (digest, answer) in enumerate(zip(digests, answers, strict=True), 1):
            entry = self.leases.get(digest) if answer == 0 else None
            if entry and (entry.failures or entry.lapses):
                told += [position, entry.failures, entry.lapses]
        return told

    def commit(
        self, holder: bytes | None, lease: int, digests: Sequence[bytes], reason: bytes | None = None
    ) -> list[int]:
        """Make items final, whoever has them; return 0 for each that was not final.

        With a reason give up those that the holder has; return -1 for the others.
        """
        if self.limit is not None:
            final = [d for d in set(digests) if d in self.leases or self.contains([d]) == [0]]
            if len(final) > self.limit - self.inserted:
                raise Refused("FULL")
        answers = [self._commit(holder, digest, reason) for digest in digests]
        if holder:
            self._beat(holder, lease)
        return answers

    def _commit(self, holder: bytes | None, digest: bytes, reason: bytes | None) -> int:
        if reason is None:
            self.dead_letters.pop(digest, None)
            return self._insert_final(digest)
        if holder is None or not self._is_own(digest, holder):
            return -1
        entry = self.leases[digest]
        self.dead_letters[digest] = entry.failures, entry.lapses, reason, entry.kept
        self.total += 1
        return self._insert_final(digest)

    def release(
        self,
        holder: bytes | None,
        lease: int,
        delay_holder: bytes,
        delay: int,
        digests: Sequence[bytes],
        *,
        failed: bool,
    ) -> list[int]:
        """Give back what the holder has (without a holder: what anybody has); return 1 for each."""
        answers = []
        for digest in digests:
            entry = self.leases.get(digest)
            ours = entry is not None and entry.holder != delay_holder and holder in {None, entry.holder}
            if entry and ours:
                entry.failures = min(entry.failures + failed, _MOST)
                entry.holder = delay_holder
                self.holders[delay_holder] = self.now + delay
            answers.append(int(ours))
        if holder:
            self._beat(holder, lease)
        return answers

    def retry(self, delay_holder: bytes, delay: int, digests: Sequence[bytes]) -> list[int]:
        """Offer once more the dead letters, and count it as forgotten; return 1 for each."""
        answers = []
        for digest in digests:
            note = self.dead_letters.get(digest) if digest not in self.leases else None
            if note:
                self.leases[digest] = ModelEntry(delay_holder, 0, 0, note[3])
                self.holders[delay_holder] = self.now + delay
                self.forgotten[digest] = self.epoch
                del self.dead_letters[digest]
            answers.append(int(note is not None))
        return answers

    def reclaim(self, holder: bytes, lease: int, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        """Claim what dead holders had: digest, failures, lapses and what is kept of each item."""
        dead = sorted((until, each) for each, until in self.holders.items() if until <= self.now and each != holder)
        found: list[tuple[bytes, int, int, bytes]] = []
        for digest in [d for _, each in dead for d in self.in_flight(each)]:
            entry = self.leases[digest].taken_by(holder)
            size = sum(len(kept) for *_, kept in found) + len(entry.kept)
            if len(found) == limit or (found and size > BYTES_A_CALL):
                break
            self.leases[digest] = entry
            found.append((digest, entry.failures, entry.lapses, entry.kept))
        self._beat(holder, lease)
        return found

    def beat(self, holder: bytes, lease: int) -> int:
        """Let the holder live for a lease more; return how many items it has in flight."""
        self._beat(holder, lease)
        return len(self.in_flight(holder))

    def in_flight(self, holder: bytes) -> list[bytes]:
        """Return what a holder has, in the order of the digests."""
        return sorted(digest for digest, entry in self.leases.items() if entry.holder == holder)

    def contains(self, digests: Sequence[bytes], max_age: int = 0) -> list[int]:
        """Return the age of each item, 0 being not seen, and -1 in flight: what ``insert`` would answer."""
        ages = super().contains(digests, max_age)
        return [self._leased(digest, age) for digest, age in zip(digests, ages, strict=True)]

    def forget(self, digests: Sequence[bytes]) -> list[int]:
        """Make items new again, also those in flight; return 1 for each that was seen or in flight."""
        self._delete_notes(digests)
        return [
            max(int(self.leases.pop(d, None) is not None), *super(ClaimingShard, self).forget([d])) for d in digests
        ]

    def remove(self, digests: Sequence[bytes]) -> list[int]:
        """counting: take items out; one in flight was not counted yet. Return 1 for each that was seen or in flight."""
        self._delete_notes(digests)
        return [1 if self.leases.pop(d, None) else super(ClaimingShard, self).remove([d])[0] for d in digests]

    def _insert(self, digest: bytes, max_age: int) -> int:
        if self._leased(digest, 0) == -1:
            return -1
        age = self._insert_final(digest) if digest in self.leases else super()._insert(digest, max_age)
        if age == 0:
            self._delete_notes([digest])
        return age

    def _insert_final(self, digest: bytes) -> int:
        """Insert an item that is perhaps in flight; then its slice is not asked, because it may seem to be there."""
        if not self.leases.pop(digest, None):
            return super()._insert(digest, 0)
        forgotten = self.forgotten.pop(digest, None) is not None
        for each in self._written():
            if forgotten:  # counting: it has been counted
                each.insert(digest)
            else:
                each.add(digest)
        self.inserted += 1
        self._count(0, 0)
        return 0

    def _claim(self, holder: bytes, digest: bytes, kept: bytes) -> int:
        age = -1 if self._is_own(digest, holder) else self.contains([digest])[0]
        if age == 0:
            entry = self.leases.get(digest)
            self.leases[digest] = entry.taken_by(holder, kept) if entry else ModelEntry(holder, 0, 0, kept)
            self._delete_notes([digest])
        return age

    def _delete_notes(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self.dead_letters.pop(digest, None)

    def _room(self, digests: set[bytes]) -> None:
        if self.limit is not None and self.contains(list(digests)).count(0) > self.limit - self.inserted:
            raise Refused("FULL")

    def _is_own(self, digest: bytes, holder: bytes) -> bool:
        return digest in self.leases and self.leases[digest].holder == holder

    def _leased(self, digest: bytes, age: int) -> int:
        """Return the age of an item: -1 or 0 if it has an entry, otherwise ``age``."""
        if digest not in self.leases:
            return age
        return -1 if self.holders.get(self.leases[digest].holder, 0) > self.now else 0

    def _beat(self, holder: bytes, lease: int) -> None:
        if self.in_flight(holder):
            self.holders[holder] = self.now + lease
        else:
            self.holders.pop(holder, None)
