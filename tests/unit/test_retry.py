"""The loop that retries, driven by hand: no server, and no clock but the test's."""

from __future__ import annotations

import random
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as ConnectionBroken
from support.by_hand import NOW, Hand, config_of, said, session_of

from urifilter_redis.engine import retry
from urifilter_redis.engine.batch import OpenCall
from urifilter_redis.engine.retry import FIRST_PAUSE, LONGEST_PAUSE, Request, exchange
from urifilter_redis.engine.steps import Pause, Send
from urifilter_redis.engine.topology import Routes, Service
from urifilter_redis.errors import AnswerLost, FilterNotFound, Restoring, ServerUnavailable, SliceLost, UriFilterError
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CALL_LIFE, PROOF_LIFE, CallId
from urifilter_redis.protocol.outcomes import Decided, Decision, Unanswered, Unsent

UNSENT, LOST = Unsent(ConnectionBroken("refused")), Unanswered(ConnectionBroken("cut"))
NOSCRIPT = said("NOSCRIPT No matching script. Please use EVAL.")
STALE = said("STALE epoch 1, opened 2, claims 0, live slices today:1:4:1")
LOADING = said("LOADING Redis is loading the dataset in memory")
FULL = said("FULL today has no room")
RESTORING = said("RESTORING the filter is being restored")
NOFILTER = said("NOFILTER there is no such filter")
CLUSTERDOWN = said("CLUSTERDOWN Hash slot not served")
MOVED = said("MOVED 3999 127.0.0.1:6381")
ASK = said("ASK 3999 127.0.0.1:6382")
TRYAGAIN = said("TRYAGAIN Multiple keys request during rehashing of slot")
DIED = said("ERR Error running script (call to f_6f): @user_script:3: nil value")


def late(at: int) -> Exception:
    return said(f"LATECALL {at} is the time here in ms: the deadline is past, or over two minutes ahead")


@pytest.fixture
def hand(monkeypatch):
    return Hand(monkeypatch, retry)


def writing(session, shard: int = 0, *, keyed: bool = False) -> Request:
    """An insert that was made now, by the server's clock."""
    call = OpenCall(shard, range(1), bytes(16), CallId("0" * 16, shard, 7, NOW, keyed))

    def build(request):
        keys, view = session.keys.shard(shard), session.view(shard)
        return calls.items("insert", session.config, keys, view, str(request.call_id), call.packed)

    return Request(build, shard, call)


def reading(session) -> Request:
    return Request.of(("HGETALL", session.keys.shard(0).meta))


def ids_in(hand) -> list[str]:
    """The call id of each insert that was sent."""
    live = slice(3, None)
    return [
        next(part for part in command[live] if isinstance(part, str) and part.startswith("0" * 16))
        for commands in hand.sent
        for command in commands
        if command[0] == "EVALSHA"
    ]


def asked(hand, *rounds, config=None, took=0.0, make=writing, **timeouts) -> Request:
    """Make a request by a session of its own, whose pipelines have these outcomes; return it."""
    session = session_of(config, **timeouts)
    request = make(session)
    hand.drive(exchange(session, [request]), *rounds, took=took)
    return request


def test_answered(hand):
    """A reply is the answer, in one pipeline and without a pause; nothing is in doubt then."""
    session = session_of()
    request, question = writing(session), reading(session)
    hand.drive(exchange(session, [request, question]), [[0], {"a": "b"}])
    assert [(each.answered, each.reply, each.in_doubt) for each in (request, question)] == [
        (True, [0], False),
        (True, {"a": "b"}, False),
    ]
    assert (len(hand.sent), hand.pauses) == (1, [])


def test_nothing_to_ask(hand):
    """No requests: nothing is sent."""
    hand.drive(exchange(session_of(), []))
    assert hand.sent == []


@pytest.mark.parametrize("outcome", [LOADING, UNSENT, said("ERR max number of clients reached")])
def test_wait(hand, outcome):
    """The same is sent again after a pause, under the same call id; it has not run meanwhile."""
    request = asked(hand, [outcome], [outcome], [[0]])
    assert (request.reply, request.reply_lost, len(hand.pauses)) == ([0], False, 2)
    assert len(set(ids_in(hand))) == 1


