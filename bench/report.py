"""Writes results as the page RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.goals import judged
from bench.plots.bar_chart import UNSURE
from bench.sections import NAMES, Row, section
from bench.tables import NOTHING, table


def page(sections: Mapping[str, Row]) -> str:
    """Return the page of the sections that there are."""
    lines = ["# Results of the bench\n", *_method(), *_claims(sections)]
    for name in NAMES:
        if name in sections:
            lines += _section(name, sections[name])
    return "\n".join(lines)


def _method() -> Iterator[str]:
    yield "Each figure is the best of several tries, and the fastest should agree: the spread is between those. If they"
    yield f"do not, {UNSURE} stands behind the figure. The peers took turns in random order. Times and bytes are for"
    yield "an item: of the server's commands (INFO commandstats), of the clients' processors, on the wire. p50, p99,"
    yield "and p99.9 are microseconds of a call, of all tries. The longest command of the server in any of the tries is"
    yield "in microseconds, to two digits (the 100th percentile of INFO latencystats). A ratio without a name is to the"
    yield "first row."


def _claims(sections: Mapping[str, Row]) -> Iterator[str]:
    yield "\n## Claims\n"
    yield from table(
        [
            ("claim", lambda claim: claim.text),
            ("asked", lambda claim: claim.asked),
            ("measured", lambda claim: NOTHING if claim.measured is None else f"{claim.measured:,.3g}"),
            ("kept", lambda claim: claim.verdict),
        ],
        judged(sections),
    )


def _section(name: str, found: Row) -> Iterator[str]:
    made = section(name)
    where: Mapping[str, Any] = found["machine"]
    yield f"\n## {made.TITLE}\n"
    yield f"{made.ABOUT}\n"
    yield f"{where['processor']}, {where['processors']} processors, {where['system']}, Python {where['python']},"
    yield f"{found['versions'].get('server', 'no server')}; {where['time']}, load {where['load']:.2f} at the beginning;"
    rule = found["settings"].get("rule")
    tries = f"; of at most {rule['tries']} tries the {rule['k']} fastest within {rule['tolerance']:.0%}" if rule else ""
    yield f"{found['seconds']:,.0f} s{tries}{', a quick run' if found['quick'] else ''}."
    yield from made.tables(found)
    for missing, reason in found["left_out"].items():
        yield f"\n{missing} is left out: {reason}."
