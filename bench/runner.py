"""Runs functions from the command line: their parameters are the options, and the rows that they yield are tables.

A script is a module of ``bench.scripts`` whose docstring says what it measures. Its ``main`` yields texts, and rows as
mappings of columns to figures.
"""

from __future__ import annotations

import argparse
import inspect
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from operator import truediv
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from bench.servers import NAMES
from bench.tables import figures

T = TypeVar("T")

#: A row of a script's table: texts and numbers by their columns.
Row = dict[str, str | float]

#: The scripts.
SCRIPTS = sorted(path.stem for path in (Path(__file__).parent / "scripts").glob("[a-z]*.py"))

#: Names of servers, on each of which a script measures.
Servers = Annotated[Sequence[str], NAMES]


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a script, and print what it finds as it comes."""
    script = import_module(f"bench.scripts.{name}")
    for line in figures(script.main(**options(script.main, f"python -m bench {name}", script.__doc__, arguments))):
        print(line, flush=True)


def options(
    main: Callable[..., object], prog: str, about: str | None, arguments: Sequence[str] | None
) -> dict[str, Any]:
    """Parse the options of a function: its parameters, with their types, defaults, and help of its docstring.

    ``Sequence`` takes several values, and ``Annotated`` has those that may be chosen.
    """
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    helps = dict(re.findall(r"^ +(\w+): (.+)$", main.__doc__ or "", re.MULTILINE))
    for name, option in inspect.signature(main, eval_str=True).parameters.items():
        kind, choices = (
            get_args(option.annotation) if get_origin(option.annotation) is Annotated else (option.annotation, None)
        )
        kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
        several = get_origin(kind) is Sequence
        how: dict[str, Any] = {"action": "store_true"}
        if kind is not bool:
            how = {
                "type": get_args(kind)[0] if several else kind,
                "choices": choices,
                "nargs": "+" if several else None,
            }
            how |= {"metavar": "NAME"} if choices and len(choices) > len(NAMES) else {}
        shown = f"{helps.get(name, '')} (%(default)s)" if option.default else helps.get(name)
        parser.add_argument(f"--{name.replace('_', '-')}", default=option.default, help=shown, **how)
    return vars(parser.parse_args(arguments))


def turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Let ways take turns, so that a slow moment of the machine falls on all alike; return what each found."""
    found: dict[str, list[T]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, measure in ways.items():
            found[way].append(measure())
    return found


def ratio(values: Sequence[float], to: Sequence[float]) -> float:
    """Return the median of each round's ratio."""
    return statistics.median(map(truediv, values, to))


def medians(found: Mapping[str, Sequence[float]], unit: str, *references: str) -> Iterator[Row]:
    """Yield a row for each way: the median of its rounds, and the median of their ratios to some ways."""
    for way, values in found.items():
        ratios = {f"to {each}": ratio(values, found[each]) for each in references}
        yield {"way": way, unit: statistics.median(values)} | ratios


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of wall time that some work took, and what it returned."""
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done
