"""The headers of the scripts say what Python sends."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hiredis import pack_command

from urifilter_redis.protocol import acl, calls, claims, outcomes, scripts
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import ShardState, View
from urifilter_redis.protocol.replies import SHAPES, SHAPES_OF_SCRIPTS, fits

CONFIG = Config.new(Settings(capacity=1000, shards=2))
MODULE = Config.new(Settings(capacity=1000, layout="redisbloom"))
COUNTING = Config.new(Settings(capacity=1000, layout="counting"))
META = dict(zip(*[iter(CONFIG.to_meta(0, "idle"))] * 2, strict=True))
VIEW = View.from_meta(META, "news")
STATE = ShardState.from_meta(META | {"uid": CONFIG.uid, "created": "1", "token": "0123456789abcdef"}, "news")
NEW = VIEW.slices[0]
KEYS = FilterKeys("urifilter", "news").shard(0)
NAMES = ["today", "history_1"]
NAMES_AFTER = ["history_1", "today"]
CLAIMED = dataclasses.replace(VIEW, claims=60_000)
HOLDING, NO_HOLDER = claims.Holding(claims.new_holder(), 60_000), claims.new_delay_holder()
DIGEST = bytes(range(16))
CALL_ID = CallIds().draw()


def made(command: str, *, twin: bool = False) -> scripts.Script:
    return scripts.load(command, next(iter(scripts.COMMANDS[command]), ""), 12, claims=twin)


def header(script: scripts.Script) -> str:
    return script.source.split("\n\n")[0]


def declared(script: scripts.Script, kind: str) -> list[tuple[str, bool]]:
    """Return (name, whether any number may follow) of each KEYS or ARGV line, in their order."""
    lines = re.findall(rf"^-- {kind}\[(\d+)(…?)\] ([^:\n]+)", header(script), re.MULTILINE)
    assert [int(number) for number, _, _ in lines] == list(range(1, len(lines) + 1))
    return [(name.strip(), bool(more)) for _, more, name in lines]


CALLS = [
    ("insert", calls.items("insert", CONFIG, KEYS, VIEW, str(CALL_ID), DIGEST)),
    ("insert", calls.items("insert", CONFIG, KEYS, VIEW, "-", [DIGEST, DIGEST])),
    ("contains", calls.items("contains", CONFIG, KEYS, VIEW, "-", DIGEST)),
    ("forget", calls.items("forget", CONFIG, KEYS, VIEW, str(CALL_ID), DIGEST)),
    ("insert", calls.items("insert", CONFIG, KEYS, CLAIMED, str(CALL_ID), DIGEST)),
    ("contains", calls.items("contains", CONFIG, KEYS, CLAIMED, "-", [DIGEST, DIGEST])),
    ("forget", calls.items("forget", CONFIG, KEYS, CLAIMED, str(CALL_ID), DIGEST)),
    ("remove", calls.items("remove", COUNTING, KEYS, CLAIMED, str(CALL_ID), DIGEST)),
    ("claim", claims.claim(CONFIG, KEYS, VIEW, str(CALL_ID), DIGEST, [b"kept"], HOLDING)),
    ("claim", claims.claim(CONFIG, KEYS, CLAIMED, "-", [DIGEST], [b"kept"], HOLDING)),
    ("commit", claims.commit(CONFIG, KEYS, CLAIMED, str(CALL_ID), DIGEST, HOLDING)),
    ("commit", claims.commit(CONFIG, KEYS, VIEW, "-", [DIGEST, DIGEST], claims.NO_HOLDER)),
    ("commit", claims.commit(CONFIG, KEYS, VIEW, str(CALL_ID), DIGEST, HOLDING, b"why")),
    (
        "release",
        claims.release(CONFIG.uid, KEYS, str(CALL_ID), DIGEST, HOLDING, delay_holder=NO_HOLDER, delay=7, failed=True),
    ),
    ("release", claims.release(CONFIG.uid, KEYS, "-", [DIGEST, DIGEST], claims.NO_HOLDER, delay_holder=NO_HOLDER)),
    ("release", claims.release(CONFIG.uid, KEYS, "-", DIGEST, HOLDING, delay_holder=NO_HOLDER, again=True)),
    ("reclaim", claims.reclaim(CONFIG.uid, KEYS, str(CALL_ID), HOLDING, 7)),
    ("beat", claims.beat(CONFIG.uid, KEYS, HOLDING)),
    ("create", calls.create("make", CONFIG, KEYS, CONFIG.to_meta(0, "idle"))),
    ("remove", calls.items("remove", COUNTING, KEYS, VIEW, str(CALL_ID), DIGEST)),
    (
        "turn",
        calls.turn("turn", KEYS, STATE, STATE.token, NEW, limit=7, period=9, by=2, opened=1234, names=NAMES_AFTER),
    ),
    ("build", calls.build("piece", KEYS, STATE, number=3, oldest=2, offset=8, data=b"data", late=True)),
    ("store", calls.store("write", KEYS, STATE, 5, "3", b"data")),
    ("expire", calls.expire(CONFIG.uid, KEYS)),
    ("reopen", calls.reopen(CONFIG.uid, KEYS)),
    ("merge", calls.merge("piece", CONFIG, KEYS, STATE, 1, 8, b"data")),
    ("checkpoint", calls.checkpoint("finish", CONFIG.uid, KEYS, 3, 9)),
    ("restore", calls.restore("arrange", CONFIG.uid, KEYS, STATE.token, fields=["phase", "idle"], names=NAMES)),
    (
        "refill",
        calls.refill(
            "piece", CONFIG.uid, KEYS, STATE.token, number=8, offset=8, slices=[KEYS.slice("today")], data=[b"data"]
        ),
    ),
    ("tend", calls.tend("take", CONFIG.uid, KEYS, STATE.token, 1000)),
    ("probe", calls.probe(KEYS)),
    *((name, calls.items(name, MODULE, KEYS, VIEW, "-", DIGEST)) for name in ("insert", "contains", "forget")),
    *((name, calls.items(name, MODULE, KEYS, CLAIMED, "-", DIGEST)) for name in ("insert", "contains", "forget")),
    ("claim", claims.claim(MODULE, KEYS, VIEW, "-", DIGEST, [b"kept"], HOLDING)),
    ("commit", claims.commit(MODULE, KEYS, VIEW, "-", DIGEST, HOLDING)),
    ("create", calls.create("make", MODULE, KEYS, MODULE.to_meta(0, "idle"))),
    (
        "turn",
        calls.turn(
            *("turn", KEYS, STATE, STATE.token, NEW), limit=7, period=9, by=2, opened=1234, rate=1e-5, names=NAMES_AFTER
        ),
    ),
    ("probe", calls.probe(KEYS, "redisbloom")),
    ("drop", calls.drop("delete", {"uid": CONFIG.uid}, KEYS, [KEYS.slice("today"), KEYS.meta])),
]

KEY_NAMES = {
    "slices": {"turn": ["history_1", "today"], "restore": ["today", "history_1"], "build": []},
    "next": ["today_next"],
    "archived": ["slice:5"],
    "merging 1": ["merging_1"],
    "merging 2": ["merging_2"],
    "leftovers": ["history", "history_1"],
    "keys": ["today", "meta"],
}

ARGUMENTS = {
    "segment": lambda v: v == "0",
    "uid": lambda v: v in {CONFIG.uid, COUNTING.uid, MODULE.uid},
    "call id": lambda v: v in {"-", str(CALL_ID)},
    "max_age": lambda v: v == "0",
    "encoding": lambda v: v in {"bin", "hex"},
    "items": lambda v: v in {DIGEST, DIGEST.hex(), b"kept"},
    "holder": lambda v: v in {HOLDING.holder, "-"},
    "lease": lambda v: v in {str(HOLDING.lease), "0"},
    "reason": lambda v: v in {"-", b"+why"},
    "delay holder": lambda v: v == NO_HOLDER,
    "delay": lambda v: v in {"7", "0"},
    "failed": lambda v: v in {"1", "0", "again"},
    "step": lambda v: v in {"make", "delete", "allocate", "turn", "piece", "write", "finish", "arrange", "take"},
    "bytes": lambda v: v == str(CONFIG.bytes),
    "reserved": lambda v: v == "0.0001/1000",
    "rate": lambda v: v == "1e-05",
    "epoch": lambda v: v == str(STATE.epoch),
    "token": lambda v: v == STATE.token,
    "units": lambda v: v == str(NEW.units),
    "limit": lambda v: v in {"7", str(calls.EXPIRED_A_CALL)},
    "period": lambda v: v == "9",
    "by": lambda v: v == "2",
    "opened": lambda v: v == "1234",
    "segments": lambda v: v == "1",
    "number": lambda v: v in {"3", "8"},
    "oldest": lambda v: v == "2",
    "offset": lambda v: v == "8",
    "data": lambda v: v == b"data",
    "late": lambda v: v == "1",
    "doubt": lambda v: v in {"0", "1"},
    "field": lambda v: v == "3",
    "slice": lambda v: v == "1",
    "fields": lambda v: v in {*CONFIG.to_meta(0, "idle"), *MODULE.to_meta(0, "idle")},
    "timeline": lambda v: v == "-",
    "given up": lambda v: v == "-",
    "begun": lambda v: v == "9",
    "word": lambda v: v == "list",
    "time": lambda v: v == "1000",
    "identity": lambda v: v == CONFIG.uid + "//",
    "archive": lambda v: v == "0",
}


def key_names(command: str, name: str) -> list[str]:
    found = KEY_NAMES.get(name, ["today"] if name == "slices" else [name])
    return found.get(command, ["today"]) if isinstance(found, dict) else found


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_keys_are_those_of_the_header(command, call):
    """Each key stands where the header says, and the last line takes all that follow."""
    names = declared(call.script, "KEYS")
    sent = [key.removeprefix(KEYS.base) for key in call.keys]
    assert sent == [suffix for name, _ in names for suffix in key_names(command, name)]


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_arguments_are_those_of_the_header(command, call):
    """Each argument is what the header calls it, and the script is the command's."""
    assert call.script.name.partition(":")[0] == command
    names = declared(call.script, "ARGV")
    if names[-1][1]:
        names += [names[-1]] * (len(call.args) - len(names))
    assert len(names) == len(call.args)
    for (name, _), value in zip(names, call.args, strict=True):
        assert ARGUMENTS[name](value), (name, value)


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_no_number_is_sent(command, call):
    """Hiredis calls repr() for a number; a signal whose handler raises there ends the process."""
    assert {type(each) for each in call.command()} <= {str, bytes}, command
    pack_command(call.command())


