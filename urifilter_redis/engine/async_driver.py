"""The driver that runs flows with awaited I/O."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.steps import Pause, Send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from urifilter_redis.engine.steps import AsyncSender, Flow, Step

__all__ = ["drive", "perform_step"]

T = TypeVar("T")


async def perform_step(step: Step, sender: AsyncSender) -> Any:
    """Do a step; return its outcome."""
    if isinstance(step, Send):
        return await sender.send(step.commands, step.meanwhile)
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    if not step.awaited:
        return await asyncio.to_thread(step.do)
    outcome = step.do()
    return await outcome if inspect.isawaitable(outcome) else outcome


async def drive(
    flow: Flow[T], sender: AsyncSender, perform: Callable[[Step, AsyncSender], Awaitable[Any]] | None = None
) -> T:
    """Run a flow with awaited I/O; return its result, or raise its error.

    Args:
        flow: the flow to run.
        sender: sends commands to the server.
        perform: does each step in place of ``perform_step``, so that a test may count, delay or stop steps.
    """
    do, outcome = perform or perform_step, None
    try:
        step = next(flow)
        while True:
            try:
                outcome = await do(step, sender)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