def test_a_lost_reply(hand):
    """The same is sent again under the same call id; that a reply was lost stays known, the doubt ends."""
    request = asked(hand, [LOST], [[1]])
    assert (request.reply, request.reply_lost, request.in_doubt) == ([1], True, False)
    assert len(ids_in(hand)) == 2
    assert len(set(ids_in(hand))) == 1


def test_only_what_is_not_settled_is_sent_again(hand):
    """Of several requests the answered are not repeated, and each reply reaches the right one."""
    session = session_of(config_of(shards=4))
    requests = [writing(session, shard) for shard in range(4)]
    rounds = [[[0], LOADING, LOST, NOFILTER], [LOST, [2]], [[1]]]
    hand.drive(exchange(session, requests), *rounds)
    assert [len(commands) for commands in hand.sent] == [4, 2, 1]
    assert [each.reply for each in requests] == [[0], [1], [2], None]
    assert [each.reply_lost for each in requests] == [False, True, True, False]
    assert isinstance(requests[3].error, FilterNotFound)


def test_load_the_script(hand):
    """A missing script is loaded once for all who call it, and called again at once."""
    session = session_of(config_of(shards=2))
    requests = [writing(session, shard) for shard in range(2)]
    hand.drive(exchange(session, requests), [NOSCRIPT, NOSCRIPT], ["sha"], [[0], [0]])
    (loading,) = hand.sent[1]
    assert loading[:2] == ("SCRIPT", "LOAD")
    assert loading[2].startswith("-- insert: ")
    assert ([each.reply for each in requests], hand.pauses) == ([[0], [0]], [])


def test_a_script_that_is_missing_again(hand):
    """A server that forgets the script each time is not asked without a pause."""
    request = asked(hand, [NOSCRIPT], ["sha"], [NOSCRIPT], ["sha"], [[0]])
    assert (request.reply, len(hand.pauses)) == ([0], 1)


@pytest.mark.parametrize(("first", "kind"), [([], ServerUnavailable), ([[LOST]], AnswerLost)])
def test_loading_is_refused(hand, first, kind):
    """A server that refuses to load the script refuses the call; if a reply was lost before, the answer is lost."""
    session = session_of()
    request = writing(session)
    refused = said("NOPERM this user has no permissions to run the 'script|load' command")
    hand.drive(exchange(session, [request]), *first, [NOSCRIPT], [refused])
    assert type(request.error) is kind
    assert "mend its ACL" in str(request.error)
    assert request.in_doubt is (kind is AnswerLost)


def test_loading_fails_otherwise(hand):
    """A connection that breaks while the script is loaded tells nothing: the next attempt does."""
    request = asked(hand, [NOSCRIPT], [LOST], [[0]])
    assert (request.reply, request.reply_lost) == ([0], False)


def test_slices_that_were_out_of_date(hand):
    """The refusal tells them: nothing is read, and the calls name them, at once, under the same id."""
    session = session_of(config_of(shards=3, retention="ring", slices=3, period="1d"))
    requests = [writing(session, shard) for shard in (0, 2, 2)]
    slices = session.config.today.units, session.config.today.size
    stale = said(
        "STALE epoch 7, opened 1700, claims 0, live slices history_1:{}:{}:1 today:{}:{}:1".format(*slices, *slices)
    )
    hand.drive(exchange(session, requests), [[0], stale, stale], [[1], [1]])
    assert [each.name for each in session.view(2).slices] == ["history_1", "today"]
    assert [each.name for each in session.view(0).slices] == ["today"]
    assert all(session.keys.shard(2).slice("history_1") in command for command in hand.sent[1])
    assert (len(set(ids_in(hand))), hand.pauses) == (2, [])


def test_meta_that_is_damaged(hand):
    """Live slices that cannot be read are lost; the call that wanted them is not in doubt."""
    session = session_of()
    request = writing(session)
    with pytest.raises(SliceLost, match="damaged"):
        hand.drive(exchange(session, [request]), [said("STALE epoch 1, opened 2, claims 0, live slices today")])
    assert not request.in_doubt


@pytest.mark.parametrize(("first", "doubt"), [([], False), ([[LOST]], True)])
def test_full(hand, first, doubt):
    """What there is no room for is neither answered nor failed; a doubt about an earlier attempt remains."""
    request = asked(hand, *first, [FULL])
    assert (request.full, request.answered, request.error, request.in_doubt) == (True, False, None, doubt)