ITEMS = ("insert", "contains", "forget", "remove", "claim", "commit", "release")


def reply_to(command: str, call: calls.Call) -> object:
    """Return a reply as the script makes one."""
    if command in ITEMS:
        return [0] * max(1, call.args.count(DIGEST.hex()))
    if command in {"create", "checkpoint"}:
        return [b"uid", b"0", b"phase", b"idle"]
    return {"probe": [[], [], []], "reclaim": [DIGEST, 0, 1, b"kept"] * 2}.get(command, 1)


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_a_reply_to_something_else_does_not_fit(command, call):
    """What a handshake, a plain command or a call with another number of items gets is no answer."""
    own = reply_to(command, call)
    assert fits(call.command(), own)
    assert not any(fits(call.command(), other) for other in (b"OK", b"PONG", None, {}, [b"master"], [None]))
    if command in ITEMS:
        assert not any(
            fits(call.command(), other) for other in (0, [], [*own, 0], own[1:], [str(each) for each in own])
        )
    if command == "claim":
        assert fits(call.command(), [*own, 1, 0, 2])
    elif isinstance(own, list):
        assert not fits(call.command(), [*own, b"more"])
        assert not fits(call.command(), 1)


def test_steps_that_answer_meta():
    """``drop`` and ``restore`` do, to the steps that say what is there; a filter that is gone has none."""
    drop = calls.drop("begin", {"uid": CONFIG.uid}, KEYS).command()
    restore = calls.restore("begin", CONFIG.uid, KEYS, STATE.token).command()
    for command in (drop, restore):
        assert fits(command, [b"uid", b"0"])
        assert fits(command, [])
        assert not any(fits(command, other) for other in (1, b"OK", [b"uid"], [1, 2]))


