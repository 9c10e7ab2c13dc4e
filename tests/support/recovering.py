"""The four clients as one, behind a network that loses what a test wants: of the library and of the SDK, each twice.

``Client`` has the calls of all of them, blocking. So each promise about lost answers, interruptions, forks and
time-outs is said once, in ``tests/contract/recovery``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import signal
import threading
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from support.blocked import Clients
from support.forked import in_child
from support.proxy import Fault, HttpProxy, Proxy, first, never
from support.servers import PATIENCE, wait_until
from urifilter_redis import AnswerLost, Timeouts
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.errors import FilterAPIError, UriFilterError
from urifilter_redis.protocol.outcomes import Unsent

BLOCKING = ("blocking", "sdk")

#: When a call is interrupted.
WHEN = ["before it is sent", "after it was answered"]

#: Settings of the filter: with this seed ``ITEMS`` are of all shards.
PRECISE = {"capacity": 100_000, "error_rate": 1e-9, "shards": 3, "seed": 1}
ITEMS = [f"https://example.com/{number}" for number in range(12)]

#: Items of one request of the SDK, so that a call has as many requests as the library's has shards.
ITEMS_A_REQUEST = 4

PATIENT = Timeouts(connect=20, reply=20, total=30)

#: A lease that does not end, and has no beat, while a test runs.
LEASE = 3600


class Client(Clients):
    """One of the four clients, with the filter "news" open behind a proxy; a context manager.

    Attributes:
        news: the filter: its methods, with the filter's name said, and blocking.
        mine: claims of ``news``.
        network: the proxy.
    """

    def __init__(self, kind: str, server, service, timeouts: Timeouts = PATIENT) -> None:
        super().__init__(kind)
        self._timeouts = timeouts
        self.network = HttpProxy(service.port) if self.is_sdk else Proxy(server.port)
        self.news = self.open()

    def open(self, name: str = "news"):
        """Open a filter with another object of the same kind."""
        return super().open(name, redis=self.network.url, timeouts=self._timeouts)

    @functools.cached_property
    def mine(self):
        return self.news.claims(lease=LEASE)

    @property
    def interruption(self) -> type[BaseException]:
        """What ends a call from outside."""
        return asyncio.CancelledError if self.awaited else KeyboardInterrupt

    @property
    def asked(self) -> int:
        """The number of requests, or calls of scripts, that have come to the network."""
        return self.network.counts.total()

    @property
    def session(self):
        """What the first object knows."""
        return self._sessions[0]

    @property
    def _sessions(self) -> list:
        return [each._api.session if self.is_sdk else each._session for each in self.made]

    def enter(self):
        """Begin a ``with`` block of the object."""
        made = self.made[0]
        return self.wait(made.__aenter__() if self.awaited else made.__enter__())

    def code_of(self, error: BaseException) -> str:
        """What an error says, in the words of the service."""
        assert isinstance(error, FilterAPIError) is self.is_sdk, error
        return error.error_code if self.is_sdk else _CODES[type(error).__name__]

    @contextlib.contextmanager
    def hurried(self):
        """Have each call tried once, whatever the machine's speed."""
        self.set_total(0)
        try:
            yield
        finally:
            self.set_total(self._timeouts.total)

    def set_total(self, seconds: float) -> None:
        """Let calls, also one that runs, take so long."""
        timeouts = replace(self._timeouts, total=seconds)
        for each, session in zip(self.made, self._sessions, strict=True):
            session.timeouts = timeouts
            if self.is_sdk:
                each._api._timeouts = timeouts

    def lose(self, call, *arguments, after: int = 0, fault: Fault = Fault.CUT_AFTER, **more):
        """Make a call that runs and whose answers are lost, but for the first ``after``; return its error."""
        self.network.plan = first(*[Fault.PASS] * after, *[fault] * 1000)
        error = self.fail(call, *arguments, **more)
        self.network.plan = never
        return error

    def fail(self, call, *arguments, **more) -> UriFilterError:
        """Make a call that fails, at its first attempt; return its error."""
        with self.hurried(), pytest.raises(UriFilterError) as caught:
            call(*arguments, **more)
        return caught.value

    def meet(self, fault: Fault, after: int = 0) -> None:
        """Have the next request meet a fault, or a later one."""
        self.network.plan = first(*[Fault.PASS] * after, fault)

    @contextlib.contextmanager
    def under_way(self, call, *arguments, **more):
        """Have a call wait at the network, in a thread, while the block lasts; yield the list that gets its answer."""
        begun, go_on, answer = threading.Event(), threading.Event(), []

        def hold(_) -> Fault:
            begun.set()
            go_on.wait(PATIENCE)
            return Fault.PASS

        self.network.plan = hold
        asking = threading.Thread(target=lambda: answer.append(call(*arguments, **more)))
        asking.start()
        try:
            wait_until(begun.is_set, "nothing is asked")
            yield answer
        finally:
            self.network.plan = never
            go_on.set()
            asking.join()

    def interrupt(self, monkeypatch, call, *arguments, at: int = 1, sent: bool = True, **more) -> bool:
        """Make a call that is interrupted at its ``at``-th sending, before it or after it; return whether it was."""
        begun = itertools.count(1)

        def is_now(step) -> bool:
            return isinstance(step, Send) and next(begun) == at

        perform, perform_async = driver.perform_step, driver.perform_step_async

        def stopping(step, sender):
            now = is_now(step)
            outcome = perform(step, sender) if sent or not now else None
            if now:
                raise KeyboardInterrupt
            return outcome

        async def stopping_async(step, sender):
            now = is_now(step)
            outcome = await perform_async(step, sender) if sent or not now else None
            if now:
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            return outcome

        with monkeypatch.context() as patched:
            patched.setattr(driver, "perform_step", stopping)
            patched.setattr(driver, "perform_step_async", stopping_async)
            try:
                call(*arguments, **more)
            except self.interruption:
                return True
            return False

    def interrupt_hanging(self, call, *arguments) -> None:
        """Make a call that runs and is never answered, and interrupt it: by a signal, or by cancelling its task."""
        self.network.plan = first(Fault.HANG)
        caller = threading.get_ident()

        def cancel() -> None:
            calls = [each for each in asyncio.all_tasks(self._loop) if each.get_name() != "urifilter-beat"]
            min(calls, key=lambda each: int(each.get_name().rpartition("-")[2])).cancel()

        def press() -> None:
            wait_until(lambda: self.network.counts[Fault.HANG], "nothing is asked")
            if self.awaited:
                self._loop.call_soon_threadsafe(cancel)
            else:
                signal.pthread_kill(caller, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
        pressing = threading.Thread(target=press)
        pressing.start()
        try:
            with pytest.raises(self.interruption):
                call(*arguments)
        finally:
            pressing.join()
            signal.signal(signal.SIGUSR1, before)

    def cancel_after(self, rounds: int, call, *arguments):
        """Make a call in a task that is cancelled after so many rounds of its loop; return its answers, or None."""

        async def cancel(task) -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()

        waited, loop = self._loop.run_until_complete, self._loop

        def run(asking):
            task = loop.create_task(asking)
            loop.create_task(cancel(task))
            return waited(task)

        loop.run_until_complete = run
        try:
            return call(*arguments)
        except asyncio.CancelledError:
            return None
        finally:
            del loop.run_until_complete

    @contextlib.contextmanager
    def away(self, monkeypatch):
        """Let there be no connection to be had."""
        perform, perform_async = driver.perform_step, driver.perform_step_async

        def unsent(step, sender):
            return _unsent(step) if isinstance(step, Send) else perform(step, sender)

        async def unsent_async(step, sender):
            return _unsent(step) if isinstance(step, Send) else await perform_async(step, sender)

        with monkeypatch.context() as patched:
            if self.is_sdk:
                patched.setattr(self.made[0]._api, "url", httpx.URL("http://127.0.0.1:9"))
            else:
                patched.setattr(driver, "perform_step", unsent)
                patched.setattr(driver, "perform_step_async", unsent_async)
            yield

    def in_a_child(self, work):
        """Run ``work`` in a forked child, in an event loop of the child's; return its answer."""

        def begun():
            if self.awaited:
                self._loop = asyncio.new_event_loop()
                for each in [*self._opened, *([self.mine] if "mine" in self.__dict__ else [])]:
                    each._loop = self._loop
            return work()

        return in_child(begun)

    def __exit__(self, *_) -> None:
        self.network.plan = never
        super().__exit__()
        self.network.__exit__()


def _unsent(step: Send) -> list[Unsent]:
    return [Unsent(ConnectionError("no connection"))] * len(step.commands)


_CODES = {
    AnswerLost.__name__: "answer_lost",
    "ServerUnavailable": "unreachable",
    "FilterNotFound": "filter_not_found",
    "Restoring": "restoring",
    "BadItem": "bad_item",
    "ConfigMismatch": "config_mismatch",
    "SliceLost": "slice_lost",
}


@dataclass(frozen=True)
class Call:
    """A call about items that changes the filter.

    Attributes:
        method: its name.
        command: the plainest method of its kind, which errors name.
        answer: what it answers for an item of which it says "new", or does what it is for.
        otherwise: what it answers when it is made anew after that.
        before: the method by which its items came where it finds them.
        of_claims: whether the method is one of claims.
    """

    method: str
    command: str
    answer: object = True
    otherwise: object = False
    before: str | None = None
    of_claims: bool = False

    @property
    def kind(self) -> str:
        """The name that refusals of ``retry=`` have for its kind: rejecting is a commit with a reason."""
        return "(reject|commit)" if self.command == "reject" else self.command

    def of(self, client: Client):
        """Return the method of a client."""
        return getattr(client.mine if self.of_claims else client.news, self.method)

    def prepare(self, client: Client, items: list[str] = ITEMS) -> None:
        """Bring items where the call finds them."""
        if self.before is not None:
            before = getattr(client.mine if self.of_claims else client.news, self.before)
            assert before(items) == [True] * len(items)

    def told(self, items: list[str]) -> list[Any]:
        """The answer of a call that did it for all items."""
        return list(items) if self.method == "unique" else [self.answer] * len(items)

    def again(self, items: list[str]) -> list[Any]:
        """The answer of the same call, made anew after that."""
        return [] if self.method == "unique" else [self.otherwise] * len(items)

    def __str__(self) -> str:
        return f"claims.{self.method}" if self.of_claims else self.method


#: One call of each command.
COMMANDS = [
    Call("insert_many", "insert"),
    Call("forget", "forget", before="insert_many"),
    Call("claim_many", "claim", of_claims=True),
    Call("commit", "commit", before="claim_many", of_claims=True),
    Call("release", "release", before="claim_many", of_claims=True),
    Call("reject", "reject", before="claim_many", of_claims=True),
]

#: All calls that change the filter.
CALLS = [
    *COMMANDS,
    Call("insert_ages", "insert", 0, 1),
    Call("unique", "insert"),
    Call("claim_ages", "claim", 0, -1, of_claims=True),
    Call("unique", "claim", of_claims=True),
]


#: Commands whose tests are quick; what differs between others is in the tests that have all.
COMMON = {"insert", "claim", "commit"}


def each_of(calls: list[Call], *, quick: bool = False):
    """Parametrise a test by calls; those of commands that are not common are slow, unless all are ``quick``."""
    slow = pytest.mark.slow
    cases = [each if quick or each.command in COMMON else pytest.param(each, marks=slow) for each in calls]
    return pytest.mark.parametrize("call", cases, ids=str)
