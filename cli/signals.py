"""Stopping where nothing is lost."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Self

__all__ = ["Interrupted", "Signals", "name_of"]

#: Signals that end a process by default and can be held back; not those by which a fault in the program shows, and
#: not SIGPIPE and SIGXFSZ, which Python ignores, so that writing fails. Not every system has all of them.
_NAMES = (
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGABRT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGUSR1",
    "SIGUSR2", "SIGPOLL", "SIGPWR", "SIGSTKFLT",
)  # fmt: skip
_ENDING = {getattr(signal, name) for name in _NAMES if hasattr(signal, name)}
if hasattr(signal, "SIGRTMIN"):
    _ENDING |= {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}

#: What a signal does that nobody has ignored, as nohup and a shell's ``&`` do, or handles.
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)

#: Those that come from a keyboard: one that comes once more ends the process at once.
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)

#: Seconds in which one signal may come several times: from a terminal and from the shell, or from ``timeout``.
ONE = 0.5


def name_of(number: int) -> str:
    """Return what a signal is called; of those for free use only the first and the last have names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Interrupted(Exception):
    """A signal asked to stop.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(name_of(number))
        self.number = number


class Signals:
    """Holds back every signal that would end the process, until it is safe to stop.

    Only a keyboard's signal that comes again, half a second or more after the first, ends the process at once. What
    was ignored at the start stays ignored. Used as a context manager; ``allowed()`` marks where stopping loses nothing.
    """

    def __init__(self) -> None:
        self._caught: int | None = None
        self._since = 0.0
        self._safe = False
        self._before: dict[int, object] = {}
        self._woken, self._wake = os.pipe()

    def __enter__(self) -> Self:
        os.set_blocking(self._wake, False)
        self._other_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in _ENDING:
            if signal.getsignal(number) in _UNTOUCHED:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._other_wake)
        os.close(self._wake)
        os.close(self._woken)

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

    def wait(self, descriptor: int | None = None, seconds: float | None = None) -> None:
        """Wait until a file can be read, or for some seconds, where stopping is allowed.

        A signal that comes just before a call that reads or sleeps would not end it.
        """
        files = [self._woken] if descriptor is None else [self._woken, descriptor]
        select.select(files, [], [], seconds)

    def _handle(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._caught is None:
            self._caught, self._since = number, now
        elif number in _KEYBOARD and now - self._since >= ONE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self._safe:
            self._safe = False  # raised once: what is cleaned up then is not interrupted
            raise Interrupted(self._caught)
