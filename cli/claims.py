"""``claim``, ``commit``, ``release``, ``reclaim``, ``beat``: lines that a shell has in flight; and lists of claims."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from urifilter_redis import UriFilter
from urifilter_redis.bloom.encoding import MOST_BYTES
from urifilter_redis.claiming.base import Beating
from urifilter_redis.engine.holdings import BEATS, Claiming, ClaimOptions
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.claims import options_of_commit, options_of_release
from urifilter_redis.protocol.claims import (
    NO_HOLDER,
    PARKED,
    DeadLetter,
    Holding,
    InFlight,
    check_delay,
    check_holder,
    check_lease,
)
from urifilter_redis.streaming import Answers, Stream

from .common import (
    NOTHING_DUE,
    Decorator,
    Shared,
    columns,
    counted,
    filter_name,
    json_item,
    moment,
    option_type,
    packed,
    pass_shared,
    print_json,
    say,
    seconds,
    shared,
)
from .filters import yes_option
from .line_commands import (
    Input,
    Summary,
    change_lines,
    check_readable,
    filter_command,
    finish,
    lines_command,
    open_filter,
)
from .output import Output
from .printing import Printer, Undoing, print_lines
from .records import item_of
from .signals import Interrupted, Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from urifilter_redis import Claim, Outstanding
    from urifilter_redis.claiming.blocking import Claims

    from .records import Window

L = TypeVar("L", InFlight, DeadLetter)

#: The default lease. A shell does not beat by itself: this is the time to work through some lines once ``claim`` has
#: ended.
LEASE = "5m"

#: The most items of a list, and of ``reclaim``, without ``--limit``.
LISTED = 100

#: Bytes of a line left out that its report shows.
SHOWN = 60

#: Characters of an item that a table shows; --json has all.
WIDEST = 200

#: The exit code of ``beat`` for a holder that has nothing in flight, and of ``reclaim`` if nobody has.
NOTHING_IN_FLIGHT = 1


def holder_option(text: str) -> Decorator:
    """Return ``--holder``."""
    return click.option("--holder", type=option_type(check_holder), metavar="HOLDER", help=text)


@option_type
def lease_seconds(text: str) -> float:
    """Read a lease: 5s to 1h."""
    return check_lease(seconds(text))


@option_type
def delay_seconds(text: str) -> float:
    """Read the delay of a release: 1s to 7d."""
    return check_delay(seconds(text))


def lease_option(
    text: str = "How long lines stay in flight without a sign of life: 5s to 1h.", default: str = LEASE
) -> Decorator:
    """Return ``--lease``, in seconds."""
    return click.option("--lease", type=lease_seconds, metavar="TIME", default=default, show_default=True, help=text)


def _hint(name: str, holder: str, lease: float) -> str:
    """Return the text that says who has the lines of a command in flight, and how they stay there for longer."""
    longer = "" if lease == seconds(LEASE) else f" --lease {lease:g}s"
    return f"holder {holder}: its lines stay in flight for longer with: urifilter beat --filter {name}{longer} {holder}"


def _undoing(mine: Claims) -> Undoing:
    """Return how claimed lines that the reader may not have got are given back."""
    return Undoing(
        mine.release,
        line="claimed line",
        did="claimed",
        undone="given back",
        undo="given back before their lease is over",
        doubt="`urifilter reclaim` offers them when their lease is over",
    )


@contextmanager
def _beating(news: UriFilter, mine: Claims, *, quiet: bool) -> Iterator[None]:
    """Beat while a command waits for its input, or for the reader of its lines."""
    heart = _Heart(news, mine, quiet=quiet)
    thread = Beating(heart.beat, mine.lease * BEATS)
    thread.start()
    try:
        yield
    finally:
        thread.stop(mine.lease)


class _Heart:
    """Beats for a holder in all shards, because the command does not know which of its lines others have committed."""

    def __init__(self, news: UriFilter, mine: Claims, *, quiet: bool) -> None:
        self._news, self._mine, self._quiet = news, mine, quiet
        self._said = ""

    def beat(self) -> None:
        """Beat once. A failure is reported, the same one once, and the next beat may work."""
        try:
            self._news.beat(self._mine.holder, self._mine.lease)
        except UriFilterError as error:
            if not self._quiet and str(error) != self._said:
                self._said = str(error)
                say(f"urifilter: a sign of life failed, and is repeated: {error}")


@dataclass
class _Claimed(Summary):
    """The result of ``claim``: ``new`` is the number of lines that it claimed.

    Attributes:
        in_flight: the number of lines that somebody had in flight, this command included.
        holder: the holder, 16 hex digits.
    """

    names: ClassVar[dict[str, str]] = {"new": "claimed"}

    in_flight: int = 0
    holder: str = ""

    def count(self, answers: Answers) -> None:
        """Count the answers of a window of lines."""
        super().count(answers)
        in_flight = answers.count(-1)
        self.in_flight, self.seen = self.in_flight + in_flight, self.seen - in_flight

    @property
    def text(self) -> str:
        """The summary for people."""
        counts = f"{self.new:,} claimed, {self.in_flight:,} in flight already, {self.seen:,} seen before"
        return f"{self.counted}: {counts} (filter {self.given.filter})"


class _Committed(Summary):
    """The result of ``commit``: ``new`` is the number of lines that it made final."""

    names: ClassVar[dict[str, str]] = {"new": "committed"}


class _Rejected(Summary):
    """The result of ``commit --reject``: ``new`` is the number of lines that it rejected."""

    names: ClassVar[dict[str, str]] = {"new": "rejected", "seen": "not_in_flight"}


class _Released(Summary):
    """The result of ``release``: ``seen`` is the number of lines that it gave back."""

    names: ClassVar[dict[str, str]] = {"new": "not_in_flight", "seen": "released"}


@click.command()
@lines_command
@lease_option()
@holder_option("Go on as this holder, 16 hex digits; by default a new one is drawn.")
@yes_option
@pass_shared
def claim(options: Shared, given: Input, *, lease: float, holder: str | None, yes: bool) -> None:
    """Print the lines of files, or of stdin, that are neither seen nor in flight, and claim them.

    A line is in flight until `urifilter commit` makes it final, or `urifilter release` gives it back. The lease begins
    anew while this command runs, and with each `urifilter beat`. A line whose lease is over is for `urifilter reclaim`.

    \b
    Example:
      urifilter claim --filter news links.txt > todo.txt
    """
    summary, output, name = _Claimed(given), Output(given.form.end), given.filter
    check_readable(summary)
    with Signals() as signals:
        with signals.allowed():
            news = open_filter(options, name, yes=yes)
        with news, news.claims(lease, holder=holder, beats=False) as mine, _beating(news, mine, quiet=given.quiet):
            summary.holder = mine.holder
            if not given.quiet and not options.json:
                say(_hint(name, mine.holder, lease))
            printer = Printer(signals, output, summary, _undoing(mine))
            holding = Holding(mine.holder, round(lease * 1000))
            stream: Stream[Window] = Stream(news, "claim", printer.take, claim_options=partial(_claim_options, holding))
            print_lines(stream, printer, choose=partial(_keepable, summary))
        finish(options, summary, summary.text, None, to_stdout=False)


@click.command()
@lines_command
@click.option(
    "--reject", metavar="REASON", help="Note why each line fails for ever; `dead-letters` lists it. With --holder."
)
@holder_option("With --reject: reject only lines that this holder has in flight.")
@lease_option("With --holder: how long its other lines stay in flight from now.")
@pass_shared
def commit(options: Shared, given: Input, *, reject: str | None, holder: str | None, lease: float) -> None:
    """Make the lines of files, or of stdin, final, whoever has them in flight: they are seen from now on.

    \b
    Example:
      urifilter commit --filter news fetched.txt
      urifilter commit --filter news --holder 1f0c4a2b9d3e5f60 --reject "answers 404" failed.txt
    """
    if (reject is None) != (holder is None):
        raise click.UsageError("--reject and --holder go together: only what a holder has in flight is rejected")
    holding = NO_HOLDER
    summary: Summary = _Committed(given)
    text = "{new:,} final now, {seen:,} were before (filter {given.filter})"
    if holder is not None and reject is not None:
        holding = Holding(holder, round(lease * 1000))
        summary, text = _Rejected(given), "{new:,} rejected, {seen:,} were not in flight (filter {given.filter})"

    def claim_options(_: Sequence[bytes]) -> ClaimOptions:
        return options_of_commit(holding, reject)

    change_lines(options, "commit", summary, text, claim_options=claim_options, fills=True)


@click.command()
@lines_command
@click.option("--delay", type=delay_seconds, metavar="TIME", help="Offer them later: 1s to 7d.")
@click.option("--failed", is_flag=True, help="Count a failure of each line, for a crawler that gives up after some.")
@holder_option("Give back only lines that this holder has in flight; by default those that anybody has.")
@lease_option("With --holder: how long its other lines stay in flight from now.")
@pass_shared
def release(
    options: Shared, given: Input, *, delay: float | None, failed: bool, holder: str | None, lease: float
) -> None:
    """Give back the lines of files, or of stdin, that are in flight: `urifilter reclaim` offers them again.

    \b
    Example:
      urifilter release --filter news --failed --delay 30s failed.txt
    """
    text = "{seen:,} given back, {new:,} were not in flight (filter {given.filter})"
    holding = NO_HOLDER if holder is None else Holding(holder, round(lease * 1000))

    def claim_options(_: Sequence[bytes]) -> ClaimOptions:
        return options_of_release(holding, delay or 0.0, failed=failed)

    change_lines(options, "release", _Released(given), text, claim_options=claim_options)


def _claim_options(holding: Holding, items: Sequence[bytes]) -> ClaimOptions:
    return Claiming(holding, kept=dict(enumerate(map(packed, items))))


def _keepable(summary: Summary, window: Window) -> Window:
    """Return the lines that a filter can keep while they are in flight; report the others."""
    if max(map(len, window.items)) <= MOST_BYTES:
        return window
    for item in window.items:
        if len(item) > MOST_BYTES:
            begin = _shown(item[:SHOWN].decode(errors="replace"))
            text = f"a line of {len(item):,} bytes is left out, because a claim keeps at most {MOST_BYTES:,}: {begin}…"
            summary.report_bad(text)
    return window.chosen([len(item) <= MOST_BYTES for item in window.items])


@click.command()
@filter_command
@click.option("--limit", type=click.IntRange(1), default=LISTED, show_default=True, help="The most lines.")
@click.option(
    "--within",
    type=option_type(seconds),
    help="Exit with 1 also if nothing is due within this time, as after long delays. [default: however late it is]",
)
@lease_option()
@holder_option("Go on as this holder, 16 hex digits; by default a new one is drawn.")
@pass_shared
def reclaim(
    options: Shared, name: str, *, quiet: bool, limit: int, within: float | None, lease: float, holder: str | None
) -> None:
    """Print lines whose lease is over, or that were released and are due, and claim them.

    Items that are no lines are printed only with --json, as an object a line, with their payload, failures and lapses.

    Exits with 0 if it printed any, with 3 if nothing is due yet, with 1 if nobody has anything in flight, with 2 on
    errors.

    \b
    Example:
      urifilter reclaim --filter news > todo.txt
    """
    output = Output()
    with Signals() as signals:
        with signals.allowed():
            news = open_filter(options, name, make=False)
        with news, news.claims(lease, holder=holder, beats=False) as mine, _beating(news, mine, quiet=quiet):
            found, parked = _reclaim(mine, limit, as_json=options.json)
            if found and not quiet and not options.json:
                say(_hint(name, mine.holder, lease))
            output.add([line for line, _ in found], [each.item for _, each in found])
            try:
                with signals.allowed():
                    output.write()
                    output.finish()
            except (OSError, Interrupted):
                _undoing(mine).take_back(name, output.undelivered(), quiet=quiet)
                raise
            left = None if found else mine.outstanding()
            if not quiet:
                about = {"filter": name, "holder": mine.holder, "lines": len(found), "parked": parked}
                say(_summary(about, left, as_json=options.json))
            waits = left if within is None or not left else mine.outstanding(within)
    if left is not None:
        raise click.exceptions.Exit(NOTHING_DUE if waits else NOTHING_IN_FLIGHT)


@click.command()
@click.argument("holder", type=option_type(check_holder))
@filter_command
@lease_option("How long its lines stay in flight from now, without another sign of life: 5s to 1h.")
@pass_shared
def beat(options: Shared, holder: str, name: str, *, quiet: bool, lease: float) -> None:
    """Give a sign of life for HOLDER, which `urifilter claim` has told, and print how much it has in flight.

    Exits with 0 if it has anything in flight, with 1 if it has nothing, with 2 on errors.

    \b
    Example:
      urifilter beat --filter news 1f0c4a2b9d3e5f60
    """
    with open_filter(options, name, make=False) as news:
        in_flight = news.beat(holder, lease)
    about = {"filter": name, "holder": holder, "in_flight": in_flight, "lease": lease}
    options.tell(about, f"{counted(in_flight, 'item')} in flight (filter {name})", quiet=quiet)
    if not in_flight:
        raise click.exceptions.Exit(NOTHING_IN_FLIGHT)


@click.command()
@click.argument("name", type=filter_name)
@click.option("--limit", type=click.IntRange(1), default=LISTED, show_default=True, help="The most items.")
@shared
@pass_shared
def claims(options: Shared, name: str, limit: int) -> None:
    """List what is in flight in a filter: the item, its holder, failures, lapses, and the seconds of its lease.

    \b
    Example:
      urifilter claims news
    """
    with UriFilter.open(name, **options.filter()) as news:
        found = news.in_flight(limit + 1)

    def row(each: InFlight) -> tuple[object, ...]:
        return _shown(each.item), each.holder, each.failures, each.lapses, round(each.lease)

    head = ("item", "holder", "failures", "lapses", "lease")
    _print_list(options, found, limit, head, row, f"nothing is in flight (filter {name})")


@click.command("dead-letters")
@click.argument("name", type=filter_name)
@click.option("--limit", type=click.IntRange(1), help=f"The most items.  [default: {LISTED}]")
@click.option("--retry", is_flag=True, help="Offer all of them once more, by reclaim, in place of listing them.")
@shared
@pass_shared
def dead_letters(options: Shared, name: str, limit: int | None, *, retry: bool) -> None:
    """List the dead letters in a filter, the latest first: the time, the item, failures, lapses and the reason.

    \b
    Example:
      urifilter dead-letters news
      urifilter dead-letters news --retry
    """
    if retry and limit is not None:
        raise click.UsageError("--retry offers all items: leave out --limit")
    most = limit or LISTED
    with UriFilter.open(name, **options.filter()) as news:
        if retry:
            count = news.retry_dead_letters()
            text = f"{counted(count, 'item')} offered once more (filter {name})"
            options.tell({"filter": name, "offered": count}, text)
            return
        found = news.dead_letters(most + 1)

    def row(each: DeadLetter) -> tuple[object, ...]:
        return moment(each.at), _shown(each.item), each.failures, each.lapses, _shown(each.reason)

    head = ("rejected", "item", "failures", "lapses", "reason")
    _print_list(options, found, most, head, row, f"nothing was rejected (filter {name})")


def _print_list(
    options: Shared,
    found: Sequence[L],
    limit: int,
    head: Sequence[str],
    row: Callable[[L], Sequence[object]],
    none: str,
) -> None:
    """Write at most ``limit`` items to stdout, and to stderr whether there are more, or none."""
    shown = found[:limit]
    if options.json:
        print_json(
            [asdict(each) | {"item": json_item(each.item), "payload": _json_value(each.payload)} for each in shown]
        )
        return
    if not found:
        say(none)
        return
    columns(head, map(row, shown))
    if len(found) > limit:
        say(f"there are more: --limit {2 * limit}")


def _shown(item: Any) -> str:
    """Return an item, or the text of a stranger, as a cell of a table: nothing that moves a terminal's cursor."""
    text = _json_value(item)
    text = text if isinstance(text, str) and text.isprintable() else json.dumps(text)
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}…"


