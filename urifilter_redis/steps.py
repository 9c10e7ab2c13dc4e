"""What a flow asks of the shell that drives it.

A flow is a generator that does no I/O: it yields steps, and gets back what each step brought. ``client.py``
drives flows with blocking calls, ``aio.py`` with awaited ones; whatever is decided is decided in the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

__all__ = ["Arguments", "AsyncSender", "Flow", "Pause", "Send", "Sender", "Step", "Unanswered", "Unsent", "Work"]

#: One command with its arguments, as redis-py packs it.
Arguments: TypeAlias = tuple[str | bytes | int | float, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send commands in one pipeline over one connection, once; a list of as many outcomes comes back.

    An outcome is the reply, a ``RedisError`` that the server answered, ``Unsent`` or ``Unanswered``; a connector to
    something else than Redis has ``replies.Judged`` for what is no reply.
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
class Unsent:
    """There was no connection: the server has certainly not seen the command.

    Attributes:
        error: why.
        hopeless: to try again would bring the same.
    """

    error: Exception
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The connection broke after the command was, perhaps, sent: it may have run, or may still run."""

    error: Exception


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
