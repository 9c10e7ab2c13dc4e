"""What the commands about lines share: options, the filter, windows of lines, and the summary."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from urifilter_redis import FilterNotFound
from urifilter_redis.streaming import UNDER_WAY, Answers, Stream, StreamedFilter

from .common import (
    DEFAULT_SETTINGS,
    Shared,
    complain,
    counted,
    filter_name,
    option_type,
    over_capacity,
    print_json,
    say,
    shared,
    with_options,
)
from .lines import total_size, why_unreadable, windows_of
from .progress import progress
from .records import PLAIN, Form, Kind, Window
from .signals import Interrupted, Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from urifilter_redis.engine.holdings import ClaimOptions

#: The filter for commands that name none; ``add`` and ``dedupe`` make it.
DEFAULT_FILTER = "default"

#: Digests in the near cache of ``add`` and ``dedupe``, some 100 bytes each.
NEAR_CACHE = 1_000_000

#: The most files and records left out that are told one by one; the others are counted.
TOLD = 100


@dataclass(frozen=True, slots=True)
class Input:
    """What a command about lines reads, and for which filter.

    Attributes:
        filter: the filter's name.
        files: the paths; ``-`` and none: stdin.
        form: how the lines are read.
        quiet: whether to show neither progress nor a summary.
    """

    filter: str = ""
    files: tuple[str, ...] = ()
    form: Form = PLAIN
    quiet: bool = False


@dataclass
class Summary:
    """The result of a command; the attributes are the keys of its JSON, but for those in ``names``.

    Attributes:
        given: what the command reads; JSON has its filter and its field.
        lines: the number of lines that were answered.
        new: the number of lines that were new; ``forget`` and ``remove``: that were not there.
        seen: the number of lines that were seen; ``forget`` and ``remove``: that were there.
        bad: the number of files and lines that were left out.
    """

    #: The keys of JSON that have other names than their attributes.
    names: ClassVar[dict[str, str]] = {}

    given: Input
    lines: int = 0
    new: int = 0
    seen: int = 0
    bad: int = 0

    def about(self) -> dict[str, Any]:
        """Return the object for JSON."""
        counts = {self.names.get(name, name): value for name, value in vars(self).items() if name != "given"}
        return {"filter": self.given.filter} | counts | self.given.form.about()

    @property
    def counted(self) -> str:
        """The number of lines, with the field that counts."""
        return counted(self.lines, self.given.form.noun) + self.given.form.of_field

    def report_bad(self, message: str) -> None:
        """Report and count a file or line that was left out."""
        self.bad += 1
        if self.bad <= TOLD:
            complain(message, "Unreadable")

    def end_bad(self) -> bool:
        """Return whether anything was left out, at the end of a command; say how much of it was not told."""
        if self.bad > TOLD:
            complain(f"{self.bad - TOLD:,} more were left out", "Unreadable")
        return self.bad > 0

    def count(self, answers: Answers) -> None:
        """Count the answers of a window of lines."""
        new = answers.count(0)  # False, for an item that was not there, is 0
        self.lines, self.new, self.seen = self.lines + len(answers), self.new + new, self.seen + len(answers) - new


#: The options of the commands about the items of a filter.
filter_command = with_options(
    shared,
    click.option(
        "--filter",
        "name",
        type=filter_name,
        metavar="NAME",
        default=DEFAULT_FILTER,
        show_default=True,
        help="The filter.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No summary and no progress on stderr."),
)


@option_type
def delimiter_of(text: str) -> str:
    """Read a delimiter: one character of ASCII, or ``\\t``."""
    found = "\t" if text == "\\t" else text
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise ValueError(f"{text!r} is not one character of ASCII that can stand between columns, or \\t for a tab")
    return found


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how lines are read; the command gets them as ``form``."""

    @click.option("--csv", is_flag=True, help="Read CSV: the item of a record is a field's text.")
    @click.option("--jsonl", is_flag=True, help="Read JSON lines: likewise, of an object a line.")
    @click.option(
        "--field",
        multiple=True,
        metavar="NAME",
        help="The field: a column of the CSV's header, or a name of the objects.",
    )
    @click.option(
        "--column",
        multiple=True,
        type=click.IntRange(1),
        metavar="N",
        help="The column, from 1, of CSV without a header.",
    )
    @click.option("--delimiter", type=delimiter_of, metavar="CHAR", help="Between columns of CSV; a comma by default.")
    @click.option("-0", "--null", is_flag=True, help="Lines end with a NUL, as of find -print0; all bytes count.")
    @click.option("--trim", is_flag=True, help="Leave out white space (of ASCII) around items.")
    @functools.wraps(command)
    def with_form(*arguments: Any, **options: Any) -> None:
        csv, jsonl = options.pop("csv"), options.pop("jsonl")
        values = {name: options.pop(name) for name in ("delimiter", "null", "trim")}
        values |= {name: _only(name, options.pop(name)) for name in ("field", "column")}
        command(*arguments, form=_form(values, csv=csv, jsonl=jsonl), **options)

    return with_form


