"""Steps: what a flow asks of its driver.

A flow is a generator that does no I/O. It yields steps and gets back the outcome of each. ``driver`` runs flows, with
blocking calls or with awaited ones. All decisions are made in the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from urifilter_redis.checks import check_seconds

if TYPE_CHECKING:
    from urifilter_redis.protocol.calls import Arguments

#: The ``total`` of timeouts that leave it open: of a server alone, and where another may take its place.
TOTAL, TOTAL_OF_SEVERAL = 3.0, 30.0

#: Work that is done while replies are on their way; it does no I/O.
Meanwhile: TypeAlias = Callable[[], object]


@dataclass(slots=True)
class Send:
    """Send commands once, in one pipeline over one connection. A list of one outcome a command comes back.

    An outcome is a reply, a ``RedisError`` that the server answered, ``Unsent`` or ``Unanswered``. A connector to
    another server than Redis has ``outcomes.Decided`` in place of these three.

    Attributes:
        commands: the commands, each with its arguments.
        meanwhile: work of the flow; a driver does it at most once, if it can, between the sending and the replies.
        idle: the seconds that a driver spent on other work between the sending and the wait.
    """

    commands: list[Arguments]
    meanwhile: Meanwhile | None = None
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; None comes back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Do any other I/O: read a file, ask another server. The result comes back; an exception is thrown into the flow.

    Attributes:
        name: for tests and debuggers.
        do: does the work. The awaited driver calls it in a thread, unless ``awaited`` is true.
        awaited: whether ``do`` returns an awaitable under asyncio.
    """

    name: str
    do: Callable[[], Any]
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The times to wait for a server, in seconds.

    Attributes:
        connect: the longest wait for a connection.
        reply: the longest wait for the next reply on a connection.
        total: after this time nothing is sent again, and the call fails. None: 3 s, but 30 s behind Sentinels and on a
            Redis Cluster, where another server may have to take the place of one.
        restoring: the longest wait while the filter is being restored; after it ``Restoring`` is raised.
        migrating: the longest wait while the slot of a call's keys moves to another node of a Redis Cluster.

    Example:
        >>> Timeouts(total=10).reply
        1.5
    """

    connect: float = 1.0
    reply: float = 1.5
    total: float | None = None
    restoring: float = 0.0
    migrating: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (each.name == "total" and value is None):
                check_seconds(each.name, value)

    @classmethod
    def checked(cls, timeouts: Timeouts | None) -> Timeouts:
        """Return the timeouts of a caller; None: the defaults.

        Raises:
            TypeError: it is something else.
        """
        if timeouts is not None and not isinstance(timeouts, Timeouts):
            raise TypeError(f"timeouts is Timeouts(), or None, and not {timeouts!r}")
        return timeouts or cls()


Step: TypeAlias = Send | Pause | Work

#: The step between two parts of a rotation. A caller may leave the flow there, and go on later.
REST = Pause(0)


class Sender(Protocol):
    """Sends commands for the blocking driver."""

    def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None, /) -> list[Any]:
        """Send commands once; return an outcome a command (see ``Send``)."""
        ...


class Reply(Protocol):
    """The replies, on their way, to commands that were sent."""

    def finish(self) -> list[Any]:
        """Wait for the replies; return one outcome a command (see ``Send``)."""
        ...

    def leave(self) -> None:
        """Give up replies that were not waited for yet."""
        ...


class Beginner(Sender, Protocol):
    """A sender that lets the blocking driver do other work before it waits for the replies."""

    def begin(self, commands: Sequence[Arguments]) -> Reply:
        """Send commands once, without waiting for the replies."""
        ...


class AsyncSender(Protocol):
    """Sends commands for the awaited driver."""

    async def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None, /) -> list[Any]:
        """Send commands once; return an outcome a command (see ``Send``)."""
        ...


T = TypeVar("T")
Flow: TypeAlias = Generator[Step, Any, T]
