"""What a reply means: each error as a server words it, and as redis-py hands it on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import TimeoutError as ReplyTimeout
from support.by_hand import said

from urifilter_redis.errors import (
    BadItem,
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    RotationConflict,
    ServerFull,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.protocol.outcomes import (
    Decided,
    Decision,
    Unanswered,
    Unsent,
    decide,
    error_of,
    fields_of_stale,
    late_at,
    text_in,
    text_of,
    to_fields,
    to_mapping,
)

#: What Redis 6.2 makes of an error that a command inside a script got.
WRAPPED = "ERR Error running script (call to f_6f0c): @user_script:12: @user_script: 12: -{}"

#: A server's words, what is to be done, the error that is raised if they are the end, and what it tells to do.
ERRORS = [
    ("NOSCRIPT No matching script. Please use EVAL.", Decision.LOAD_SCRIPT, ServerUnavailable, "forgets scripts"),
    ("STALE epoch 1, opened 2, claims 0, live slices today:1:4:1", Decision.REFRESH, ServerUnavailable, "STALE"),
    ("FULL today has no room for 5 items", Decision.FULL, ServerUnavailable, "FULL"),
    ("LATECALL 17 is the time here in ms", Decision.RENEW, ServerUnavailable, "LATECALL"),
    ("RESTORING it is being restored", Decision.RESTORING, Restoring, "being restored"),
    ("BUSY Redis is busy running a script.", Decision.WAIT, ServerUnavailable, "busy running"),
    ("CLUSTERDOWN Hash slot not served", Decision.WAIT, ServerUnavailable, "CLUSTERDOWN Hash"),
    ("LOADING Redis is loading the dataset in memory", Decision.WAIT, ServerUnavailable, "LOADING Redis"),
    ("MASTERDOWN Link with MASTER is down", Decision.WAIT, ServerUnavailable, "MASTERDOWN Link"),
    ("TRYAGAIN Multiple keys request during rehashing", Decision.MIGRATING, ServerUnavailable, "TRYAGAIN Multiple"),
    ("ERR max number of clients reached", Decision.WAIT, ServerUnavailable, "max number"),
    ("ERR max number of clients + cluster connections reached", Decision.WAIT, ServerUnavailable, "max number"),
    ("BADARG a step is make or finish", Decision.REFUSED, UriFilterError, "a step is"),
    ("BADPHASE it is in phase idle", Decision.REFUSED, RotationConflict, "phase idle"),
    ("LOST today is missing", Decision.REFUSED, SliceLost, "today is missing"),
    ("MISMATCH it is another filter", Decision.REFUSED, ConfigMismatch, "another filter"),
    ("NOFILTER there is no filter", Decision.REFUSED, FilterNotFound, "no filter"),
    ("OLDCALL a later call has run", Decision.REFUSED, UriFilterError, "later call"),
    ("WRONGTYPE Operation against a key", Decision.REFUSED, SliceLost, "WRONGTYPE Operation"),
    ("OOM command not allowed when used memory", Decision.REFUSED, ServerFull, "raise maxmemory"),
    ("MISCONF Redis is configured to save RDB", Decision.REFUSED, ServerUnavailable, "is its disk full"),
    ("READONLY You can't write against a read only replica.", Decision.REFUSED, ServerUnavailable, "of the primary"),
    ("NOREPLICAS Not enough good replicas to write.", Decision.REFUSED, ServerUnavailable, "min-replicas-to-write"),
    ("NOPERM this user has no permissions", Decision.REFUSED, ServerUnavailable, "mend its ACL"),
    ("NOAUTH Authentication required.", Decision.REFUSED, ServerUnavailable, "redis://:PASSWORD@"),
    ("WRONGPASS invalid username-password pair", Decision.REFUSED, ServerUnavailable, "does not accept"),
    ("ERR invalid password", Decision.REFUSED, ServerUnavailable, "does not accept"),
    ("MOVED 3999 127.0.0.1:6381", Decision.MOVED, ServerUnavailable, "Redis Cluster"),
    ("ASK 3999 127.0.0.1:6381", Decision.MOVED, ServerUnavailable, "Redis Cluster"),
    ("CROSSSLOT Keys in request don't hash to the same slot", Decision.REFUSED, ServerUnavailable, "Redis Cluster"),
    ("ERR unknown command 'HRANDFIELD'", Decision.REFUSED, ServerUnavailable, "the server refuses"),
    ("something in small letters", Decision.REFUSED, ServerUnavailable, "ERR something in small letters"),
    # Scripts that were stopped: for these words before anything was written, for any other reason in the middle.
    (WRAPPED.format("OOM command not allowed"), Decision.REFUSED, ServerFull, "raise maxmemory"),
    (WRAPPED.format("MISCONF Redis is\nconfigured"), Decision.REFUSED, ServerUnavailable, "is its disk full"),
    (WRAPPED.format("READONLY You can't write"), Decision.REFUSED, ServerUnavailable, "of the primary"),
    (WRAPPED.format("NOREPLICAS Not enough"), Decision.REFUSED, ServerUnavailable, "min-replicas"),
    (WRAPPED.format("WRONGTYPE Operation against a key"), Decision.REFUSED, SliceLost, "WRONGTYPE Operation"),
    (WRAPPED.format("NOPERM not allowed"), Decision.REFUSED, ServerUnavailable, "mend its ACL"),
    (
        "ERR Error running script (call to f_6f): @user_script:3: The user executing the script can't run this command",
        Decision.REFUSED,
        ServerUnavailable,
        "mend its ACL",
    ),
    ("ERR ACL failure in script: User bob has no permissions", Decision.REFUSED, ServerUnavailable, "mend its ACL"),
    (WRAPPED.format("ERR value is not an integer"), Decision.DIED, ServerUnavailable, "ERR value is not an integer"),
    (WRAPPED.format("NOSUCHWORD at all"), Decision.DIED, ServerUnavailable, "NOSUCHWORD at all"),
    ("ERR Error running script (call to f_6f): @user_script:3: x is nil", Decision.DIED, ServerUnavailable, "x is nil"),
    ("ERR user_script:9: attempt to index a nil value script: 6f", Decision.DIED, ServerUnavailable, "attempt to"),
    ("OOM allowed script: 6f, on @user_script:9.", Decision.REFUSED, ServerFull, "raise maxmemory"),
]


@pytest.mark.parametrize(("text", "decision", "kind", "advice"), ERRORS, ids=[text[:60] for text, *_ in ERRORS])
def test_errors(text, decision, kind, advice):
    """Each is judged by its first word, and raised with what to do and the server's own words."""
    outcome = said(text)
    error = error_of(outcome, "filter 'news' on here")
    assert (decide(outcome), type(error)) == (decision, kind)
    assert str(error).startswith("filter 'news' on here: ")
    assert advice in str(error)


