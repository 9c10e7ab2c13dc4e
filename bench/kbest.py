"""K-best: repeat a measurement until its k fastest tries agree.

Other work on a machine only ever makes a try slower, so the fastest ones are nearest to the truth, and if several of
them agree, no other work has disturbed them. Source: R. E. Bryant and D. R. O'Hallaron, "Computer Systems: A
Programmer's Perspective", chapter "Measuring Program Execution Time", the K-best scheme.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """When tries agree.

    Attributes:
        k: so many of the fastest tries have to agree; at least 2.
        tolerance: the k-th fastest is slower than the fastest by at most this share of it.
        tries: the most tries; if they do not agree until then, they do not converge.

    Raises:
        ValueError: no tries could agree under this rule.
    """

    k: int = 3
    tolerance: float = 0.02
    tries: int = 30

    def __post_init__(self) -> None:
        if not 2 <= self.k <= self.tries or self.tolerance <= 0:  # noqa: PLR2004 - one try agrees with itself
            raise ValueError(f"{self}: wanted are 2 <= k <= tries, and a tolerance over 0")


@dataclass(frozen=True, slots=True)
class Best:
    """The figure of a measurement.

    Attributes:
        value: of the fastest try.
        spread: by which share of it the k-th fastest is slower; of all tries, if there are fewer than k.
        converged: whether the k fastest agree.
        tries: how many there were.
    """

    value: float
    spread: float
    converged: bool
    tries: int


def best_of(values: Sequence[float], rule: Rule) -> Best:
    """Judge the tries of one measurement.

    Raises:
        ValueError: there are none, or one is below 0.
    """
    lowest = sorted(values)[: rule.k]
    if not lowest or lowest[0] < 0:
        raise ValueError(f"a measurement has tries of 0 and more, not {lowest}")
    least, most = lowest[0], lowest[-1]
    spread = 0.0 if most == least else most / least - 1 if least else float("inf")
    return Best(least, spread, len(lowest) == rule.k and spread <= rule.tolerance, len(values))


def race(
    contestants: Mapping[str, Callable[[], T]], time_of: Callable[[T], float], rule: Rule, dice: random.Random
) -> dict[str, list[T]]:
    """Let contestants take turns until the fastest tries of each agree, or until the tries are used up.

    Each round has one try of every contestant, in an order that is drawn anew. So a slow moment of the machine, and the
    state of its caches, falls on all of them alike. All have as many tries.

    Args:
        contestants: functions that make a try, by name.
        time_of: returns the time of a try, in any unit.
        rule: when tries agree.
        dice: draws the orders.

    Returns:
        The tries of each contestant, in the order of the rounds.
    """
    tries: dict[str, list[T]] = {name: [] for name in contestants}
    for _ in range(rule.tries):
        for name in dice.sample(list(contestants), len(contestants)):
            tries[name].append(contestants[name]())
        if all(best_of(list(map(time_of, each)), rule).converged for each in tries.values()):
            break
    return tries