def _reclaim(mine: Claims, limit: int, *, as_json: bool) -> tuple[list[tuple[bytes, Claim]], int]:
    """Reclaim; return the lines to print, each with its claim, and the number of parked items.

    Items that are no lines are parked: released for as long as possible, so that the next call gets to the lines.
    """
    lines: list[tuple[bytes, Claim]] = []
    parked = 0
    while not lines and (found := mine.reclaim(limit)):
        if as_json:
            return [(_json_line(each, mine.holder), each) for each in found], 0
        pairs = [(_line_of(each.item), each) for each in found]
        lines = [(line, each) for line, each in pairs if line is not None]
        others = [each.item for line, each in pairs if line is None]
        if others:
            mine.release(others, delay=PARKED)
        parked += len(others)
    return lines, parked


def _line_of(item: Any) -> bytes | None:
    """Return an item as a line which, if it is read again, is the same item; None if there is none."""
    if not isinstance(item, str | bytes):
        return None
    line = item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")
    return None if b"\n" in line or item_of(line) != line else line


def _json_line(claim: Claim, holder: str) -> bytes:
    """Return an object for a claim."""
    about = {"item": json_item(claim.item), "payload": _json_value(claim.payload)}
    counts = {"failures": claim.failures, "lapses": claim.lapses}
    return json.dumps(about | counts | {"holder": holder}).encode()


def _json_value(value: Any) -> Any:
    """Return a payload for JSON, or text to be shown. Bytes that are not UTF-8 become lone surrogates."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _summary(about: dict[str, Any], left: Outstanding | None, *, as_json: bool) -> str:
    """Return the summary of a reclaim; ``left`` is what others have in flight, if nothing was found."""
    if as_json:
        others, due = (None, None) if left is None else (left.others, left.due)
        return json.dumps(about | {"others": others, "due": due})
    texts = [counted(about["lines"], "line") + " reclaimed"]
    if left is not None:
        texts = ["nothing is due", "nobody has anything in flight"]
        if left:
            first = "" if left.due is None else f", the first of which may be due in {left.due:.0f} s"
            texts[1] = f"others have {counted(left.others, 'item')} in flight{first}"
    if about["parked"]:
        texts.append(f"{counted(about['parked'], 'item')} that only --json prints will be due in 10 minutes")
    return f"{'; '.join(texts)} (filter {about['filter']})"