def test_full_at_the_deadline(hand):
    """It has no error: its caller makes the next slice, however long the server took to say so."""
    request = asked(hand, [LOADING], [FULL], took=2, total=3)
    assert (request.full, request.error) == (True, None)


@pytest.mark.parametrize(
    ("beside", "took"), [([[[0]]], 0), ([[TRYAGAIN], [TRYAGAIN], [[0]]], 10)], ids=["answered", "a slot that moves"]
)
def test_restoring_without_patience(hand, beside, took):
    """A filter that is being restored is told of at once; the call beside it is answered, and has its patience."""
    session = session_of(config_of(shards=2))
    one, other = writing(session), writing(session, 1)
    first, *later = beside
    hand.drive(exchange(session, [one, other]), [RESTORING, *first], *later, took=took)
    assert type(one.error) is Restoring
    assert (one.in_doubt, other.reply, len(hand.pauses)) == (False, [0], len(later))


def test_the_longer_patience_counts(hand):
    """A restore is waited for as long as the caller said, though a slot that moves would be given up sooner."""
    session = session_of(config_of(shards=2), restoring=30, migrating=1, total=1)
    one, other = writing(session), writing(session, 1)
    hand.drive(exchange(session, [one, other]), *[[RESTORING, TRYAGAIN]] * 4, [[0], [0]], took=4)
    assert (one.reply, other.reply) == ([0], [0])


def test_restoring_after_a_lost_reply(hand):
    """The call may have run before the restore began: the answer is lost."""
    request = asked(hand, [LOST], [RESTORING])
    assert type(request.error) is AnswerLost
    assert isinstance(request.error.__cause__, Restoring)
    assert request.in_doubt


def test_restoring_with_patience(hand):
    """It is waited for as long as the caller said, and then it is told."""
    request = asked(hand, *[[RESTORING]] * 3, [[0]], restoring=20)
    assert (request.reply, len(hand.pauses)) == ([0], 3)
    began = hand.now
    request = asked(hand, *[[RESTORING]] * 5, took=4, restoring=20)
    assert type(request.error) is Restoring
    assert 20 <= hand.now - began < 21


def test_patience_with_all_else_begins_after_the_restore(hand):
    """A restore that took long leaves the server its time to answer; a mixed pipeline waits for it, too."""
    session = session_of(config_of(shards=2), restoring=60, total=3)
    one, other = writing(session), writing(session, 1)
    rounds = [*[[RESTORING, LOADING]] * 5, [LOADING, LOADING], [LOADING, [1]], [[0]]]
    hand.drive(exchange(session, [one, other]), *rounds, took=1)
    assert (one.reply, other.reply) == ([0], [1])
    request = writing(session)
    hand.drive(exchange(session, [request]), *[[RESTORING]] * 5, *[[LOADING]] * 3, took=1)
    assert "gave up after 3 s" in str(request.error)
    assert type(request.error) is ServerUnavailable


LATER = st.integers(NOW, NOW + 2 * PROOF_LIFE)


@given(at=LATER, keyed=st.booleans(), lost=st.booleans())
def test_renewed_only_if_nothing_happened(at, keyed, lost):
    """A call that came late gets a new id if it was not in doubt, or provably never ran; else its answer is lost.

    One under a key finds its record, as long as that is kept. It keeps its slot and sequence, so that whoever repeats
    it makes the same.
    """
    session = session_of()
    request = writing(session, keyed=keyed)
    old = request.call_id
    flow = exchange(session, [request])
    step = next(flow)
    if lost:
        assert isinstance(flow.send([LOST]), Pause)
        step = flow.send(None)
    assert isinstance(step, Send)
    proven = at < NOW + PROOF_LIFE and (keyed or at >= NOW + CALL_LIFE)
    if lost and not proven:
        with pytest.raises(StopIteration):
            flow.send([late(at)])
        assert type(request.error) is AnswerLost
        assert request.in_doubt
        assert request.call_id == old
        return
    step = flow.send([late(at)])
    while not isinstance(step, Send):
        step = flow.send(None)
    new = request.call_id
    assert (new.client, new.slot, new.sequence) == (old.client, old.slot, old.sequence + (not keyed))
    assert 0 <= new.started - at < 1000
    assert str(new) in step.commands[0]
    with pytest.raises(StopIteration):
        flow.send([[0]])
    assert (request.reply, request.in_doubt) == ([0], False)