def test_what_the_server_said():
    """The word that redis-py takes off is there again, once, and what Redis 6.2 wraps around is not."""
    assert text_of(said("OOM command not allowed")) == "OOM command not allowed"
    assert text_of(said("LOST today is missing")) == "LOST today is missing"
    assert text_of(said("MOVED 1 here:2")) == "MOVED 1 here:2"
    assert text_of(said("NOAUTH Authentication required.")) == "NOAUTH Authentication required."
    assert text_of(said("ERR unknown command")) == "ERR unknown command"
    assert text_of(said(WRAPPED.format("OOM command not\nallowed"))) == "OOM command not\nallowed"


@pytest.mark.parametrize("reply", [b"OK", 0, None, [], [0, 1], {}, "ERR is only text", b"LOADING"])
def test_replies(reply):
    """What is no error is the answer."""
    assert decide(reply) is Decision.ANSWERED


@pytest.mark.parametrize("error", [ConnectionBroken("refused"), ReplyTimeout("too late"), OSError("no route")])
def test_no_answer(error):
    """What was not sent has not run, what was not answered may have; either way the server is not to be had."""
    assert (decide(Unsent(error)), decide(Unanswered(error))) == (Decision.WAIT, Decision.IN_DOUBT)
    for outcome in (Unsent(error), Unanswered(error)):
        raised = error_of(outcome, "here")
        assert (type(raised), str(raised)) == (ServerUnavailable, f"here: {error}")


