"""``add``, ``check``, ``dedupe``, ``forget``, ``remove``: each line of a file is an item."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from urifilter_redis import AnswerLost, FilterNotFound, UriFilter, UriFilterError
from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.persisting import persist

from .common import Shared, complain, counted, filter_name, pass_shared, print_json, say, shared
from .lines import Window, total_size, windows_of
from .opening import DEFAULT_SETTINGS, over_capacity
from .output import Output
from .progress import progress
from .settings import yes_option
from .signals import Interrupted, Signals

__all__ = ["add", "check", "dedupe", "forget", "remove"]

#: The filter for commands that name none; ``add`` and ``dedupe`` make it.
DEFAULT_FILTER = "default"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Summary:
    """The result of a command; the attributes are the keys of its JSON.

    Attributes:
        filter: the filter's name.
        lines: the number of lines that were answered.
        new: the number of lines that were new; ``forget`` and ``remove``: that were not there.
        seen: the number of lines that were seen; ``forget`` and ``remove``: that were there.
        bad: the number of files and lines that were left out.
    """

    filter: str
    lines: int = 0
    new: int = 0
    seen: int = 0
    bad: int = 0

    def report_bad(self, message: str) -> None:
        """Report and count a file or line that was left out."""
        self.bad += 1
        complain(message, "Unreadable")

    def count(self, answers: Sequence[int]) -> None:
        """Count the answers of a window of lines."""
        new = sum(answer == 0 for answer in answers)
        self.lines, self.new, self.seen = self.lines + len(answers), self.new + new, self.seen + len(answers) - new


def lines_command(command: F) -> F:
    """Add the arguments and options that the commands about lines share."""
    for option in (
        click.argument("files", nargs=-1, type=click.Path(allow_dash=True)),
        click.option("-q", "--quiet", is_flag=True, help="No summary and no progress on stderr."),
        click.option(
            "--filter",
            "name",
            type=filter_name,
            metavar="NAME",
            default=DEFAULT_FILTER,
            show_default=True,
            help="The filter.",
        ),
        shared,
    ):
        command = option(command)
    return command


def max_age_option(command: F) -> F:
    """Add ``--max-age``."""
    text = "Ring: look only at the so many newest slices; items in older ones count as new."
    return click.option("--max-age", type=int, metavar="SLICES", help=text)(command)


@click.command()
@lines_command
@max_age_option
@yes_option
@pass_shared
def add(options: Shared, name: str, files: tuple[str, ...], *, quiet: bool, max_age: int | None, yes: bool) -> None:
    """Insert the lines of files, or of stdin.

    \b
    Example:
      urifilter add --filter news seen-already.txt
    """
    summary = Summary(name)
    with _open(options, name, yes=yes) as news, Signals() as signals:
        for _, items in _windows(files, summary, signals, quiet=quiet):
            summary.count(persist(news.insert_ages, items, max_age=max_age))
        _finish(options, summary, _added(summary), news, quiet=quiet)


@click.command()
@lines_command
@pass_shared
def forget(options: Shared, name: str, files: tuple[str, ...], *, quiet: bool) -> None:
    """Make the lines of files, or of stdin, new again.

    \b
    Example:
      urifilter forget --filter news crawl-again.txt
    """
    _take_out(options, Summary(name), files, "forget", "forgotten", quiet=quiet)


@click.command()
@lines_command
@pass_shared
def remove(options: Shared, name: str, files: tuple[str, ...], *, quiet: bool) -> None:
    """Remove the lines of files, or of stdin, from a filter of layout counting.

    Remove only lines that were inserted: removing others may make other items new.

    \b
    Example:
      urifilter remove --filter queue done.txt
    """
    _take_out(options, Summary(name), files, "remove", "removed", quiet=quiet)


def _take_out(
    options: Shared, summary: Summary, files: tuple[str, ...], method: str, done: str, *, quiet: bool
) -> None:
    """Forget or remove lines, by the named method; ``done`` is its past participle, for the summary."""
    with _open(options, summary.filter, make=False) as news, Signals() as signals:
        for _, items in _windows(files, summary, signals, quiet=quiet):
            summary.count([int(was_there) for was_there in persist(getattr(news, method), items)])
        text = f"{counted(summary.lines, 'line')}: {summary.seen:,} {done}, {summary.new:,} were not there"
        _finish(options, summary, text, None, quiet=quiet)


@click.command()
@lines_command
@max_age_option
@click.option("--new", "only_new", is_flag=True, help="Print only the lines that are not in the filter.")
@click.option("--archive-file", type=click.Path(path_type=Path), help="Ask an exported filter instead of a server.")
@pass_shared
def check(
    options: Shared,
    name: str,
    files: tuple[str, ...],
    *,
    quiet: bool,
    only_new: bool,
    max_age: int | None,
    archive_file: Path | None,
) -> None:
    """Print "seen" or "new" and a tab before each line, without inserting it. With --json print an object a line.

    Exits with 0 if any line was seen (--new: new), with 1 if none was, with 2 on errors.

    \b
    Example:
      urifilter check --filter words --new text.txt
    """
    summary = Summary(name)
    output = Output()
    asked = ExportedFilter(archive_file) if archive_file else _open(options, name, make=False)
    with asked, Signals() as signals:
        for lines, items in _windows(files, summary, signals, quiet=quiet or sys.stdout.isatty()):
            ages = asked.ages(items, max_age=max_age)
            told = _json_lines(items, ages) if options.json else lines if only_new else map(_marked, lines, ages)
            output.add((line, b"") for line, age in zip(told, ages, strict=True) if not (only_new and age))
            with signals.allowed():
                output.write()
            summary.count(ages)
    if options.json and not quiet:
        say(json.dumps(asdict(summary)))
    found = summary.new if only_new else summary.seen
    raise click.exceptions.Exit(2 if summary.bad else 0 if found else 1)


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
            news = stack.enter_context(_open(options, summary.filter, make=make, yes=yes))
        if temporary:
            stack.callback(news.drop)
        try:
            for lines, items in _windows(files, summary, signals, quiet=quiet or sys.stdout.isatty()):
                _print_new(news, signals, output, (lines, items), summary, max_age)
            with signals.allowed():
                output.finish()
        except (OSError, Interrupted):
            _take_back(news, output.undelivered(), quiet=quiet)
            raise
        _finish(options, summary, _deduped(summary), news, quiet=quiet, to_stdout=False)


def _print_new(
    news: UriFilter, signals: Signals, output: Output, window: Window, summary: Summary, max_age: int | None
) -> None:
    """Insert a window and print its new lines."""
    lines, items = window
    failed: UriFilterError | None = None
    try:
        ages: list[int | None] = [*persist(news.insert_ages, items, max_age=max_age)]
    except UriFilterError as error:
        failed, ages = error, error.answers or []
    output.add((line, item) for line, item, age in zip(lines, items, ages, strict=False) if age == 0)
    with signals.allowed():
        output.write()
    summary.count([age for age in ages if age is not None])
    if isinstance(failed, AnswerLost):
        doubtful = f"{counted(ages.count(None), 'line')} may have been inserted, and not printed"
        raise AnswerLost(f"{failed}; {doubtful}: `urifilter forget` makes them new again")
    if failed is not None:
        raise failed


def _take_back(news: UriFilter, items: list[bytes], *, quiet: bool) -> None:
    """Forget the items of lines that were inserted and that the reader may not have got."""
    try:
        persist(news.forget, items)
    except UriFilterError as error:
        text = f"{counted(len(items), 'line')} may not have been read, and could not be made new again"
        raise UriFilterError(f"{text}: {error}") from error
    if not quiet:
        verb = "is" if len(items) == 1 else "are"
        lines = f"{counted(len(items), 'new line')} that may not have been read"
        say(f"stopped: {lines} {verb} new again (filter {news.name})")


def _open(options: Shared, name: str, *, make: bool | None = None, yes: bool = False) -> UriFilter:
    """Open a filter. ``make``: whether to make a missing one; None: only the default filter."""
    make = name == DEFAULT_FILTER if make is None else make
    try:
        return UriFilter.open(name, **options.filter())
    except FilterNotFound as error:
        if make:
            archive = {} if name == DEFAULT_FILTER else {"archive": ""}  # a temporary filter needs no archive
            return UriFilter.create(name, **DEFAULT_SETTINGS, **(options.filter() | archive), large=yes)
        text = f"{error}: urifilter create {name} --capacity 10M"
        raise FilterNotFound(text) from error


def _windows(
    files: tuple[str, ...], summary: Summary, signals: Signals, *, quiet: bool
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield windows of lines. A signal during the reading, or between two windows, ends the command.

    ``quiet`` shows no progress, which would mix with lines that are printed on the same terminal.
    """
    names = files or ("-",)
    with progress(total_size(names), quiet=quiet) as advance:
        windows = windows_of(names, summary.report_bad, advance, signals.wait)
        while True:
            with signals.allowed():
                window = next(windows, None)
            if window is None:
                return
            yield window


