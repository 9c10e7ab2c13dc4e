"""The exchange: the loop that sends requests, and alone decides which are sent again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from urifilter_redis.engine.steps import Flow, Meanwhile, Pause, Send
from urifilter_redis.errors import (
    AnswerLost,
    ConfigMismatch,
    FilterNotFound,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.protocol.acl import MEND
from urifilter_redis.protocol.call_ids import CallId
from urifilter_redis.protocol.calls import Arguments, Call
from urifilter_redis.protocol.outcomes import (
    FORBIDDEN_KEY,
    NO_ANSWERS,
    Decided,
    Decision,
    Unanswered,
    Unsent,
    decide,
    error_of,
    fields_of_stale,
    forbids_command,
    forbids_key,
    is_ask,
    is_readonly,
    late_at,
    node_of,
    text_in,
    text_of,
    unsaved,
)
from urifilter_redis.protocol.routing import for_node, for_replica, key_of, like

if TYPE_CHECKING:
    from urifilter_redis.engine.batch import OpenCall
    from urifilter_redis.engine.combined_call import CombinedCall
    from urifilter_redis.engine.session import Session

#: The share of the longest wait for a reply that replicas have to receive an answer.
SHARE = 0.8

#: Seconds of the first pause before requests are sent again. Each pause is twice the one before, up to the longest.
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5

_WAITING = {Decision.WAIT, Decision.IN_DOUBT, Decision.RESTORING, Decision.MIGRATING}


@dataclass(slots=True, eq=False)
class Request:
    """A command, and what its attempts have brought so far.

    Attributes:
        build: makes the command anew for each attempt, because live slices and call ids change.
        shard: the shard whose live slices the command names; None: it names none.
        numbered: the call with a call id that is sent; None: the command may be repeated freely.
        reply_lost: whether a reply was lost, so that an earlier attempt may have run.
        sent: whether an attempt that failed may have reached the server.
        answered: whether ``reply`` is the answer.
        full: whether the command did not run because today has no room. It will run under the same call id after the
            next slice was made.
        due: whether the command did not run because the filter must turn first; likewise.
        replica: whether a replica of the shard's master may answer; after a refusal the master is asked.
        reads: whether the command is known to change nothing.
        asked: the node to which an ASK has sent the next attempt; empty: none has.
        error: the reason why the request was given up; None: it was not.
    """

    build: Callable[[Request], Call | Arguments]
    shard: int | None = None
    numbered: Numbered | None = None
    reply_lost: bool = False
    sent: bool = False
    answered: bool = False
    full: bool = False
    due: bool = False
    replica: bool = False
    reads: bool = False
    asked: str = ""
    reply: Any = None
    error: UriFilterError | None = field(default=None, repr=False)

    @classmethod
    def of(cls, made: Call | Arguments) -> Request:
        """Make a request of a command or call that may be repeated freely."""
        return cls(lambda _: made)

    @property
    def call_id(self) -> CallId | None:
        """The call id; None if the command may be repeated freely."""
        return None if self.numbered is None else self.numbered.call_id

    @property
    def in_doubt(self) -> bool:
        """Whether the command has a call id and may have run without an answer, or may still run."""
        return self.numbered is not None and self.numbered.in_doubt and not self.answered

    @in_doubt.setter
    def in_doubt(self, doubt: bool) -> None:
        if self.numbered is not None:
            self.numbered.in_doubt = doubt

    @property
    def settled(self) -> bool:
        """Whether the exchange has finished with the request."""
        return self.answered or self.full or self.due or self.error is not None

    def command(self) -> Arguments:
        """Return the command for the next attempt."""
        made = self.build(self)
        command = made if isinstance(made, tuple) else made.command()
        if self.asked:
            return for_node(command, self.asked, asking=True)
        return for_replica(command) if self.replica else command

    def source(self) -> str:
        """Return the source of the called script; "" if the command calls none."""
        made = self.build(self)
        return "" if isinstance(made, tuple) else made.script.source


class Numbered(Protocol):
    """A call that is sent under a call id. Its attributes are right at any moment, because Ctrl-C may come at any.

    Attributes:
        call_id: the call id of every attempt.
        in_doubt: whether the call may have run without an answer, or may still run. An exchange leaves a call that is
            answered in doubt; the caller of the exchange ends the doubt when it has noted the answer.
    """

    call_id: CallId | None
    in_doubt: bool


class Turn:
    """The time in which a combined call, or a call sent alone, has the queue of the calls that wait.

    The turn ends early for the shards that answer the first attempt. So a shard that is away, or being restored, keeps
    no other shard waiting.

    Args:
        free: goes on with the waiting calls to all shards but some; gets those shards, and those of the time before
            (None: there was none).

    Attributes:
        combined: the combined call; None: it is not taken yet, or a call is sent alone.
    """

    __slots__ = ("_began", "_free", "_held", "_note", "_requests", "_window", "combined")

    def __init__(self, free: Callable[[set[int], set[int] | None], object]) -> None:
        self._free, self._began = free, time.monotonic()
        self._held: set[int] | None = None
        self.combined: CombinedCall | None = None

    def send(self, window: Sequence[OpenCall], requests: Sequence[Request], note: Callable[[], object]) -> None:
        """Begin to send some calls, each by a request; ``note`` notes the answers that have arrived for them."""
        self._window, self._requests, self._note = window, requests, note

    @property
    def began(self) -> float:
        """The time by ``monotonic`` at which the last of the callers began to wait."""
        return self._began if self.combined is None else self.combined.began

    def leave(self, request: Request, before: float, error: UriFilterError) -> None:
        """Tell an error to the callers of an unsettled request that began at ``before`` or earlier.

        A request that was never sent, and for which no caller waits any more, gets the error.
        """
        call = self._window[self._requests.index(request)]
        call.sent = call.sent or request.sent
        if self.combined is not None and not self.combined.leave(call, before, error):
            request.error = error

    def repeat(self, waiting: Sequence[Request]) -> None:
        """Note that all requests but these are settled; these are sent again after a pause."""
        self._note()
        if self.combined is not None:
            self.combined.note()
        self.end({request.shard for request in waiting if request.shard is not None})

    def end(self, held: set[int] | None = None) -> None:
        """Go on with the waiting calls, but for those to the ``held`` shards."""
        before, self._held = self._held, held or set()
        self._free(self._held, before)


def exchange(
    session: Session, requests: Sequence[Request], turn: Turn | None = None, meanwhile: Meanwhile | None = None
) -> Flow[None]:
    """Send requests in one pipeline, and send unsettled ones again in the next, until all are settled.

    Afterwards each request is ``answered``, ``full`` or ``due``, or has an ``error``; one in doubt may still run.
    The time counts from the beginning of the exchange, or from the ``began`` of the turn in which other callers wait.
    ``meanwhile`` goes with the first pipeline (see ``Send``).
    """
    waiting, began, again = requests, time.monotonic(), None
    while waiting:
        commands, doubts = [], []
        for request in waiting:
            commands.append(request.command())
            numbered = request.numbered
            doubts.append(numbered is not None and numbered.in_doubt)
            if numbered is not None:
                numbered.in_doubt = True  # until the outcome is settled, or the answer noted
        replication = None
        if session.wait_replicas:
            replication = _Replication(session, commands, [each.numbered is not None for each in waiting])
        sending, meanwhile = Send(commands if replication is None else replication.commands, meanwhile), None
        outcomes = yield sending
        began += sending.idle  # in which nobody waited
        if replication is not None:
            outcomes = replication.decided(outcomes)
        if session.confirms and any(
            command[0] == "EVALSHA" and not request.reads for request, command in zip(waiting, commands, strict=True)
        ):
            outcomes = yield from _confirmed(outcomes)
        missed = []
        for request, outcome, in_doubt in zip(waiting, outcomes, doubts, strict=True):
            if isinstance(outcome, NO_ANSWERS):
                missed.append((request, outcome, _settle(session, request, outcome, in_doubt=in_doubt)))
            else:
                request.reply, request.answered = outcome, True
        if not missed:
            return
        again = again or _Again(session, began, turn)
        waiting = yield from again.prepare(missed)


class _Replication:
    """A pipeline with a WAIT for each node that gets a call with a call id.

    A WAIT goes behind the calls, over the same connection, and so is for all that they have written.

    Args:
        numbered: for each command whether it is a call with a call id.

    Attributes:
        commands: the commands with those that are added.
    """

    def __init__(self, session: Session, commands: Sequence[Arguments], numbered: Sequence[bool]) -> None:
        self._routes, self._wanted, self._numbered = session.routes, session.wait_replicas, numbered
        self._map = session.routes.map
        # 0 would be for ever
        wait = ("WAIT", str(self._wanted), str(max(1, int(1000 * SHARE * session.timeouts.reply))))
        self._waits: dict[str | None, Arguments] = {}
        self._nodes: list[str | None] = []
        for command, is_numbered in zip(commands, numbered, strict=True):
            node = self._routes.node_of(command)
            self._nodes.append(node)
            if is_numbered:
                self._waits[node] = like(wait, command)
        self.commands = [*commands, *self._waits.values()]

    def decided(self, outcomes: Sequence[Any]) -> list[Any]:
        """Return the outcome of each command.

        If the map of the nodes has changed meanwhile, it is not certain which WAIT is for which answer.
        """
        count = len(self._numbered)
        told, known = list(outcomes[:count]), self._routes.map is self._map
        reached = dict(zip(self._waits, outcomes[count:], strict=True)) if known else {}
        for position, is_numbered in enumerate(self._numbered):
            if is_numbered and decide(told[position]) is Decision.ANSWERED:
                found = reached.get(self._nodes[position])
                if not isinstance(found, int) or found < self._wanted:
                    told[position] = self._lost(found)
        return told

    def _lost(self, found: Any) -> Unanswered:
        if isinstance(found, int):
            return Unanswered(ConnectionError(f"{found} of {self._wanted} replicas have the answer"))
        error = found.error if isinstance(found, Unanswered | Unsent) else found
        why = "the nodes have changed meanwhile" if found is None else str(error) or type(error).__name__
        return Unanswered(ConnectionError(f"it is not known how many replicas have the answer: {why}"))


def _confirmed(outcomes: Sequence[Any]) -> Flow[Sequence[Any]]:
    """Return the outcomes, and as lost those whose effect the server may not have saved.

    The server writes its file before it takes the next command, and answers although the writing has failed. From then
    on it refuses PING and all commands that write, until it has written the rest.
    """
    (told,) = yield Send([("PING",)])
    if decide(told) is Decision.ANSWERED:
        return outcomes
    lost = unsaved(told)
    return [lost if decide(each) is Decision.ANSWERED else each for each in outcomes]


class _Again:
    """The time and the pauses of an exchange in which requests are sent again."""

    def __init__(self, session: Session, began: float, turn: Turn | None) -> None:
        self._session, self._turn = session, turn
        self._began = began if turn is None else turn.began
        self._patient = {Decision.RESTORING: session.timeouts.restoring, Decision.MIGRATING: session.timeouts.migrating}
        self._restored = -math.inf
        self._pauses, self._repeated = _pauses(), False
        # by request and node the outcome of loading its script that failed; None: it was loaded, or is to be
        self._loaded: dict[tuple[Request, str], Any] = {}

    def prepare(self, missed: Sequence[tuple[Request, Any, Decision]]) -> Flow[list[Request]]:
        """Do what comes before requests are sent again, and return those; give up what took too long."""
        self._give_up(missed)
        unsettled = [(request, decision, outcome) for request, outcome, decision in missed if not request.settled]
        self._loaded |= yield from _prepare(self._session, unsettled)
        waiting = [request for request, _, _ in unsettled if not request.settled]
        if waiting and self._turn is not None:
            self._turn.repeat(waiting)
        if waiting and (self._repeated or any(decision in _WAITING for _, decision, _ in unsettled)):
            wanted = [outcome.pause for _, outcome, _ in missed if isinstance(outcome, Decided)]
            yield Pause(max([next(self._pauses), *wanted]))
        self._repeated = True
        return waiting

    def _give_up(self, missed: Sequence[tuple[Request, Any, Decision]]) -> None:
        """Give up the requests, or the callers of requests, whose time is over."""
        now, timeouts, total = time.monotonic(), self._session.timeouts, self._session.total
        decisions = {decision for *_, decision in missed}
        longer = [patience for decision, patience in self._patient.items() if decision in decisions]
        waits = now < self._began + max(longer, default=-math.inf)
        if waits:
            self._restored = now  # the time for all other failures counts from the end of that
        over = now - (max(longer) if waits else total)
        if now < self._restored + total and not waits:
            over = -math.inf
        for request, outcome, decision in missed:
            request.sent = request.sent or not isinstance(outcome, Unsent)
            if request.settled:
                continue
            why = outcome
            if decision is Decision.LOAD_SCRIPT:
                missing = (request, node_of(outcome))
                if missing not in self._loaded:
                    self._loaded[missing] = None  # it works again, and would run the call
                    continue
                why = self._loaded[missing] or outcome
            error = _given_up(self._session, request, why)
            if over >= self._began or (decision is Decision.RESTORING and now >= self._began + timeouts.restoring):
                request.error = error
            elif self._turn is not None:
                self._turn.leave(request, over, error)


def _settle(session: Session, request: Request, outcome: Any, *, in_doubt: bool) -> Decision:
    """Note an outcome that is no answer and return the decision; ``in_doubt``: whether an earlier attempt may have run.

    ``request.in_doubt`` is set last, so that the request is in doubt until all else is noted.
    """
    decision = _decide_again(session, request, outcome, decide(outcome))
    if decision is Decision.IN_DOUBT:
        request.reply_lost, in_doubt = True, True
    elif decision is Decision.RESTORING:  # the archive may be older than what was answered before
        session.clear_near()
    elif decision is Decision.FULL:
        request.full = True
    elif decision is Decision.DUE:
        request.due = True
    elif decision is Decision.RENEW:
        in_doubt = _renew(session, request, outcome, in_doubt=in_doubt)
    elif decision in {Decision.REFUSED, Decision.DIED}:
        in_doubt = request.call_id is not None and (in_doubt or decision is Decision.DIED)
        request.error = _refused(session, request, outcome, in_doubt=in_doubt, died=decision is Decision.DIED)
    if request.numbered is not None:
        request.numbered.in_doubt = in_doubt
    return decision


def _decide_again(session: Session, request: Request, outcome: Any, decision: Decision) -> Decision:
    """Return the decision about an outcome that is no answer, with regard to the routes."""
    request.asked = node_of(outcome) if is_ask(outcome) else ""
    if request.replica and decision is not Decision.LOAD_SCRIPT:
        request.replica = False  # a replica may be behind, or away
        return Decision.MOVED
    if decision is Decision.MOVED and session.routes.alone:  # this user may not ask for the nodes
        return Decision.REFUSED
    if is_readonly(outcome) and session.routes.follows:  # it was the master; another is, and is found
        return Decision.WAIT
    return decision


def _refused(session: Session, request: Request, outcome: Any, *, in_doubt: bool, died: bool) -> UriFilterError:
    """Return the error of a refused request; ``in_doubt``: an attempt may have run, or may still run."""
    error = error_of(outcome, session.where, in_doubt=in_doubt, alone=session.routes.alone)
    if forbids_key(outcome):
        error = ServerUnavailable(f"{error}; {FORBIDDEN_KEY} {text_in(key_of(request.command()))}")
    elif forbids_command(outcome) and (lacking := _lacking(session, request)):
        error = ServerUnavailable(f"{session.where}: {lacking}, and nothing was changed: {MEND} ({text_of(outcome)})")
    elif isinstance(error, FilterNotFound):
        error = session.not_found(text_of(outcome))
    elif isinstance(error, ConfigMismatch | SliceLost):
        session.clear_near()
    if not in_doubt:
        return error
    why = "it may be half done" if died else "a reply was lost, and asking again failed"
    return AnswerLost(f"{why}: {error}")


def _lacking(session: Session, request: Request) -> str:
    """Return a text about the commands of a script that this user may not run; "" if opening the filter found none.

    The server does not always say which command of a script it refused.
    """
    made = request.build(request)
    if isinstance(made, tuple) or not (missing := [*filter(made.script.calls, session.forbidden)]):
        return ""
    return f"this user may not run {', '.join(missing)}, which {made.script.name.partition(':')[0]} calls"


def _renew(session: Session, request: Request, outcome: Any, *, in_doubt: bool) -> bool:
    """Give a call that came past its deadline a new id, if it certainly did nothing, or its record is certainly kept.

    Otherwise the request gets an error. Return whether the call may have run.
    """
    now, numbered, call_id = late_at(outcome), request.numbered, request.call_id
    clock = session.ids.clock_of(node_of(outcome))
    clock.learn(now)
    if numbered is None or call_id is None or (in_doubt and not call_id.may_be_renewed(now, clock.node)):
        text = "the answer of a call that may have inserted is lost: its record is too old to be certain"
        request.error = AnswerLost(f"{session.where}: {text} ({outcome})")
        return in_doubt
    numbered.call_id = session.ids.renew(call_id, clock)
    return in_doubt and call_id.keyed  # the new attempt may find the record of the old one


def _given_up(session: Session, request: Request, outcome: Any) -> UriFilterError:
    """Return the error of a request that is not sent again after this outcome."""
    error, decision = error_of(outcome, session.where, in_doubt=request.in_doubt), decide(outcome)
    if request.in_doubt or decision is not Decision.RESTORING:
        kind = AnswerLost if request.in_doubt else ServerUnavailable
        patience = session.total
        if decision is Decision.MIGRATING:
            patience = max(patience, session.timeouts.migrating)
        told = kind(f"{error}; gave up after {patience:g} s")
        told.__cause__ = error
        return told
    return error


def _prepare(
    session: Session, unsettled: Sequence[tuple[Request, Decision, Any]]
) -> Flow[dict[tuple[Request, str], Any]]:
    """Load the scripts that the server does not have, and note the live slices that have changed.

    If the server refuses to load a script, its requests are refused. Return any other failure, or None, by request and
    node: if the next attempt finds no script either, that is the reason.
    """
    loaded: dict[tuple[Request, str], Any] = {}
    missing = [(request, outcome) for request, decision, outcome in unsettled if decision is Decision.LOAD_SCRIPT]
    if missing:
        loads = sorted({(node_of(outcome), request.source()) for request, outcome in missing})
        outcomes = yield Send([for_node(("SCRIPT", "LOAD", source), node) for node, source in loads])
        refusal = next((each for each in outcomes if decide(each) is Decision.REFUSED), None)
        if refusal is not None:
            for request, _ in missing:
                _settle(session, request, refusal, in_doubt=request.in_doubt)
        told = dict(zip(loads, outcomes, strict=True))
        for request, outcome in missing:
            answer = told[node_of(outcome), request.source()]
            loaded[request, node_of(outcome)] = None if decide(answer) is Decision.ANSWERED else answer
    for request, decision, outcome in unsettled:
        if decision is Decision.REFRESH and request.shard is not None:
            session.learn_turn(request.shard, fields_of_stale(outcome))
    return loaded


def _pauses() -> Iterator[float]:
    """Yield the seconds of doubling pauses. Each is random between its half and whole, so that clients spread out."""
    pause = FIRST_PAUSE
    while True:
        yield random.uniform(pause / 2, pause)  # noqa: S311 - nothing secret
        pause = min(2 * pause, LONGEST_PAUSE)
