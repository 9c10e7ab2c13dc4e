"""``add``, ``check``, ``dedupe``, ``forget``, ``remove``: each line of a file is an item."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import os
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.bloom.digest import make_digester, new_seed
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.rules import canonical_rules
from urifilter_redis.streaming import Answers, Stream, StreamedFilter
from urifilter_redis.transport.embedded import DATA_DIR_VARIABLE, has_usable_data_dir

from .common import DEFAULT_SETTINGS, Shared, given_of, json_item, pass_shared, say
from .filters import rules_option, yes_option
from .line_commands import (
    DEFAULT_FILTER,
    NEAR_CACHE,
    Input,
    Summary,
    change_lines,
    check_readable,
    finish,
    lines_command,
    max_age_option,
    open_filter,
    put_all,
    put_whole,
    windows,
)
from .output import Output
from .printing import Printer, Undoing, print_lines
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .records import Window

#: The lines that ``dedupe --count`` prints at once. A signal ends it between two of these.
COUNTS_AT_ONCE = 4000


@click.command()
@lines_command
@max_age_option
@yes_option
@pass_shared
def add(options: Shared, given: Input, *, max_age: int | None, yes: bool) -> None:
    """Insert the lines of files, or of stdin.

    \b
    Example:
      urifilter add --filter news seen-already.txt
    """
    summary = Summary(given)
    check_readable(summary)
    with open_filter(options, given.filter, yes=yes, near_cache=NEAR_CACHE) as news, Signals() as signals:
        stream: Stream[Window] = Stream(news, "insert", lambda _, ages: summary.count(ages), max_age)
        put_whole(stream, summary, signals)
        text = f"{summary.counted}: {summary.new:,} added to filter {given.filter}, {summary.seen:,} were there"
        finish(options, summary, text, news)


@click.command()
@lines_command
@pass_shared
def forget(options: Shared, given: Input) -> None:
    """Make the lines of files, or of stdin, new again.

    \b
    Example:
      urifilter forget --filter news crawl-again.txt
    """
    change_lines(options, "forget", Summary(given), "{seen:,} forgotten, {new:,} were not there")


@click.command()
@lines_command
@pass_shared
def remove(options: Shared, given: Input) -> None:
    """Remove the lines of files, or of stdin, from a filter of layout counting.

    Remove only lines that were inserted: removing others may make other items new.

    \b
    Example:
      urifilter remove --filter queue done.txt
    """
    change_lines(options, "remove", Summary(given), "{seen:,} removed, {new:,} were not there")


@click.command()
@lines_command
@max_age_option
@click.option("--new", "only_new", is_flag=True, help="Print only the lines that are not in the filter.")
@click.option("--archive-file", type=click.Path(path_type=Path), help="Ask an exported filter instead of a server.")
@pass_shared
def check(options: Shared, given: Input, *, only_new: bool, max_age: int | None, archive_file: Path | None) -> None:
    """Print "seen" or "new" and a tab before each line, without inserting it. With --json print an object a line.

    A header of CSV stands alone.

    Exits with 0 if any line was seen (--new: new), with 1 if none was, with 2 on errors.

    \b
    Example:
      urifilter check --filter words --new text.txt
    """
    if archive_file and given_of("name"):
        raise click.UsageError("--archive-file asks that file, and no --filter: leave one of them out")
    summary, output = Summary(given), Output(b"\n" if options.json else given.form.end)

    def head(header: bytes) -> None:
        if not options.json:
            with signals.allowed():
                output.write_header(header)

    def show(window: Window, ages: Answers) -> None:
        lines = window.records
        texts = _json_lines(window.items, ages) if options.json else lines if only_new else _marked(lines, ages)
        shown = [text for text, age in zip(texts, ages, strict=True) if not age] if only_new else [*texts]
        output.add(shown, shown)
        with signals.allowed():
            output.write()
        summary.count(ages)

    with (
        ExportedFilter(archive_file) if archive_file else open_filter(options, given.filter, make=False) as asked,
        Signals() as signals,
    ):
        if isinstance(asked, StreamedFilter):
            put_all(Stream(asked, "contains", show, max_age), summary, signals, head=head)
        else:
            for window in windows(summary, signals, prints=True):
                if window.header is not None:
                    head(window.header)
                show(window, asked.ages(window.items, max_age=max_age))
    if options.json and not given.quiet:
        say(json.dumps(summary.about()))
    found = summary.new if only_new else summary.seen
    raise click.exceptions.Exit(2 if summary.end_bad() else 0 if found else 1)


def _json_lines(items: Sequence[bytes], ages: Answers) -> Iterator[bytes]:
    """Yield a JSON object for each item."""
    for item, age in zip(items, ages, strict=True):
        yield json.dumps({"item": json_item(item), "seen": age != 0, "age": age}).encode()


def _marked(lines: Sequence[bytes], ages: Answers) -> list[bytes]:
    return [(b"seen\t" if age else b"new\t") + line for line, age in zip(lines, ages, strict=True)]


@click.command()
@lines_command
@max_age_option
@click.option("--temporary", is_flag=True, help="Use a new filter, and drop it at the end.")
@click.option("--normalize", type=click.Choice(NORMALIZATIONS), help="With --temporary: which spellings are one item.")
@rules_option
@click.option(
    "--count",
    "counts",
    is_flag=True,
    help="With --temporary: print at the end how often each line came, a tab, and the line where it came first.",
)
@yes_option
@pass_shared
def dedupe(
    options: Shared,
    given: Input,
    *,
    temporary: bool,
    normalize: str | None,
    rules: Path | None,
    counts: bool,
    max_age: int | None,
    yes: bool,
) -> None:
    """Print the lines of files, or of stdin, that have not been seen before, in their order.

    Printed lines are in the filter then: a second run over the same file prints nothing. A file compressed by gzip,
    bzip2, xz or zstd is unpacked.

    \b
    Example:
      urifilter dedupe urls.txt > new.txt
      urifilter dedupe --csv --field url links.csv > new.csv
    """
    own: dict[str, Any] = {} if normalize is None else {"normalize": normalize}  # the settings of a temporary filter
    own |= {} if rules is None else {"rules": rules}
    if own and not temporary:
        raise click.UsageError(f"--{next(iter(own))} needs --temporary: a filter that stays has its own")
    if counts and not temporary:
        raise click.UsageError("--count needs --temporary: a filter does not know how often a line came")
    if counts and max_age is not None:
        raise click.UsageError("--count counts all lines: leave out --max-age")
    if temporary:
        if given_of("name"):
            raise click.UsageError("--temporary makes a filter of its own, and asks no --filter: leave one of them out")
        given = replace(given, filter=f"temporary-{secrets.token_hex(8)}")
    summary, output = Summary(given), Output(given.form.end)
    check_readable(summary)
    if counts:
        _print_counts(options, summary, output, own)
        return
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        if temporary and options.redis is None and not has_usable_data_dir():
            stack.enter_context(_temporary_data_dir())
        with contextlib.nullcontext() if temporary else signals.allowed():  # a signal would leave a temporary filter
            make = temporary or given.filter == DEFAULT_FILTER
            settings = DEFAULT_SETTINGS | own
            opened = open_filter(options, given.filter, make=make, yes=yes, near_cache=NEAR_CACHE, settings=settings)
            news = stack.enter_context(opened)
        if temporary:
            stack.callback(news.drop)
        undoing = Undoing(
            news.forget,
            line="new line",
            did="inserted",
            undone="new again",
            undo="made new again",
            doubt="`urifilter forget` makes them new again",
        )
        printer = Printer(signals, output, summary, undoing)
        print_lines(Stream(news, "insert", printer.take, max_age), printer)
        finish(options, summary, _deduped(summary), news, to_stdout=False)


@contextlib.contextmanager
def _temporary_data_dir() -> Iterator[None]:
    """Let the embedded server use a temporary folder, because the user's cannot be used."""
    before = os.environ.get(DATA_DIR_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="urifilter-", ignore_cleanup_errors=True) as folder:
        os.environ[DATA_DIR_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(DATA_DIR_VARIABLE)
            os.environ |= {} if before is None else {DATA_DIR_VARIABLE: before}


def _print_counts(options: Shared, summary: Summary, output: Output, own: dict[str, Any]) -> None:
    """Print each different line where it came first, behind its count, once all are read.

    In CSV the count is a column, so that the output is CSV, too.

    The counts need the memory that a filter saves, so this process has them, and no server is asked.
    """
    form, normalize = summary.given.form, own.get("normalize", "none")
    rules = canonical_rules(own["rules"], normalize) if "rules" in own else None
    digester = make_digester(normalize, "mmh3", new_seed("mmh3"), rules)
    between = form.delimiter.encode() if form.kind == "csv" else b"\t"
    counts: dict[bytes, int] = {}
    first: list[bytes] = []  # in the order of ``counts``
    with Signals() as signals:
        for window in windows(summary, signals):
            if window.header is not None:
                with signals.allowed():
                    output.write_header(_with_count(window.header, between))
            different = len(counts)
            for digest, record in zip(digester(window.items), window.records, strict=True):
                if digest in counts:
                    counts[digest] += 1
                else:
                    counts[digest] = 1
                    first.append(record)
            fresh = len(counts) - different
            summary.lines, summary.new = summary.lines + len(window), summary.new + fresh
            summary.seen += len(window) - fresh
        printed = zip(counts.values(), first, strict=True)
        while some := [
            b"%d%s%s" % (count, between, record) for count, record in itertools.islice(printed, COUNTS_AT_ONCE)
        ]:
            output.add(some, some)
            with signals.allowed():
                output.write()
        with signals.allowed():
            output.finish()
    text = f"{summary.counted}: {summary.new:,} different"
    finish(options, summary, text, None, to_stdout=False)


def _with_count(header: bytes, between: bytes) -> bytes:
    """Return a header of CSV with a column before the others; a byte order mark stays at the beginning."""
    names = header.removeprefix(codecs.BOM_UTF8)
    return header[: len(header) - len(names)] + b"count" + between + names


def _deduped(summary: Summary) -> str:
    text = f"{summary.counted}: {summary.new:,} new, {summary.seen:,} seen before (filter {summary.given.filter})"
    if summary.new or not summary.lines:
        return text
    drop = f"urifilter drop {summary.given.filter}"
    return f"{text}; all were printed by an earlier run or added: --temporary or `{drop}` starts afresh"