@pytest.mark.parametrize("later", [LOST, UNSENT], ids=["lost", "unsent"])
def test_a_key_is_not_renewed_for_longer_than_its_record_is_kept(later):
    """The time counts from the first attempt, however often the deadline was put off, and what became of the others."""
    session = session_of()
    request = writing(session, keyed=True)
    flow = exchange(session, [request])
    outcomes = [LOST, late(NOW + PROOF_LIFE // 2), later, late(NOW + PROOF_LIFE - 1), later]
    step = next(flow)
    for outcome in outcomes:
        while not isinstance(step, Send):
            step = flow.send(None)
        step = flow.send([outcome])
    while not isinstance(step, Send):
        step = flow.send(None)
    with pytest.raises(StopIteration):
        flow.send([late(NOW + PROOF_LIFE)])
    assert type(request.error) is AnswerLost
    assert request.in_doubt


def test_late_by_the_clock_of_another_node(hand):
    """A new master says "late" of a call that may have run at the old one: its answer is lost."""
    session = session_of()
    request = writing(session)
    request.numbered.call_id = old = request.call_id._replace(node="a:1")
    refusal = late(NOW + CALL_LIFE)
    refusal.node = "b:2"
    hand.drive(exchange(session, [request]), [LOST], [refusal])
    assert (type(request.error), request.in_doubt, request.call_id) == (AnswerLost, True, old)


def test_late_without_an_id(hand):
    """What has no call id cannot get a new one."""
    request = asked(hand, [late(NOW)], make=reading)
    assert type(request.error) is AnswerLost


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (said("LOST today is gone"), SliceLost),
        (said("BADARG no such step"), UriFilterError),
        (said("WRONGTYPE Operation against a key holding the wrong kind of value"), SliceLost),
        (said("ERR unknown command"), ServerUnavailable),
        (Unsent(AuthenticationError("invalid username-password pair")), ServerUnavailable),
    ],
)
def test_refused(hand, outcome, kind):
    """A refusal is not asked again; after a lost reply it is no longer known whether anything happened."""
    request = asked(hand, [outcome])
    assert (type(request.error), request.in_doubt, hand.pauses) == (kind, False, [])
    request = asked(hand, [LOST], [outcome])
    assert (type(request.error), request.in_doubt) == (AnswerLost, True)
    assert "a reply was lost" in str(request.error)
    question = asked(hand, [LOST], [outcome], make=reading)
    assert (type(question.error), question.in_doubt) == (kind, False)


def test_the_filter_is_gone(hand):
    """The error names the archive that may have it."""
    request = asked(hand, [NOFILTER], config=config_of("file:///archive"))
    assert type(request.error) is FilterNotFound
    assert "file:///archive" in str(request.error)


def test_died(hand):
    """A script that ended in its middle may have done a part: the answer of what writes is lost."""
    session = session_of()
    request, question = writing(session), reading(session)
    hand.drive(exchange(session, [request, question]), [DIED, DIED])
    assert (type(request.error), request.in_doubt) == (AnswerLost, True)
    assert "half done" in str(request.error)
    assert (type(question.error), question.in_doubt) == (ServerUnavailable, False)


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        (repeat([LOADING]), ServerUnavailable),
        (repeat([UNSENT]), ServerUnavailable),
        (repeat([LOST]), AnswerLost),
        ([[LOST], *[[LOADING]] * 100], AnswerLost),
    ],
    ids=["loading", "no connection", "lost", "lost once"],
)
def test_gives_up(hand, outcomes, kind):
    """After the total timeout nothing is sent again: lost if it may have run, else the server is not to be had."""
    session = session_of(total=3)
    request, began, left = writing(session), hand.now, iter(outcomes)
    flow = exchange(session, [request])
    step = next(flow)
    with pytest.raises(StopIteration):
        while True:
            hand.now += step.seconds if isinstance(step, Pause) else 0
            step = flow.send(next(left) if isinstance(step, Send) else None)
    assert (type(request.error), request.in_doubt) == (kind, kind is AnswerLost)
    assert "gave up after 3 s" in str(request.error)
    assert isinstance(request.error.__cause__, ServerUnavailable)
    assert 3 <= hand.now - began <= 3 + LONGEST_PAUSE


