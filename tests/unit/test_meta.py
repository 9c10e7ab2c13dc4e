"""What meta says of a shard that changes."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import NOW, config_of, meta_of, state_of

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.errors import SliceLost, UriFilterError
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.meta import Closed, ShardState, View

CONFIG = config_of(retention="rolling", slices=4, period="1d")
CLOSED = "3:100:200:7 4:200:310:8 5:310:400:9"
FULL = {
    "epoch": 6,
    "phase": "rotating",
    "token": "abc",
    "pieces": 2,
    "late": 1,
    "opened": 400,
    "ahead": "500 600",
    "inserted": 5,
    "closed": CLOSED,
    "oldest": 3,
    "changed": 11,
    "timeline": "t",
    "checkpoint": 4,
    "checkpointed": 350,
    "slices": "history:8:512:1 history_1:8:512:1 today:8:512:1",
}


def test_a_new_filter():
    """Before its first turn it has today, opened when it was made, and no more."""
    state = state_of(CONFIG)
    assert (state.epoch, state.phase, state.opened, state.inserted, state.closed) == (0, "idle", NOW, 0, ())
    assert (state.pieces, state.late, state.limit, state.ahead, state.token) == (None, False, None, (), "")
    assert (state.oldest, state.changed, state.timeline, state.checkpoint, state.checkpointed) == (0, 0, "", 0, 0)
    assert [each.name for each in state.view.slices] == ["today"]


def test_all_fields():
    """Each is read, as a number where it is one."""
    state = state_of(CONFIG, **FULL)
    assert (state.epoch, state.pieces, state.late, state.opened, state.ahead) == (6, 2, True, 400, (500, 600))
    assert state.closed == (Closed.of(3, 100, 200, 7), Closed.of(4, 200, 310, 8), Closed.of(5, 310, 400, 9))
    assert (state.oldest, state.changed, state.timeline, state.checkpoint, state.checkpointed) == (3, 11, "t", 4, 350)
    assert state.view.slices == tuple(Slice(name, 8, 512) for name in ("history", "history_1", "today"))
    assert state.inserted_in_all == state.items == 5 + 7 + 8 + 9
    counted = state_of(CONFIG, **FULL | {"new": 2, "closed": "3:100:200:7:0 4:200:310:8:1 5:310:400:9:4"})
    assert (counted.inserted_in_all, counted.items) == (5 + 7 + 8 + 9, 2 + 0 + 1 + 4)


@pytest.mark.parametrize("field", ["uid", "epoch", "phase", "inserted", "slices"])
def test_a_field_is_missing(field):
    """Without it the filter is damaged; the message names the field."""
    meta = meta_of(CONFIG, **FULL)
    del meta[field]
    with pytest.raises(SliceLost, match=f"^here: meta is damaged: .*KeyError.*{field}"):
        ShardState.from_meta(meta, "here")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("epoch", "six"),
        ("epoch", ""),
        ("pieces", "x"),
        ("opened", "-"),
        ("ahead", "1 x"),
        ("inserted", "1.5"),
        ("limit", ""),
        ("closed", "3:100:200"),
        ("closed", "3:100:200:7:1:2"),
        ("closed", "3:100:200:x"),
        ("checkpoint", "first"),
        ("slices", "today"),
        ("slices", "today:8"),
        ("slices", "today:8:512:1:1"),
        ("slices", "today:x:512"),
        ("inserted", "9" * 5000),
    ],
)
def test_a_field_is_damaged(field, text):
    """What is no number, or has another form, is told as damage, and nothing else."""
    with pytest.raises(SliceLost, match="^news: meta is damaged"):
        state_of(CONFIG, **FULL | {field: text})


@given(st.sampled_from(sorted(FULL)), st.text())
def test_any_text(field, text):
    """Whatever stands in a field, it is read or it is damage."""
    with contextlib.suppress(SliceLost):
        state_of(CONFIG, **FULL | {field: text})


@given(st.lists(st.tuples(st.text("abc_123", min_size=1), st.integers(0), st.integers(0))))
def test_live_slices(entries):
    """What a slice is written as is read again, in its order."""
    slices = tuple(Slice(*each) for each in entries)
    assert View.from_meta({"slices": " ".join(map(str, slices))}, "news").slices == slices


def test_no_meta():
    """A view of nothing is damage, too."""
    with pytest.raises(SliceLost, match="slices"):
        View.from_meta({}, "news")


@given(st.integers(0, 100), st.lists(st.integers(0, 100)), st.integers(0, 100))
def test_opened_by(opened, ahead, now):
    """The latest of all times that is not in the future; if all are, now."""
    state = state_of(CONFIG, opened=opened or "0", ahead=" ".join(map(str, ahead)))
    past = [each for each in (state.opened, *ahead) if each <= now]
    assert state.opened_by(now) == (max(past) if past else now)


def test_epochs():
    """history_N was today N slices ago; today, and rolling's history, are of the shard's own."""
    state = state_of(CONFIG, **FULL)
    names = ("today", "history_1", "history_2", "history_12", "history")
    assert [state.epoch_of(name) for name in names] == [6, 5, 4, -6, 6]
    passed = state_of(CONFIG, **FULL | {"epoch": 11, "closed": "3:100:200:7 8:200:310:8"})
    assert [passed.epoch_of(name) for name in ("today", "history_1", "history_2")] == [11, 8, 3]


@pytest.mark.parametrize(
    ("written", "closes"), [(0, 430), (430, 430), (431, 431), (500, 500), (501, 500), (10**15, 500)]
)
def test_when_today_closes(written, closes):
    """A period after it was opened, or when it was last written to; a time in the future is now."""
    assert state_of(CONFIG, opened=400, written=written).closes(500, 30) == closes


def test_when_they_were_closed():
    """history_N by its epoch, today not yet; rolling's history from its first opening to its last closing."""
    rotating = state_of(CONFIG, **FULL)
    assert rotating.times_of("today") == Closed(rotating.epoch, rotating.opened, 0, rotating.inserted, rotating.new)
    assert rotating.times_of("history_1") == Closed.of(5, 310, 400, 9)
    assert rotating.times_of("history_3") == Closed.of(3, 100, 200, 7)
    assert rotating.times_of("history") == Closed.of(6, 100, 310, 15)
    idle = state_of(CONFIG, **FULL | {"phase": "idle", "slices": "history:8:512:1 today:8:512:1"})
    assert idle.times_of("history") == Closed.of(6, 100, 400, 24)


