"""All that a shard knows of claims, read from its keys."""

from __future__ import annotations

import struct

from support.model_claims import ModelEntry
from support.shard import KEYS

#: Bytes of an entry whose payload stands in a field of its own.
SHORT = 12


def leases_of(client) -> dict[bytes, ModelEntry]:
    """Return the entries by digest; each payload that stands apart belongs to an entry that says so."""
    fields = client.hgetall(KEYS.leases)
    found = {digest: _entry(value) for digest, value in fields.items() if len(digest) == 16}
    for digest, entry in found.items():
        apart = fields.get(digest + b"+")
        assert apart is None or (len(fields[digest]) == SHORT and len(apart) > 1024)
        entry.kept = apart or entry.kept
    apart = {field[:-1] for field in fields if field.endswith(b"+") and len(field) == 17}
    assert len(fields) == len(found) + len(apart)
    assert apart <= set(found)
    return found


def dead_letters_of(client) -> dict[bytes, tuple[int, int, bytes, bytes]]:
    """Return failures, lapses, reason and what is kept of each item that was rejected; the keys fit together."""
    notes = client.hgetall(KEYS.of_dead_letters[0])
    size = int(notes.pop(b"bytes", 0))
    times = dict(client.zrange(KEYS.of_dead_letters[1], 0, -1, withscores=True))
    assert times == {digest: struct.unpack_from("<d", note)[0] for digest, note in notes.items()}
    assert size == sum(map(len, [*notes, *notes.values()]))
    found = {}
    for digest, note in notes.items():
        failures, lapses, length = struct.unpack_from("<HHB", note, 8)
        found[digest] = failures, lapses, note[13 : 13 + length], note[13 + length :]
    return found


def in_flight_of_holder(client) -> list[tuple[bytes, bytes]]:
    """Return holder and digest of all that is in flight; all have the score 0."""
    members = client.zrange(KEYS.in_flight, 0, -1, withscores=True)
    assert all(score == 0 for _, score in members)
    return [(member[:8], member[8:]) for member, _ in members]


def holders_of(client) -> dict[bytes, int]:
    """Return until when each holder, and delay holder, lives, ms."""
    return {holder: int(until) for holder, until in client.zrange(KEYS.holders, 0, -1, withscores=True)}


def _entry(value: bytes) -> ModelEntry:
    return ModelEntry(value[:8], *struct.unpack_from("<HH", value, 8), value[SHORT:])
