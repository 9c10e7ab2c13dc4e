"""The driver that runs flows with blocking I/O."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.steps import Send, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.steps import Flow, Sender, Step

__all__ = ["drive", "perform_step"]

T = TypeVar("T")


def perform_step(step: Step, sender: Sender | None) -> Any:
    """Do a step; return its outcome. ``sender`` may be None if the step is no ``Send``."""
    if isinstance(step, Send):
        assert sender is not None  # noqa: S101 - see drive
        return sender.send(step.commands)
    return step.do() if isinstance(step, Work) else time.sleep(step.seconds)


def drive(
    flow: Flow[T],
    sender: Sender | None = None,
    check: Callable[[], object] = lambda: None,
    perform: Callable[[Step, Sender | None], Any] | None = None,
) -> T:
    """Run a flow with blocking I/O; return its result, or raise its error.

    Args:
        flow: the flow to run.
        sender: sends commands to the server; None for a flow that sends none.
        check: called before each step; an exception from it is thrown into the flow.
        perform: does each step in place of ``perform_step``, so that a test may count, delay or stop steps.
    """
    do, outcome = perform or perform_step, None
    try:
        step = next(flow)
        while True:
            try:
                check()
                outcome = do(step, sender)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of Ctrl-C too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
