"""The load of one worker: its connections, and the requests that it works on or that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.server import ServerState

__all__ = ["LOAD", "Load"]


class Load:
    """Counts of one worker, which cost a request next to nothing: uvicorn keeps the first two anyway.

    Attributes:
        server: uvicorn's state of the server; None before the first connection.
        waiting: the requests that wait for others of their token.
    """

    def __init__(self) -> None:
        self.server: ServerState | None = None
        self.waiting = 0

    @property
    def connections(self) -> int:
        """The open connections of clients."""
        return 0 if self.server is None else len(self.server.connections)

    @property
    def in_flight(self) -> int:
        """The requests that are not answered yet, those that wait included."""
        return 0 if self.server is None else len(self.server.tasks)


#: The load of this process.
LOAD = Load()
