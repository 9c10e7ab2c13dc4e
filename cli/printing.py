"""Print the lines that are new, and undo the work for those that the reader may not have got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from urifilter_redis import AnswerLost, UriFilterError
from urifilter_redis.streaming import persist

from .common import counted, say
from .line_commands import put_all
from .signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.streaming import Answers, Stream

    from .line_commands import Summary
    from .output import Output
    from .records import Window
    from .signals import Signals


@dataclass(frozen=True, slots=True)
class Undoing:
    """How a command undoes its work for lines that the reader may not have got, and how it says so.

    Attributes:
        method: the method of the library that undoes it; it takes items, and ``retry=``.
        line: the noun for a line that is undone: ``new line``.
        did: what was done: ``inserted``.
        undone: the state of an undone line: ``new again``.
        undo: what is to be done: ``made new again``.
        doubt: the remedy for lines whose answers were lost.
    """

    method: Callable[..., object]
    line: str
    did: str
    undone: str
    undo: str
    doubt: str

    def take_back(self, name: str, items: Sequence[Any], doubtful: int = 0, *, quiet: bool) -> None:
        """Undo the work for the items of lines that the reader may not have got, and say so.

        Args:
            name: the filter's name.
            items: the items.
            doubtful: the number of other lines, whose answers were lost: for these there may be nothing to undo.
            quiet: whether to say nothing.

        Raises:
            UriFilterError: the server failed; the text has the number of the lines.
        """
        try:
            persist(self.method, items)
        except UriFilterError as error:
            text = f"{counted(len(items) + doubtful, 'line')} may not have been read, and could not be {self.undo}"
            raise UriFilterError(f"{text}: {error}") from error
        if not quiet:
            verb = "is" if len(items) == 1 else "are"
            lines = f"{counted(len(items), self.line)} that may not have been read"
            say(f"stopped: {lines} {verb} {self.undone} (filter {name})")


class Printer:
    """Prints the lines of windows whose answer is 0.

    Attributes:
        signals: the signals that may stop it.
        output: takes the lines.
        summary: counts the answers.
        undoing: undoes the work for lines that are not delivered.
        doubtful: the number of lines without an answer.
    """

    def __init__(self, signals: Signals, output: Output, summary: Summary, undoing: Undoing) -> None:
        self.signals, self.output, self.summary, self.undoing = signals, output, summary, undoing
        self._stopped = False
        self._taken: list[tuple[Window, Answers]] = []  # windows whose new lines are not the output's yet
        self.doubtful = 0

    @property
    def doubt(self) -> str:
        """The text about the lines without an answer."""
        undoing = self.undoing
        return f"{counted(self.doubtful, 'line')} may have been {undoing.did}, and not printed: {undoing.doubt}"

    def take(self, window: Window, answers: Answers) -> None:
        """Print the new lines of a window, given the answer for each line."""
        self._taken.append((window, answers))
        fresh = window.chosen([answer == 0 for answer in answers])
        self.output.add(fresh.records, fresh.items)
        self._taken.pop()
        self.summary.count(answers)
        self.doubtful += answers.count(None)
        if self._stopped:
            return
        if not self.output.is_read:  # a signal must not come before what a file has taken is counted
            self.output.write()
        with self.signals.allowed():
            self.output.write()

    def undelivered(self) -> list[Any]:
        """Return the items of the lines that were not written, or that the reader may not have read."""
        items = self.output.undelivered()
        for window, answers in self._taken:  # an error came as it was taken
            items += [item for item, answer in zip(window.items, answers, strict=True) if answer == 0]
        return items

    def head(self, header: bytes) -> None:
        """Print the header of the files, which is no item."""
        with self.signals.allowed():
            self.output.write_header(header)

    def stop(self) -> None:
        """Print nothing more: the new lines of later windows stay undelivered."""
        self._stopped = True


def print_lines(stream: Stream[Window], printer: Printer, *, choose: Callable[[Window], Window] | None = None) -> None:
    """Print the new lines of files; if that stops early, undo the work for those that the reader may not have got.

    Args:
        stream: asks about the lines, and passes them to the printer.
        printer: prints the lines that its summary says are read.
        choose: see ``put_all``.

    Raises:
        Interrupted: a signal stopped it.
        OSError: the lines could not be written.
        UriFilterError: the server failed.
    """
    signals = printer.signals
    try:
        try:
            put_all(stream, printer.summary, signals, choose=choose, head=printer.head)
            with signals.allowed():
                printer.output.finish()
        except UriFilterError:  # a message says what may have been done
            raise
        except BaseException as stopped:
            _wind_up(stream, printer, interrupted=isinstance(stopped, Interrupted))
            raise
    except AnswerLost as failed:
        raise AnswerLost(f"{failed}; {printer.doubt}") from failed


def _wind_up(stream: Stream[Window], printer: Printer, *, interrupted: bool) -> None:
    """Finish the windows under way, print none of them, and take back the lines that the reader may not have got.

    An interrupted command ends as interrupted even if answers are lost: a message has the number of doubtful lines.
    """
    printer.stop()
    try:
        stream.drain()
    except AnswerLost:
        if not interrupted:
            raise
    finally:
        undelivered, quiet = printer.undelivered(), printer.summary.given.quiet
        printer.undoing.take_back(stream.filter.name, undelivered, printer.doubtful, quiet=quiet)
    if printer.doubtful:
        say(f"urifilter: {printer.doubt}")
