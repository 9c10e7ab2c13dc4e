"""Places between lines: reading that begins at one goes on exactly there."""

from __future__ import annotations

from itertools import chain

import pytest
from urifilter_redis.cli import lines
from urifilter_redis.cli.lines import Place, placed_windows

FILES = {
    "with a newline": b"a\nbb\r\n\nccc\ndddd\n" * 7,
    "without a newline": b"\nlast",
    "short after a newline": b"\n\xef\xbb\xbf",
    "byte order mark": b"\xef\xbb\xbfa\nb\n",
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
    monkeypatch.setattr(lines, "LINE_LIMIT", 40)
    paths = []
    for number, name in enumerate(names):
        (tmp_path / str(number)).write_bytes(FILES[name])
        paths.append(str(tmp_path / str(number)))
    told: list[str] = []
    read, places, told_before = [], [], []
    for (_, items), place in placed_windows(paths, told.append):
        read.append(items)
        places.append(place)
        told_before.append(len(told))
    for number, place in enumerate(places):
        again: list[str] = []
        rest = [items for (_, items), _ in placed_windows(paths, again.append, begin=place)]
        assert [*chain(*rest)] == [*chain(*read[number + 1 :])]
        assert again == told[told_before[number] :]
        content = FILES[names[place.file]]
        assert content[: place.offset].count(b"\n") + (content[: place.offset][-1:] != b"\n") == place.lines
    assert [*placed_windows(paths, told.append, begin=Place(len(paths)))] == []