def test_each_command_has_a_shape():
    """Each plain command that a user needs a right for, and each script."""
    users = {each.split()[0] for each in (*acl._EVERY, *acl._READS, *acl._CRAWLS, *acl._PLOTS, *acl._OPERATES)}
    assert users - {"EVALSHA", "EVAL"} <= set(SHAPES)
    assert set(scripts.COMMANDS) == {*ITEMS, *SHAPES_OF_SCRIPTS}


EVERY = [made(command) for command in scripts.COMMANDS] + [made(command, twin=True) for command in scripts.TWOFOLD]
EVERY += [
    scripts.load(name, "redisbloom", claims=twin)
    for name, layouts in scripts.COMMANDS.items()
    if "redisbloom" in layouts or name in scripts.MODULE_VARIANTS
    for twin in ((False, True) if name in scripts.TWOFOLD else (False,))
]


@pytest.mark.parametrize("script", EVERY, ids=lambda script: script.name)
def test_error_words_are_those_of_the_header(script):
    """The header lists every error word of the composed script, and no other; Python knows each."""
    used = set(re.findall(r"error_reply\(\s*(?:string\.format\(\s*)?'([A-Z]+)", script.source))
    listed = re.search(r"^-- Errors: (.*)$", header(script), re.MULTILINE)
    assert listed is not None
    assert used == set(listed[1].split(", "))
    assert used <= set(outcomes.SCRIPT_ERRORS) | set(outcomes._AGAIN)


@pytest.mark.parametrize("script", EVERY, ids=lambda script: script.name)
def test_header_begins_with_the_purpose(script):
    """The first line is the command's name and what it does, in one sentence: ``lua list`` shows no more."""
    assert re.match(rf"-- {script.name.partition(':')[0]}: [^.]+\.\n", header(script))
    assert "-- Reply: " in header(script)


def test_every_script_is_called():
    """Each command is among the calls that are compared with the headers, and each twin too."""
    assert {script.name for script in EVERY} == {call.script.name for _, call in CALLS}


def test_the_key_schema_stands_in_insert():
    """Every key of a shard is drawn in insert's header."""
    drawn = header(made("insert"))
    slices = map(KEYS.slice, ("today", "history", "history_1"))
    keys = (
        KEYS.meta,
        KEYS.replies,
        KEYS.forgotten,
        KEYS.slice("today_next"),
        KEYS.archived(7),
        KEYS.merging[0],
        "urifilter:filters",
    )
    keys += KEYS.of_claims + KEYS.of_dead_letters
    for key in (*keys, *slices):
        assert f"--   {key} " in drawn
