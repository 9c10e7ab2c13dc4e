"""``dedupe``: print the new lines of files."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
from typing import TYPE_CHECKING

import click

from urifilter_redis import AnswerLost, UriFilterError
from urifilter_redis.persisting import persist
from urifilter_redis.streaming import Answers, Stream, StreamedFilter

from .common import Shared, counted, pass_shared, say
from .output import Output
from .over_lines import DEFAULT_FILTER, NEAR_CACHE, Summary, finish, lines_command, max_age_option, open_filter, put_all
from .settings import yes_option
from .signals import Interrupted, Signals

if TYPE_CHECKING:
    from .lines import Window

__all__ = ["dedupe"]


@click.command()
@lines_command
@max_age_option
@click.option("--temporary", is_flag=True, help="Use a new filter, and drop it at the end.")
@yes_option
@pass_shared
def dedupe(
    options: Shared,
    name: str,
    files: tuple[str, ...],
    *,
    quiet: bool,
    temporary: bool,
    max_age: int | None,
    yes: bool,
) -> None:
    """Print the lines of files, or of stdin, that have not been seen before, in their order.

    Printed lines are in the filter then: a second run over the same file prints nothing.

    \b
    Example:
      urifilter dedupe urls.txt > new.txt
    """
    summary, output = Summary(f"temporary-{secrets.token_hex(8)}" if temporary else name), Output()
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        with contextlib.nullcontext() if temporary else signals.allowed():  # a signal would leave a temporary filter
            make = temporary or name == DEFAULT_FILTER
            news = stack.enter_context(open_filter(options, summary.filter, make=make, yes=yes, near_cache=NEAR_CACHE))
        if temporary:
            stack.callback(news.drop)
        printer = _Printer(signals, output, summary)
        stream = Stream(news, "insert", printer.take, max_age)
        try:
            try:
                put_all(stream, files, summary, signals, quiet=quiet or sys.stdout.isatty())
                with signals.allowed():
                    output.finish()
            except (OSError, Interrupted) as stopped:
                _wind_up(stream, printer, output, interrupted=isinstance(stopped, Interrupted), quiet=quiet)
                raise
        except AnswerLost as failed:
            raise AnswerLost(f"{failed}; {printer.doubt}") from failed
        finish(options, summary, _deduped(summary), news, quiet=quiet, to_stdout=False)


class _Printer:
    """Prints the new lines of windows.

    Attributes:
        doubtful: the number of lines without an answer.
    """

    def __init__(self, signals: Signals, output: Output, summary: Summary) -> None:
        self._signals, self._output, self._summary = signals, output, summary
        self._stopped = False
        self.doubtful = 0

    @property
    def doubt(self) -> str:
        """The text about the lines without an answer."""
        lines = f"{counted(self.doubtful, 'line')} may have been inserted, and not printed"
        return f"{lines}: `urifilter forget` makes them new again"

    def take(self, window: Window, ages: Answers) -> None:
        """Print the new lines of a window, given the age of each line."""
        lines, items = window
        new = [age == 0 for age in ages]
        fresh = [*itertools.compress(lines, new)]
        self._output.add(fresh, fresh if items is lines else [*itertools.compress(items, new)])
        self._summary.count(ages)
        self.doubtful += ages.count(None)
        if not self._stopped:
            with self._signals.allowed():
                self._output.write()

    def stop(self) -> None:
        """Print nothing more: the new lines of later windows stay undelivered."""
        self._stopped = True


def _wind_up(stream: Stream[Window], printer: _Printer, output: Output, *, interrupted: bool, quiet: bool) -> None:
    """Finish the windows under way, print none of them, and take back the lines that the reader may not have got.

    A command that was interrupted ends as such, even if answers are lost: the doubtful lines are told.
    """
    printer.stop()
    try:
        stream.drain()
    except AnswerLost:
        if not interrupted:
            raise
    finally:
        _take_back(stream.filter, output.undelivered(), printer.doubtful, quiet=quiet)
    if printer.doubtful:
        say(f"urifilter: {printer.doubt}")


def _take_back(news: StreamedFilter, items: list[bytes], doubtful: int, *, quiet: bool) -> None:
    """Forget the items of lines that were inserted and that the reader may not have got.

    ``doubtful`` is the number of other lines, whose answers were lost: these may have been seen before.
    """
    try:
        persist(news.forget, items)
    except UriFilterError as error:
        text = f"{counted(len(items) + doubtful, 'line')} may not have been read, and could not be made new again"
        raise UriFilterError(f"{text}: {error}") from error
    if not quiet:
        verb = "is" if len(items) == 1 else "are"
        lines = f"{counted(len(items), 'new line')} that may not have been read"
        say(f"stopped: {lines} {verb} new again (filter {news.name})")


def _deduped(summary: Summary) -> str:
    lines = counted(summary.lines, "line")
    text = f"{lines}: {summary.new:,} new, {summary.seen:,} seen before (filter {summary.filter})"
    if summary.new or not summary.lines:
        return text
    drop = f"urifilter drop {summary.filter}"
    return f"{text}; all were printed by an earlier run or added: --temporary or `{drop}` starts afresh"
