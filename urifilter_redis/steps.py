"""What a flow asks of the shell that drives it.

A flow is a generator that does no I/O: it yields steps, and gets back what each step brought. ``client.py``
drives flows with blocking calls, ``aio.py`` with awaited ones; whatever is decided is decided in the flow.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from redis.exceptions import RedisError

__all__ = ["Arguments", "Flow", "Pause", "Send", "Step", "Unanswered", "Unsent"]

#: One command with its arguments, as redis-py packs it.
Arguments: TypeAlias = tuple[str | bytes | int | float, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send commands in one pipeline over one connection, once; a list of as many outcomes comes back.

    An outcome is the reply, a ``RedisError`` that the server answered, ``Unsent`` or ``Unanswered``.
    """

    commands: list[Arguments]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; None comes back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unsent:
    """There was no connection: the server has certainly not seen the command."""

    error: RedisError | OSError


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The connection broke after the command was, perhaps, sent: it may have run, or may still run."""

    error: RedisError | OSError


Step: TypeAlias = Send | Pause

T = TypeVar("T")
Flow: TypeAlias = Generator[Step, Any, T]