def test_an_error_without_words():
    """Its class is named."""
    assert str(error_of(Unanswered(ConnectionBroken()), "here")) == "here: ConnectionError"


def test_no_connection_for_the_password():
    """A password that is refused is refused again."""
    assert decide(Unsent(AuthenticationError("invalid username-password pair"))) is Decision.REFUSED


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AuthenticationError("invalid username-password pair or user is disabled."), "does not accept this user name"),
        (AuthenticationError("Authentication required."), "wants a password: put it into the URL"),
        (AuthenticationError("AUTH <password> called without any password configured"), "wants no password: take it"),
        (AuthenticationError("Client sent AUTH, but no password is set"), "wants no password: take it"),
        (ResponseError("DB index is out of range"), "has no database of this number"),
        (ResponseError("SELECT is not allowed in cluster mode"), "has no database of this number"),
        (ResponseError("unknown command 'HELLO'"), "unknown command"),
    ],
)
def test_what_a_connection_is_refused_for(error, told):
    """The advice comes first, and the server's own sentence behind it."""
    text = str(error_of(Unsent(error), "here"))
    assert told in text
    assert str(error) in text


@pytest.mark.parametrize("decision", Decision)
def test_judged_already(decision):
    """What the connector has understood stays so."""
    error = BadItem("item 3", [3])
    outcome = Decided(error, decision, 2.0)
    assert (decide(outcome), error_of(outcome, "here")) == (decision, error)


@given(st.integers(0, 10**15))
def test_the_time_in_latecall(at):
    """The server's time in ms, also if it is wrapped."""
    text = f"LATECALL {at} is the time here in ms: the deadline is past, or over two minutes ahead"
    assert late_at(said(text)) == late_at(said(WRAPPED.format(text))) == at


def test_not_latecall():
    """Any other error has no time."""
    with pytest.raises(ValueError, match="not a LATECALL: LATE"):
        late_at(said("LATE 5"))


def test_stale():
    """It tells what has changed in meta; any other error does not."""
    slices = "history_1:7:336:1 today:7:336:1"
    fields = {"epoch": "12", "opened": "1700000000000", "claims": "60000", "slices": slices}
    assert fields_of_stale(said(f"STALE epoch 12, opened 1700000000000, claims 60000, live slices {slices}")) == fields
    with pytest.raises(ValueError, match="not a STALE: STALE epoch"):
        fields_of_stale(said("STALE epoch"))


@given(st.dictionaries(st.text(), st.text()))
def test_hgetall(fields):
    """A flat list (RESP2) or a mapping (RESP3), bytes or text: the same fields."""
    raw = {name.encode("utf-8", "replace"): value.encode("utf-8", "replace") for name, value in fields.items()}
    fields = {text_in(name): text_in(value) for name, value in raw.items()}
    flat = [part for pair in raw.items() for part in pair]
    assert to_mapping(raw) == to_mapping(flat) == to_mapping(fields) == fields


def test_hgetall_that_is_cut():
    """A name without a value is no reply of a Redis."""
    with pytest.raises(ServerUnavailable, match="is there a Redis or Valkey behind this address"):
        to_mapping([b"a", b"1", b"b"])


def test_bytes_that_are_no_text():
    """They are replaced: what somebody wrote into a hash stops nothing."""
    assert to_mapping([b"a\xff", 1]) == {"a\ufffd": "1"}


def test_info():
    """Fields of INFO, with colons in their values; headings and empty lines are none."""
    reply = b"# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/a:b\r\n\r\nempty:\r\n"
    wanted = {"redis_version": "7.0.15", "executable": "/usr/bin/a:b", "empty": ""}
    assert to_fields(reply) == to_fields(reply.decode()) == wanted
