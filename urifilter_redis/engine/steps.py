"""What a flow asks of the shell that drives it.

A flow is a generator that does no I/O: it yields steps, and gets back the outcome of each. ``driver`` runs flows with
blocking calls, ``async_driver`` with awaited ones; every decision is the flow's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from urifilter_redis.protocol.calls import Arguments

__all__ = ["AsyncSender", "Flow", "Pause", "Send", "Sender", "Step", "Timeouts", "Work"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send commands in one pipeline over one connection, once; a list of as many outcomes comes back.

    An outcome is the reply, a ``RedisError`` that the server answered, ``Unsent`` or ``Unanswered``; a connector to
    something else than Redis has ``outcomes.Judged`` for what is no reply.
    """

    commands: list[Arguments]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; None comes back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Do what is neither: read a file, ask another server. What it returns comes back, what it raises is raised.

    Attributes:
        name: what it is, for who looks on.
        do: asyncio's shell calls it in a thread, unless it returns an awaitable.
        awaited: with asyncio it returns an awaitable.
    """

    name: str
    do: Callable[[], Any]
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a server, in seconds.

    Attributes:
        connect: for a connection.
        reply: for the next reply on one.
        total: after this long nothing is sent again, and the call fails.
        restoring: while the filter is being restored; after that ``Restoring`` is raised.

    Example:
        >>> Timeouts(total=10).reply
        1.5
    """

    connect: float = 1.0
    reply: float = 1.5
    total: float = 3.0
    restoring: float = 0.0


Step: TypeAlias = Send | Pause | Work


class Sender(Protocol):
    """What sends for blocking flows."""

    def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands once; return an outcome a command (see ``Send``)."""
        ...


class AsyncSender(Protocol):
    """What sends for awaited flows."""

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands once; return an outcome a command (see ``Send``)."""
        ...


T = TypeVar("T")
Flow: TypeAlias = Generator[Step, Any, T]
