"""Writes results as Markdown: all tables, and RESULTS.md, which has a part of each section."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.goals import Claim, judged
from bench.sections import NAMES, Row, section
from bench.tables import NOTHING, UNSURE, table

TITLE = "# Results of the bench\n"


def page(sections: Mapping[str, Row]) -> str:
    """Return the page of all tables, of the sections that there are."""
    lines = [TITLE, *_method(), "\n## Claims\n", *_claims(judged(sections))]
    for name in NAMES:
        if name in sections:
            found = sections[name]
            lines += ["", *_about(name, found), *section(name).tables(found), *_left_out(found)]
    return "\n".join(lines)


def part(name: str, found: Row) -> str:
    """Return a section's part of RESULTS.md: its claims, its machine, and those tables that the docs quote.

    Raises:
        LookupError: such a table is not there.
    """
    lines = [*_about(name, found)]
    if claims := [claim for claim in judged({name: found}) if claim.section == name]:
        lines += ["", *_claims(claims)]
    return "\n".join([*lines, *_quoted(name, found), *_left_out(found)])


def with_part(text: str, name: str, made: str) -> str:
    """Return RESULTS.md with a section's part in the place of its older one; all other parts stay.

    Args:
        text: of the page; empty: there is none.
        name: of the section.
        made: its part.
    """
    head, *parts = re.split(r"^<!-- section: (\w+) -->\n", text or _head(), flags=re.MULTILINE)
    kept = dict(zip(parts[::2], parts[1::2], strict=True)) | {name: made}
    marked = (f"<!-- section: {each} -->\n{kept[each].rstrip()}\n" for each in NAMES if each in kept)
    return "\n".join([f"{head.rstrip()}\n", *marked])


def _head() -> str:
    about = (
        "`python -m bench` writes this page: the claims, and the tables that the docs quote. A run of some sections",
        "replaces their parts and no others. All tables, the raw results and all charts are in the folder `results`,",
        "which git ignores.\n",
    )
    return "\n".join([TITLE, *about, *_method()])


def _method() -> Iterator[str]:
    yield "Each figure is the best of several tries, and the fastest should agree: the spread is between those. If they"
    yield f"do not, {UNSURE} stands behind the figure. The peers took turns in random order. Times and bytes are for"
    yield "an item: of the server's commands (INFO commandstats), of the clients' processors, on the wire. What scripts"
    yield "call counts once, in the time of EVALSHA. p50, p99, and p99.9 are microseconds of a call, of all tries. The"
    yield "longest command of the server in any of the tries is in microseconds, to two digits (the 100th percentile of"
    yield "INFO latencystats). A ratio without a name is to the first row."


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    yield from table(
        [
            ("claim", lambda claim: claim.text),
            ("asked", lambda claim: claim.asked),
            ("measured", lambda claim: NOTHING if claim.measured is None else f"{claim.measured:,.3g}"),
            ("kept", lambda claim: claim.verdict),
        ],
        claims,
    )


def _about(name: str, found: Row) -> Iterator[str]:
    made = section(name)
    where: Mapping[str, Any] = found["machine"]
    yield f"## {made.TITLE}\n"
    yield f"{made.ABOUT}\n"
    yield f"{where['processor']}, {where['processors']} processors, {where['system']}, Python {where['python']},"
    yield f"{found['versions'].get('server', 'no server')}; {where['time']}, load {where['load']:.2f} at the beginning;"
    rule = found["settings"].get("rule")
    tries = f"; of at most {rule['tries']} tries the {rule['k']} fastest within {rule['tolerance']:.0%}" if rule else ""
    yield f"{found['seconds']:,.0f} s{tries}{', a quick run' if found['quick'] else ''}."


def _quoted(name: str, found: Row) -> Iterator[str]:
    made = section(name)
    there = "\n".join(made.tables(found)).split("\n### ")
    tables = {text.partition("\n")[0]: text for text in there}
    for title in made.QUOTED:
        if title not in tables:
            raise LookupError(f"there is no table of {title}")
        yield f"\n### {tables[title].rstrip()}"


def _left_out(found: Row) -> Iterator[str]:
    for missing, reason in found["left_out"].items():
        yield f"\n{missing} is left out: {reason}."