@pytest.mark.parametrize("first", [LOADING, LOST])
def test_a_script_is_missing_at_the_deadline(hand, first):
    """It is loaded, and the call sent once more; if it is missing again, that is told."""
    session = session_of(total=3)
    request, other = writing(session), writing(session)
    hand.drive(exchange(session, [request]), [first], [NOSCRIPT], ["sha"], [[1]], took=2)
    assert request.reply == [1]
    hand.drive(exchange(session, [other]), [first], [NOSCRIPT], ["sha"], [NOSCRIPT], took=2)
    assert "the server forgets scripts as soon as they are loaded" in str(other.error)


@pytest.mark.parametrize("failure", [LOST, UNSENT, LOADING])
def test_a_script_that_could_not_be_loaded(hand, failure):
    """The time is over then: that it could not be loaded is told, and not that the server forgets it."""
    request = asked(hand, [NOSCRIPT], [failure], [NOSCRIPT], took=2, total=3)
    assert "forgets scripts" not in str(request.error)
    assert "gave up after 3 s" in str(request.error)
    assert type(request.error) is ServerUnavailable


def test_time_in_which_nobody_waited(hand):
    """It is not taken off the total: a reply may be fetched long after its command was sent."""
    session = session_of(total=3)
    request = writing(session)
    flow = exchange(session, [request])
    step = next(flow)
    step.idle = 10.0
    hand.now += 11
    assert isinstance(flow.send([LOADING]), Pause)


@pytest.mark.parametrize("outcome", [CLUSTERDOWN, MOVED, TRYAGAIN, Unsent(CLUSTERDOWN)])
@pytest.mark.parametrize("lost", [False, True])
def test_the_nodes_do_not_agree_until_the_deadline(hand, outcome, lost):
    """That is told, and no missing right; "nothing was changed" only if no attempt can have run."""
    session = session_of(total=3, migrating=0)
    session.routes = Routes(["a:1", "b:2"])
    request = writing(session)
    hand.drive(exchange(session, [request]), [LOST if lost else outcome], [outcome], took=2)
    assert type(request.error) is (AnswerLost if lost else ServerUnavailable)
    assert "Redis Cluster" in str(request.error)
    assert "this user may not" not in str(request.error)
    assert ("nothing was changed" in str(request.error)) is not lost


def test_an_ask_is_for_one_attempt(hand):
    """The node that it names is asked once; then the slot's master again, which may have the slot back."""
    session = session_of()
    session.routes = Routes(["a:1", "b:2"])
    request, ASK.node = writing(session), "b:2"
    hand.drive(exchange(session, [request]), [ASK], [TRYAGAIN], [[0]])
    assert [getattr(commands[0], "node", "") for commands in hand.sent] == ["", "b:2", ""]


