"""The drivers, which run flows: one with blocking I/O, one with awaited I/O."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from urifilter_redis.engine.steps import AsyncSender, Beginner, Flow, Pause, Reply, Send, Sender, Step, Work

T = TypeVar("T")


def drive(
    flow: Flow[T],
    sender: Sender | None = None,
    check: Callable[[], object] | None = None,
    perform: Callable[[Step, Sender | None], Any] | None = None,
    step: Step | None = None,
) -> T:
    """Run a flow with blocking I/O; return its result, or raise its error.

    Args:
        flow: the flow.
        sender: sends commands to the server; None for a flow that sends none.
        check: called before each step; an exception from it is thrown into the flow.
        perform: does each step in place of ``perform_step``, so that a test may count, delay or stop steps.
        step: the step that the flow has yielded; None: it has not begun.
    """
    do = perform or perform_step
    try:
        if step is None:
            step = next(flow)
        while True:
            try:
                if check is not None:
                    check()
                outcome = do(step, sender)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of Ctrl-C too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], sender: AsyncSender) -> T:
    """Run a flow with awaited I/O; return its result, or raise its error."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = await perform_step_async(step, sender)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class StartedFlow(Generic[T]):
    """A flow whose first commands are under way; ``finish`` waits for their replies, and runs the flow to its end.

    Args:
        flow: the flow; an interruption while its first commands are sent ends it.
        sender: sends commands to the server.
        check: see ``drive``.
    """

    def __init__(self, flow: Flow[T], sender: Beginner, check: Callable[[], object] | None) -> None:
        self._flow, self._sender, self._check = flow, sender, check
        self._reply: Reply | None = None
        self._sent = 0.0
        self._step: Step | None = None
        self._result: Any = None
        try:
            self._step = step = next(flow)
            if isinstance(step, Send):
                try:
                    if check is not None:
                        check()
                    self._reply = sender.begin(step.commands)
                    self._sent = time.monotonic()
                except BaseException as error:
                    flow.throw(error)
                    raise
        except StopIteration as stop:
            self._result = stop.value

    def finish(self) -> T:
        """Return the flow's result, or raise its error."""
        if self._step is None:
            return self._result  # type: ignore[no-any-return]
        try:
            return drive(self._flow, self._sender, self._check, self._perform, self._step)
        finally:
            self.leave()

    def leave(self) -> None:
        """Give up the replies that are under way, and leave the flow where it is."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.leave()

    def _perform(self, step: Step, sender: Sender | None) -> Any:
        reply, self._reply = self._reply, None
        if reply is None or not isinstance(step, Send):
            return perform_step(step, sender)
        step.idle = time.monotonic() - self._sent
        return reply.finish()


def perform_step(step: Step, sender: Sender | None) -> Any:
    """Do a step; return its outcome. ``sender`` may be None if the step is no ``Send``."""
    if isinstance(step, Send):
        assert sender is not None  # noqa: S101 - see drive
        return sender.send(step.commands, step.meanwhile)
    return step.do() if isinstance(step, Work) else time.sleep(step.seconds)


async def perform_step_async(step: Step, sender: AsyncSender) -> Any:
    """Do a step with awaited I/O; return its outcome."""
    if isinstance(step, Send):
        return await sender.send(step.commands, step.meanwhile)
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    if not step.awaited:
        return await asyncio.to_thread(step.do)
    outcome = step.do()
    return await outcome if inspect.isawaitable(outcome) else outcome
