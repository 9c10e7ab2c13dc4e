"""``claim``, ``commit`` and ``release``: lines that a shell has in hand until they are final."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import click

from urifilter_redis.bloom.encoding import MOST_BYTES, pack
from urifilter_redis.engine.claim_options import Terms
from urifilter_redis.flows.claims import release_terms
from urifilter_redis.protocol.claims import NOBODY, Holding, check_delay
from urifilter_redis.streaming import Answers, Stream

from .common import Shared, counted, pass_shared, say, seconds
from .holders import beating, checked, given_back, hint, holder_option, lease_option
from .output import Output
from .over_lines import Summary, check_readable, do_all, finish, lines_command, open_filter
from .printing import Printer, print_lines
from .settings import yes_option
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .lines import Window

__all__ = ["claim", "commit", "release"]

#: Bytes of a line that is left out which its report shows.
SHOWN = 60


@dataclass
class _Claimed(Summary):
    """The result of ``claim``: ``new`` is the number of lines that it claimed.

    Attributes:
        in_hand: the number of lines that somebody had in hand, this command included.
        holder: the holder, 16 hex digits.
    """

    names: ClassVar[dict[str, str]] = {"new": "claimed"}

    in_hand: int = 0
    holder: str = ""

    def count(self, answers: Answers) -> None:
        """Count the answers of a window of lines."""
        super().count(answers)
        in_hand = answers.count(-1)
        self.in_hand, self.seen = self.in_hand + in_hand, self.seen - in_hand

    @property
    def text(self) -> str:
        """The summary for people."""
        counts = f"{self.new:,} claimed, {self.in_hand:,} in hand already, {self.seen:,} seen before"
        return f"{counted(self.lines, 'line')}: {counts} (filter {self.filter})"


class _Committed(Summary):
    """The result of ``commit``: ``new`` is the number of lines that it made final."""

    names: ClassVar[dict[str, str]] = {"new": "committed"}


class _Released(Summary):
    """The result of ``release``: ``seen`` is the number of lines that it gave back."""

    names: ClassVar[dict[str, str]] = {"new": "not_in_hand", "seen": "released"}


@click.command()
@lines_command
@lease_option()
@holder_option("Go on as this holder, 16 hex digits; by default a new one is drawn.")
@yes_option
@pass_shared
def claim(
    options: Shared,
    name: str,
    files: tuple[str, ...],
    *,
    quiet: bool,
    lease: float,
    holder: str | None,
    yes: bool,
) -> None:
    """Print the lines of files, or of stdin, that are neither seen nor in hand, and take them in hand.

    A line is in hand until `urifilter commit` makes it final, or `urifilter release` gives it back. The lease begins
    anew while this command runs, and with each `urifilter beat`. A line whose lease is over is for `urifilter reclaim`.

    \b
    Example:
      urifilter claim --filter news links.txt > todo.txt
    """
    summary, output = _Claimed(name), Output()
    check_readable(files, summary)
    with Signals() as signals:
        with signals.allowed():
            news = open_filter(options, name, yes=yes)
        with news, news.claims(lease, holder=holder, beats=False) as mine, beating(news, mine, quiet=quiet):
            summary.holder = mine.holder
            if not quiet and not options.json:
                say(hint(name, mine.holder, lease))
            printer = Printer(signals, output, summary, given_back(mine))
            holding = Holding(mine.holder, round(lease * 1000))
            stream: Stream[Window] = Stream(news, "claim", printer.take, terms=partial(_claim_terms, holding))
            print_lines(stream, printer, files, quiet=quiet, choose=partial(_keepable, summary))
        finish(options, summary, summary.text, None, quiet=quiet, to_stdout=False)


@click.command()
@lines_command
@pass_shared
def commit(options: Shared, name: str, files: tuple[str, ...], *, quiet: bool) -> None:
    """Make the lines of files, or of stdin, final, whoever has them in hand: they are seen from now on.

    \b
    Example:
      urifilter commit --filter news fetched.txt
    """

    def text(summary: Summary) -> str:
        return f"{summary.new:,} final now, {summary.seen:,} were before"

    _end(options, "commit", _Committed(name), files, lambda _: Terms(NOBODY), text, quiet=quiet)


@click.command()
@lines_command
@click.option(
    "--delay", type=seconds, callback=checked(check_delay), metavar="TIME", help="Offer them later: 1s to 10m."
)
@click.option("--failed", is_flag=True, help="Count a failure of each line, for a crawler that gives up after some.")
@holder_option("Give back only lines that this holder has in hand; by default those that anybody has.")
@lease_option("With --holder: how long its other lines stay in hand from now.")
@pass_shared
def release(
    options: Shared,
    name: str,
    files: tuple[str, ...],
    *,
    quiet: bool,
    delay: float | None,
    failed: bool,
    holder: str | None,
    lease: float,
) -> None:
    """Give back the lines of files, or of stdin, that are in hand: `urifilter reclaim` offers them again.

    \b
    Example:
      urifilter release --filter news --failed --delay 30s failed.txt
    """

    def text(summary: Summary) -> str:
        return f"{summary.seen:,} given back, {summary.new:,} were not in hand"

    holding = NOBODY if holder is None else Holding(holder, round(lease * 1000))
    _end(
        options,
        "release",
        _Released(name),
        files,
        lambda _: release_terms(holding, delay or 0.0, failed=failed),
        text,
        quiet=quiet,
    )


def _end(
    options: Shared,
    command: str,
    summary: Summary,
    files: tuple[str, ...],
    terms: Callable[[Sequence[bytes]], Terms],
    text: Callable[[Summary], str],
    *,
    quiet: bool,
) -> None:
    """Commit or release lines; ``text`` tells the counts of the summary."""
    with open_filter(options, summary.filter, make=False) as news, Signals() as signals:
        stream: Stream[Window] = Stream(news, command, lambda _, answers: summary.count(answers), terms=terms)
        do_all(stream, files, summary, signals, quiet=quiet)
        told = f"{counted(summary.lines, 'line')}: {text(summary)} (filter {summary.filter})"
        finish(options, summary, told, news if command == "commit" else None, quiet=quiet)


def _claim_terms(holding: Holding, items: Sequence[bytes]) -> Terms:
    """Return the terms that claim lines. Text is kept as such, for crawlers to which a URI is a str."""
    return Terms(holding, kept=[pack(_text(item)) for item in items])


def _text(item: bytes) -> str | bytes:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item


def _keepable(summary: Summary, window: Window) -> Window:
    """Return the lines that a filter can keep while they are in hand; report the others."""
    lines, items = window
    if max(map(len, items)) <= MOST_BYTES:
        return window
    for item in items:
        if len(item) > MOST_BYTES:
            begin = item[:SHOWN].decode(errors="replace")
            text = f"a line of {len(item):,} bytes is left out, because a claim keeps at most {MOST_BYTES:,}: {begin}…"
            summary.report_bad(text)
    kept = [(line, item) for line, item in zip(lines, items, strict=True) if len(item) <= MOST_BYTES]
    return [line for line, _ in kept], [item for _, item in kept]
