"""The leases of a checkpoint as bytes."""

from __future__ import annotations

import pytest

from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.storage.records import LONGEST_TEXT, split_leases, write_leases

HEAD = b"holder01" + b"\1\0\2\0"
LEASES = [(b"a" * 16, HEAD + b"kept", b""), (b"b" * 16, HEAD, b"x" * 5000), (b"c" * 16, HEAD, b"")]


@pytest.mark.parametrize("at", [0, 1, 21, 22, 30, 60, 5000, 10_000])
def test_they_are_read_as_they_were_written(at):
    """Wherever the bytes are cut: what is whole comes first, and the rest is kept."""
    data = write_leases(LEASES)
    found, rest = split_leases(data[:at])
    more, rest = split_leases(rest + data[at:])
    assert found + more == LEASES
    assert rest == b""


@pytest.mark.parametrize(
    "data",
    [
        write_leases([(b"a" * 16, HEAD[:11], b"")]),
        write_leases([(b"a" * 16, HEAD + b"kept", b"text")]),
        write_leases([(b"a" * 16, HEAD, b"")])[:18] + (LONGEST_TEXT + 1).to_bytes(4, "big"),
        b"\0" * 22,
    ],
    ids=["no entry", "two texts", "endless", "zeros"],
)
def test_what_the_scripts_cannot_have_written(data):
    """It is refused, before the bytes that it promises are waited for."""
    with pytest.raises(ArchiveCorrupt, match="the leases have an entry"):
        split_leases(data)
