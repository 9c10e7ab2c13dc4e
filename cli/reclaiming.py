"""``reclaim`` and ``beat``: lines of dead crawlers, and signs of life."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any

import click

from urifilter_redis.protocol.claims import MOST_DELAY

from .common import NOTHING_DUE, Shared, counted, pass_shared, print_json, say
from .holders import beating, given_back, hint, holder_of, holder_option, lease_option
from .output import Output
from .over_lines import filter_command, open_filter
from .signals import Interrupted, Signals

if TYPE_CHECKING:
    from urifilter_redis import Claim, Outstanding
    from urifilter_redis.claiming.blocking import Claims

__all__ = ["beat", "reclaim"]

#: The exit code of ``beat`` for a holder that has nothing in hand, and of ``reclaim`` if nobody has.
NOTHING_IN_HAND = 1


@click.command()
@filter_command
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most lines.")
@lease_option()
@holder_option("Go on as this holder, 16 hex digits; by default a new one is drawn.")
@pass_shared
def reclaim(options: Shared, name: str, *, quiet: bool, limit: int, lease: float, holder: str | None) -> None:
    """Print lines whose lease is over, or that were released and are due, and take them in hand.

    Items that are no lines are printed only with --json, as an object a line, with their payload, failures and lapses.

    Exits with 0 if it printed any, with 3 if nothing is due yet, with 1 if nobody has anything in hand, with 2 on
    errors.

    \b
    Example:
      urifilter reclaim --filter news > todo.txt
    """
    output = Output()
    with Signals() as signals:
        with signals.allowed():
            news = open_filter(options, name, make=False)
        with news, news.claims(lease, holder=holder, beats=False) as mine, beating(news, mine, quiet=quiet):
            told, parked = _found(mine, limit, as_json=options.json)
            if told and not quiet and not options.json:
                say(hint(name, mine.holder, lease))
            output.add([line for line, _ in told], [each.item for _, each in told])
            try:
                with signals.allowed():
                    output.write()
                    output.finish()
            except (OSError, Interrupted):
                given_back(mine).take_back(name, output.undelivered(), quiet=quiet)
                raise
            left = None if told else mine.outstanding()
            if not quiet:
                about = {"filter": name, "holder": mine.holder, "lines": len(told), "parked": parked}
                say(_summary(about, left, as_json=options.json))
    if left is not None:
        raise click.exceptions.Exit(NOTHING_DUE if left else NOTHING_IN_HAND)


@click.command()
@click.argument("holder", type=holder_of)
@filter_command
@lease_option("How long its lines stay in hand from now, without another sign of life: 5s to 1h.")
@pass_shared
def beat(options: Shared, holder: str, name: str, *, quiet: bool, lease: float) -> None:
    """Give a sign of life for HOLDER, which `urifilter claim` has told, and print how much it has in hand.

    Exits with 0 if it has anything in hand, with 1 if it has nothing, with 2 on errors.

    \b
    Example:
      urifilter beat --filter news 1f0c4a2b9d3e5f60
    """
    with open_filter(options, name, make=False) as news:
        in_hand = news.beat(holder, lease)
    if options.json:
        print_json({"filter": name, "holder": holder, "in_hand": in_hand, "lease": lease})
    elif not quiet:
        click.echo(f"{counted(in_hand, 'item')} in hand (filter {name})")
    if not in_hand:
        raise click.exceptions.Exit(NOTHING_IN_HAND)


def _found(mine: Claims, limit: int, *, as_json: bool) -> tuple[list[tuple[bytes, Claim]], int]:
    """Reclaim; return the lines to print, each with its claim, and how many items are none and were given back.

    Those are parked as long as a release allows, so that they do not keep the next call from the lines.
    """
    told: list[tuple[bytes, Claim]] = []
    parked = 0
    while not told and (found := mine.reclaim(limit)):
        if as_json:
            return [(_json_line(each, mine.holder), each) for each in found], 0
        pairs = [(_line_of(each.item), each) for each in found]
        told = [(line, each) for line, each in pairs if line is not None]
        others = [each.item for line, each in pairs if line is None]
        if others:
            mine.release(others, delay=MOST_DELAY)
        parked += len(others)
    return told, parked


def _line_of(item: Any) -> bytes | None:
    """Return an item as a line which, if it is read again, is the same item; None if there is none."""
    if not isinstance(item, str | bytes):
        return None
    line = item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")
    changed = b"\n" in line or line.endswith(b"\r") or line.startswith(codecs.BOM_UTF8)
    return None if changed else line


def _json_line(claim: Claim, holder: str) -> bytes:
    """Return an object for a claim. Bytes that are not UTF-8 become lone surrogates."""
    item, payload = map(_json_value, (claim.item, claim.payload))
    counts = {"failures": claim.failures, "lapses": claim.lapses}
    return json.dumps({"item": item, "payload": payload} | counts | {"holder": holder}).encode()


def _json_value(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _summary(about: dict[str, Any], left: Outstanding | None, *, as_json: bool) -> str:
    """Return the summary of a reclaim; ``left`` is what others have in hand, if nothing was found."""
    if as_json:
        others, due = (None, None) if left is None else (left.others, left.due)
        return json.dumps(about | {"others": others, "due": due})
    texts = [counted(about["lines"], "line") + " reclaimed"]
    if left is not None:
        texts = ["nothing is due", "nobody has anything in hand"]
        if left:
            first = "" if left.due is None else f", the first of which may be due in {left.due:.0f} s"
            texts[1] = f"others have {counted(left.others, 'item')} in hand{first}"
    if about["parked"]:
        texts.append(f"{counted(about['parked'], 'item')} that only --json prints will be due in 10 minutes")
    return f"{'; '.join(texts)} (filter {about['filter']})"
