"""Ctrl-C at each place of a call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Interrupt:
    """Raises KeyboardInterrupt at the ``at``-th line or call in the library, in one module of it, or in redis-py.

    (Python looks for signals at calls and jumps, so that these are places where one comes.) ``at=0``: it only counts.
    ``events``: of lines and calls only these.
    """

    def __init__(
        self, at: int = 0, packages: tuple[str, ...] = ("urifilter_redis",), events: tuple[str, ...] = ("line", "call")
    ) -> None:
        self.at, self.places, self._events = at, 0, events
        self._parts = tuple(f"/{name}" if name.endswith(".py") else f"/{name}/" for name in packages)
        self._before: Callable[..., Any] | None = None

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object):
        if any(part in frame.f_code.co_filename for part in self._parts):
            if event in self._events:
                self.places += 1
                if self.places == self.at:
                    raise KeyboardInterrupt
            return self._trace
        return None
