"""Places between lines: reading that begins at one goes on exactly there."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urifilter_redis.cli import lines, records
from urifilter_redis.cli.lines import placed_windows
from urifilter_redis.cli.records import PLAIN, Place, item_of

FILES = {
    "with a newline": b"a\nbb\r\n\nccc\ndddd\n" * 7,
    "without a newline": b"\nlast",
    "short after a newline": b"\n\xef\xbb\xbf",
    "byte order mark": b"\xef\xbb\xbfa\nb\n\xef\xbb\xbf\xef\xbb\xbfc\r\r\n",
    "too long lines": b"x" * 50 + b"\na\n" + b"y" * 90 + b"\nb\nc\n" + b"z" * 41,
    "empty": b"",
}


@pytest.mark.parametrize("chunk", [1, 7, 39])
@pytest.mark.parametrize(
    "names", [[name] for name in FILES] + [list(FILES)], ids=lambda names: names[0] * (len(names) < 2)
)
def test_reading_goes_on_at_every_place(tmp_path, monkeypatch, names, chunk):
    """From each place on, the remaining lines and messages come, with the right numbers of lines."""
    monkeypatch.setattr(lines, "CHUNK", chunk)
    monkeypatch.setattr(lines, "WINDOW", 3)
    monkeypatch.setattr(records, "RECORD_LIMIT", 40)
    paths = []
    for number, name in enumerate(names):
        (tmp_path / str(number)).write_bytes(FILES[name])
        paths.append(str(tmp_path / str(number)))
    told: list[str] = []
    read, places, told_before = [], [], []
    for window, place in placed_windows(paths, told.append):
        read.append(window.items)
        places.append(place)
        told_before.append(len(told))
    for number, place in enumerate(places):
        again: list[str] = []
        rest = [window.items for window, _ in placed_windows(paths, again.append, begin=place)]
        assert [*chain(*rest)] == [*chain(*read[number + 1 :])]
        assert again == told[told_before[number] :]
        content = FILES[names[place.file]]
        assert content[: place.offset].count(b"\n") + (content[: place.offset][-1:] != b"\n") == place.lines
    assert [*placed_windows(paths, told.append, begin=Place(len(paths)))] == []


MARKS = st.sampled_from([b"\xef\xbb\xbf", b"\xef", b"\xbb\xbf", b"\r", b"\n", b"a", b"\0", b" "])


@given(pieces=st.lists(MARKS), chunk=st.integers(1, 9))
def test_an_item_is_the_item_of_itself(pieces, chunk):
    """However a stream is cut, its items are those of its lines; a printed item is read as the same item again."""
    stream = b"a" + b"".join(pieces)

    def read(data: bytes) -> list[bytes]:
        chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
        found = lines._windows(lines._pieces(chunks, Place(), PLAIN, 3), PLAIN.records(pytest.fail))
        return [*chain.from_iterable(window.items for window, _ in found)]

    items = read(stream)
    assert items == [*map(item_of, stream.removesuffix(b"\n").split(b"\n"))]
    assert read(b"".join(item + b"\n" for item in items)) == items
    assert not any(item.startswith(b"\xef\xbb\xbf") or item.endswith(b"\r") for item in items)
