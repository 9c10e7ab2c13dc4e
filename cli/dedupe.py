"""``dedupe``: print the new lines of files."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from typing import TYPE_CHECKING

import click

from urifilter_redis.streaming import Stream, StreamedFilter
from urifilter_redis.transport.embedded import DATA_DIR_VARIABLE, has_usable_data_dir

from .common import Shared, counted, pass_shared
from .output import Output
from .over_lines import (
    DEFAULT_FILTER,
    NEAR_CACHE,
    Summary,
    check_readable,
    finish,
    lines_command,
    max_age_option,
    open_filter,
)
from .printing import Printer, Undoing, print_lines
from .settings import yes_option
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    Printed lines are in the filter then: a second run over the same file prints nothing. A file compressed by gzip,
    bzip2, xz or zstd is unpacked.

    \b
    Example:
      urifilter dedupe urls.txt > new.txt
    """
    summary, output = Summary(f"temporary-{secrets.token_hex(8)}" if temporary else name), Output()
    check_readable(files, summary)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        if temporary and options.redis is None and not has_usable_data_dir():
            stack.enter_context(_folder_of_its_own())
        with contextlib.nullcontext() if temporary else signals.allowed():  # a signal would leave a temporary filter
            make = temporary or name == DEFAULT_FILTER
            news = stack.enter_context(open_filter(options, summary.filter, make=make, yes=yes, near_cache=NEAR_CACHE))
        if temporary:
            stack.callback(news.drop)
        printer = Printer(signals, output, summary, _undoing(news))
        print_lines(Stream(news, "insert", printer.take, max_age), printer, files, quiet=quiet)
        finish(options, summary, _deduped(summary), news, quiet=quiet, to_stdout=False)


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[None]:
    """Let the embedded server use a temporary folder, as that of the user cannot be used."""
    before = os.environ.get(DATA_DIR_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="urifilter-", ignore_cleanup_errors=True) as folder:
        os.environ[DATA_DIR_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(DATA_DIR_VARIABLE)
            os.environ |= {} if before is None else {DATA_DIR_VARIABLE: before}


def _undoing(news: StreamedFilter) -> Undoing:
    return Undoing(
        news.forget,
        line="new line",
        did="inserted",
        undone="new again",
        undo="made new again",
        doubt="`urifilter forget` makes them new again",
    )


def _deduped(summary: Summary) -> str:
    lines = counted(summary.lines, "line")
    text = f"{lines}: {summary.new:,} new, {summary.seen:,} seen before (filter {summary.filter})"
    if summary.new or not summary.lines:
        return text
    drop = f"urifilter drop {summary.filter}"
    return f"{text}; all were printed by an earlier run or added: --temporary or `{drop}` starts afresh"