def _finish(
    options: Shared, summary: Summary, text: str, news: UriFilter | None, *, quiet: bool, to_stdout: bool = True
) -> None:
    """Print the summary; exit with 2 if any file or line was left out."""
    notice = over_capacity(news) if news is not None and (options.json or not quiet) else ""
    about = asdict(summary) | ({} if news is None else {"over_capacity": bool(notice)})
    if options.json and to_stdout:
        print_json(about)
    elif not quiet:
        say(json.dumps(about) if options.json else text)
    if notice and not quiet:
        say(f"urifilter: {notice}")
    if summary.bad:
        raise click.exceptions.Exit(2)


def _added(summary: Summary) -> str:
    lines = counted(summary.lines, "line")
    return f"{lines}: {summary.new:,} added to filter {summary.filter}, {summary.seen:,} were there"


def _deduped(summary: Summary) -> str:
    lines = counted(summary.lines, "line")
    text = f"{lines}: {summary.new:,} new, {summary.seen:,} seen before (filter {summary.filter})"
    if summary.new or not summary.lines:
        return text
    drop = f"urifilter drop {summary.filter}"
    return f"{text}; all were printed by an earlier run or added: --temporary or `{drop}` starts afresh"


def _json_lines(items: Sequence[bytes], ages: Sequence[int]) -> Iterator[bytes]:
    """Yield a JSON object for each item. Bytes that are not UTF-8 become lone surrogates."""
    for item, age in zip(items, ages, strict=True):
        text = item.decode(errors="surrogateescape")
        yield json.dumps({"item": text, "seen": age > 0, "age": age}).encode()


def _marked(line: bytes, age: int) -> bytes:
    return (b"seen\t" if age else b"new\t") + line