def _only(name: str, given: tuple[Any, ...]) -> Any:
    """Return the value of an option; None: it was not given. Refuse a second one, because it is no part of the item."""
    if len(given) > 1:
        raise click.UsageError(f"--{name} was given {len(given)} times: an item is the text of one {name}")
    return given[0] if given else None


def _form(values: dict[str, Any], *, csv: bool, jsonl: bool) -> Form:
    """Return how lines are read, or refuse options that do not go together."""
    said = [f"--{name}" for name in ("field", "column", "delimiter") if values[name] is not None]
    if csv and jsonl:
        raise click.UsageError("--csv and --jsonl exclude each other: files of both are read one after the other")
    if (csv or jsonl) and values["null"]:
        raise click.UsageError(
            f"-0 ends lines with a NUL, and --{'csv' if csv else 'jsonl'} reads records: leave one out"
        )
    if said and not (csv or jsonl):
        raise click.UsageError(
            f"{said[0]} needs --csv{' or --jsonl' if said[0] == '--field' else ''}: it is not guessed"
        )
    if jsonl and (values["column"] or values["delimiter"]):
        raise click.UsageError("JSON lines have fields, and no columns: say --field NAME")
    if csv and (values["field"] is None) == (values["column"] is None):
        raise click.UsageError(
            "--csv needs --field NAME, or --column N for files without a header: which has the items"
        )
    if jsonl and values["field"] is None:
        raise click.UsageError("--jsonl needs --field NAME: which has the items")
    kind: Kind = "csv" if csv else "jsonl" if jsonl else "lines"
    return Form(kind, **{name: value for name, value in values.items() if value is not None})