def test_a_replica_without_the_script(hand):
    """It is loaded there, and the replica is asked again; after a refusal the master is."""
    session = session_of()
    request = Request(writing(session).build, 0, replica=True, reads=True)
    hand.drive(exchange(session, [request]), [NOSCRIPT], ["sha"], [LOADING], [[0]])
    assert hand.sent[1][0][:2] == ("SCRIPT", "LOAD")
    assert [getattr(hand.sent[number][0], "replica", False) for number in (0, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("reads", "asked"), [((False, True), True), ((True, True), False)])
def test_whether_a_server_has_saved_its_answers(hand, reads, asked):
    """That is asked if any command of the pipeline wrote; if it has not, no answer of the pipeline is believed."""
    session = session_of(config_of(shards=2))
    session.confirms = True
    requests = [writing(session, shard) for shard in range(2)]
    for request, question in zip(requests, reads, strict=True):
        request.reads = question
    unsaved = [[said("MISCONF Errors writing to the AOF file: No space left on device")], [[1], [1]], ["PONG"]]
    hand.drive(exchange(session, requests), [[0], [0]], *(unsaved if asked else []))
    assert [each.reply for each in requests] == ([[1], [1]] if asked else [[0], [0]])


def test_another_node_that_this_user_may_not_ask_for(hand):
    """A missing right is told at once."""
    request = asked(hand, [MOVED], total=3)
    assert "this user may not ask for it (CLUSTER SLOTS)" in str(request.error)


@pytest.mark.parametrize(
    ("routes", "total"),
    [
        (Routes(alone=True), 3),
        (Routes(reads_replicas=True), 3),
        (Routes(["a:1"]), 30),
        (Routes(service=Service("crawl", ("a:1",))), 30),
    ],
    ids=["a server", "with replicas", "a cluster", "Sentinels"],
)
@pytest.mark.usefixtures("usual_timeouts")
def test_the_total(routes, total):
    """It is longer where another server may have to take the place of one, unless the caller says it."""
    left_open, given = session_of(total=None), session_of(total=5)
    left_open.routes = given.routes = routes
    assert (left_open.total, given.total) == (total, 5)


def test_a_question_is_never_lost(hand):
    """What may be repeated freely is not to be had, whatever was lost."""
    question = asked(hand, [LOST], [LOST], took=2, total=3, make=reading)
    assert type(question.error) is ServerUnavailable


@pytest.mark.parametrize("seed", range(5))
def test_pauses(hand, seed):
    """Each pause is drawn from the upper half of a length that doubles up to the longest."""
    random.seed(seed)
    session = session_of(total=1000)
    hand.drive(exchange(session, [reading(session)]), *[[UNSENT]] * 12, [{}])
    lengths = [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(12)]
    assert len(hand.pauses) == 12
    assert all(length / 2 <= pause <= length for pause, length in zip(hand.pauses, lengths, strict=True))
    assert len(set(hand.pauses)) == 12


def test_a_pause_that_was_asked_for(hand):
    """The longest that a connector wants for any of its outcomes."""
    session = session_of(config_of(shards=3), total=100)
    requests = [writing(session, shard) for shard in range(3)]
    busy = [Decided(ServerUnavailable("busy"), Decision.WAIT, pause) for pause in (7.0, 2.0)]
    hand.drive(exchange(session, requests), [*busy, [0]], [[0], [0]])
    assert hand.pauses == [7.0]


#: Outcomes, and whether the call may have run by each.
ANY = st.sampled_from([LOST, UNSENT, LOADING, NOSCRIPT, STALE])


@given(st.lists(ANY, max_size=6), st.integers(0, 20))
def test_interrupted_anywhere(outcomes, at):
    """Ctrl-C at any step: a call is in doubt if it is under way then, or a reply was lost before."""
    session = session_of(total=1000)
    request = writing(session)
    flow, left, doubt, steps = exchange(session, [request]), iter([*outcomes, [0]]), False, 0
    step = next(flow)
    while True:
        under_way = isinstance(step, Send) and step.commands[0][0] == "EVALSHA"
        if steps == at:
            with pytest.raises(KeyboardInterrupt):
                flow.throw(KeyboardInterrupt)
            assert request.in_doubt is (under_way or doubt)
            assert not request.settled
            return
        assert request.in_doubt or not under_way
        outcome = next(left) if under_way else [LOADING]
        doubt = doubt or outcome is LOST
        try:
            step = flow.send([outcome] if under_way else outcome)
        except StopIteration:
            break
        steps += 1
    assert (request.reply, request.in_doubt) == ([0], False)


ENDS = st.sampled_from([[0], FULL, RESTORING, NOFILTER, DIED, late(NOW + PROOF_LIFE)])


@given(st.lists(st.lists(ANY, max_size=4), min_size=1, max_size=4), st.lists(ENDS, min_size=4, max_size=4))
def test_every_request_ends_in_one_way(before, ends):
    """Answered, full or failed, each by its own outcomes; lost exactly if it may have run and there is no answer."""
    session = session_of(config_of(shards=4), total=1000)
    requests = [writing(session, shard) for shard in range(len(before))]
    left = {n: iter([*some, *repeat(ends[n], 2), [9]]) for n, some in enumerate(before)}
    doubtful = {n: LOST in some for n, some in enumerate(before)}

    def outcomes(commands):
        shards = [next(n for n in left if session.keys.shard(n).meta == command[3]) for command in commands]
        return [next(left[shard]) for shard in shards]

    flow = exchange(session, requests)
    step = next(flow)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(step, Pause):
                step = flow.send(None)
            elif step.commands[0][0] == "EVALSHA":
                step = flow.send(outcomes(step.commands))
            else:
                step = flow.send([{}] * len(step.commands))
    for n, request in enumerate(requests):
        assert request.answered + request.full + (request.error is not None) == 1
        lost = request.error is not None and (doubtful[n] or ends[n] is DIED)
        assert isinstance(request.error, AnswerLost) is lost
        assert request.in_doubt is (lost or (request.full and doubtful[n]))
