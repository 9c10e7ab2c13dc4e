"""Hold signals back until the command can stop without loss."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Self

#: Signals that end a process by default and can be held back. Signals of faults (SIGSEGV …) are not among them, nor
#: SIGPIPE and SIGXFSZ: Python ignores those, so that writing fails. Not every system has all of these.
_NAMES = (
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGABRT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGUSR1",
    "SIGUSR2", "SIGPOLL", "SIGPWR", "SIGSTKFLT",
)  # fmt: skip
_ENDING = {getattr(signal, name) for name in _NAMES if hasattr(signal, name)}
if hasattr(signal, "SIGRTMIN"):
    _ENDING |= {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}

#: The handlers of a signal that is neither ignored (as by nohup, or a shell's ``&``) nor handled by other code.
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)

#: Signals from a keyboard: a second one ends the process at once.
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)

#: Seconds in which the same signal may come twice for one keystroke: from a terminal and the shell, or ``timeout``.
ONE = 0.5


def name_of(number: int) -> str:
    """Return a signal's name, or its number: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Interrupted(BaseException):
    """A signal asked to stop. As with KeyboardInterrupt, nobody takes it for a failure of what it interrupts.

    Attributes:
        number: the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(name_of(number))
        self.number = number


class Signals:
    """Holds back every signal that would end the process, until the command can stop without loss.

    It is a context manager; ``allowed()`` marks the places where the command can stop. A second signal from the
    keyboard, half a second or more after the first, ends the process at once. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        self._caught: int | None = None
        self._since = 0.0
        self._safe = False
        self._before: dict[int, object] = {}
        self._woken, self._wake = os.pipe()  # each signal of Python's writes a byte
        os.set_blocking(self._woken, False)

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
        """Raise Interrupted in the body, for a signal that was held back or comes now."""
        self._safe = True
        try:
            if self._caught is not None:
                raise Interrupted(self._caught)
            yield
        finally:
            self._safe = False

    def wait(self, descriptor: int | None = None, seconds: float | None = None) -> None:
        """Wait until a file can be read, until some seconds are over, or until a signal comes.

        A plain read or sleep would miss a signal that comes just before it. Call it within ``allowed()``.

        Args:
            descriptor: the file; None: no file.
            seconds: the longest time to wait; None: no limit.
        """
        files = [self._woken] if descriptor is None else [self._woken, descriptor]
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            ready, _, _ = select.select(files, [], [], None if end is None else max(0.0, end - time.monotonic()))
            if ready != [self._woken] or self._caught is not None:
                return
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 10)  # the byte of a signal that others handle

    def _handle(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._caught is None:
            self._caught, self._since = number, now
        elif number in _KEYBOARD and now - self._since >= ONE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self._safe:
            self._safe = False  # raise once, so that a second signal does not interrupt the cleaning up
            raise Interrupted(self._caught)