def lines_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of the commands about lines; the command gets them as ``given``."""

    @click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
    @filter_command
    @form_options
    @functools.wraps(command)
    def with_input(*arguments: Any, name: str, files: tuple[str, ...], form: Form, quiet: bool, **options: Any) -> None:
        command(*arguments, given=Input(name, files, form, quiet), **options)

    return with_input


max_age_option = click.option(
    "--max-age",
    type=int,
    metavar="SLICES",
    help="Ring: look only at the so many newest slices; items in older ones count as new.",
)


def open_filter(
    options: Shared,
    name: str,
    *,
    make: bool | None = None,
    yes: bool = False,
    near_cache: int = 0,
    settings: Mapping[str, Any] = DEFAULT_SETTINGS,
) -> StreamedFilter:
    """Open a filter. ``make``: whether to make a missing one, by ``settings``; None: only the default filter."""
    make = name == DEFAULT_FILTER if make is None else make
    where = options.filter() | {"near_cache": near_cache}
    try:
        return StreamedFilter.open(name, **where)
    except FilterNotFound as error:
        if make:
            archive = {} if name == DEFAULT_FILTER else {"archive": ""}  # a temporary filter needs no archive
            return StreamedFilter.create(name, **settings, **(where | archive), large=yes)
        text = f"{error}: urifilter create {name} --capacity 10M"
        raise FilterNotFound(text) from error


def change_lines(
    options: Shared,
    command: str,
    summary: Summary,
    text: str,
    *,
    claim_options: Callable[[Sequence[bytes]], ClaimOptions] | None = None,
    fills: bool = False,
) -> None:
    """Do a command that changes the state of lines, and print only a summary.

    Args:
        options: the shared options.
        command: the command of ``Stream``.
        summary: counts the lines.
        text: the format of the summary's text, with the attributes of ``summary`` and ``given``.
        claim_options: see ``Stream``.
        fills: whether the filter may be over capacity afterwards.
    """
    with open_filter(options, summary.given.filter, make=False) as news, Signals() as signals:
        stream: Stream[Window] = Stream(
            news, command, lambda _, answers: summary.count(answers), claim_options=claim_options
        )
        put_whole(stream, summary, signals)
        told = f"{summary.counted}: {text.format_map(vars(summary))}"
        finish(options, summary, told, news if fills else None)


def check_readable(summary: Summary) -> None:
    """End the command if no file can be read, before a filter is made for them."""
    files = summary.given.files
    reasons = [why_unreadable(name, summary.given.form) for name in files]
    if files and all(reasons):
        for name, why in zip(files, reasons, strict=True):
            summary.report_bad(f"{name}: {why}")
        raise click.exceptions.Exit(2)


def windows(summary: Summary, signals: Signals, *, prints: bool = False) -> Iterator[Window]:
    """Yield windows of lines, read as the summary says, and empty ones.

    A signal during the reading, or between two windows, ends the command.
    ``prints``: lines are printed meanwhile; on the same terminal progress would mix with them, and is not shown.
    """
    given = summary.given
    names = given.files or ("-",)
    with progress(total_size(names), quiet=given.quiet or (prints and sys.stdout.isatty())) as advance:
        found = windows_of(
            names, summary.report_bad, advance, signals.wait, form=given.form, most=UNDER_WAY // 2, pauses=True
        )
        while True:
            with signals.allowed():
                window = next(found, None)
            if window is None:
                return
            yield window


def finish(
    options: Shared, summary: Summary, text: str, news: StreamedFilter | None, *, to_stdout: bool = True
) -> None:
    """Print the summary; exit with 2 if any file or line was left out."""
    quiet = summary.given.quiet
    notice = over_capacity(news) if news is not None and (options.json or not quiet) else ""
    about = summary.about() | ({} if news is None else {"over_capacity": bool(notice)})
    if options.json and to_stdout:
        print_json(about)
    elif not quiet:
        say(json.dumps(about) if options.json else text)
    if notice and not quiet:
        say(f"urifilter: {notice}")
    if summary.end_bad():
        raise click.exceptions.Exit(2)


def put_all(
    stream: Stream[Window],
    summary: Summary,
    signals: Signals,
    *,
    choose: Callable[[Window], Window] | None = None,
    head: Callable[[bytes], object] | None = None,
) -> None:
    """Put all lines into a stream. Where lines have to be waited for, those before them are finished first.

    Args:
        stream: the stream.
        summary: says what is read.
        signals: the signals that may stop it.
        choose: returns the part of a window that the command takes; None: all of it.
        head: called with the header that all files share, before their lines; None: nothing is printed.
    """
    for window in windows(summary, signals, prints=head is not None):
        if window.header is not None and head is not None:
            head(window.header)
        if window:
            chosen = window if choose is None else choose(window)
            stream.put(chosen, chosen.items)
        else:
            stream.drain()
    stream.drain()


def put_whole(stream: Stream[Window], summary: Summary, signals: Signals) -> None:
    """Do as ``put_all``; if a signal stops it, finish the lines that were read."""
    try:
        put_all(stream, summary, signals)
    except Interrupted:
        stream.drain()
        raise
