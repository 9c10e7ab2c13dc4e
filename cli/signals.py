"""Stopping where nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import Self

__all__ = ["Interrupted", "Signals"]


class Interrupted(Exception):
    """A signal asked to stop.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Holds SIGINT and SIGTERM back until it is safe to stop; a second one ends the process at once.

    Used as a context manager; ``allowed()`` marks where stopping loses nothing.
    """

    def __init__(self) -> None:
        self._caught: int | None = None
        self._safe = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Raise Interrupted here, for a signal that came before or comes now."""
        self._safe = True
        try:
            if self._caught is not None:
                raise Interrupted(self._caught)
            yield
        finally:
            self._safe = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._caught = number
        signal.signal(number, signal.SIG_DFL)
        if self._safe:
            raise Interrupted(number)