@pytest.mark.parametrize("setting", ["normalize", "hash"])
def test_a_setting_of_a_newer_release(setting):
    """A normalisation or hash that this release does not know is no damage: the message says to upgrade."""
    with pytest.raises(UriFilterError, match=f"^news: {setting} is 'newer', .* upgrade it") as caught:
        Config.from_meta(meta_of(CONFIG, **{setting: "newer"}), "news")
    assert not isinstance(caught.value, SliceLost)


#: Reads or removals of fields of a shard's meta in a script: their names follow each other.
_READS = re.compile(r"'(?:HGET|HMGET|HEXISTS|HDEL)',\s*(?:meta_key|meta|KEYS\[1\])((?:,\s*'\w+')+)")


def test_every_field_of_the_scripts_is_known():
    """A client refuses a meta with a field that it does not know, so it knows all that its own scripts keep there."""
    found = {
        name
        for path in (Path(__file__).parents[2] / "lua").glob("*.lua")
        for names in _READS.findall(path.read_text())
        for name in re.findall(r"\w+", names)
    }
    assert len(found) > 25
    for field in sorted(found):
        CONFIG.check_known({field: ""}, "here")


@pytest.mark.parametrize("phase", ["creating", "idle", "restoring"])
@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": 100_000_000},
        {"capacity": 1000, "retention": "growing"},
        {"capacity": 1000, "retention": "rolling", "slices": 4, "period": "1d", "expire_after": "last-seen"},
        {"capacity": 1000, "normalize": "loose", "rules": [{"drop": ["sid"]}]},
    ],
    ids=str,
)
def test_what_is_written_is_known(settings, phase):
    """Each field of a new shard's meta, of whatever settings and phase, is one that a client reads or passes over."""
    config = Config.new(Settings(**settings))
    fields = config.to_meta(0, phase)
    assert Config.from_meta(dict(zip(fields[::2], fields[1::2], strict=True)) | {"uid": config.uid}, "here") == config
