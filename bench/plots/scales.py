"""Axes: from values to pixels, with round ticks, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

#: The first digits of ticks.
ROUND = (1, 2, 5)

#: The most steps between the ticks of a linear axis, and the most decades between two ticks of a logarithmic one.
STEPS = 6

#: A logarithmic axis over more decades than these has ticks at powers of ten only.
FEW_DECADES = 2

MILLION, BILLION = 10**6, 10**9


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: of what.
        unit: in which it is counted; "" for a mere number.
        log: whether equal steps are equal ratios; then all values have to be over 0.
    """

    title: str
    unit: str
    log: bool = False

    @property
    def label(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the values of an axis are.

    Attributes:
        ticks: the values that get a label, rising; the first and the last are the ends of the axis.
        start: the pixel of the first one.
        end: the pixel of the last one; it may be less than ``start``.
        log: whether equal steps are equal ratios.
    """

    ticks: tuple[float, ...]
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (math.log10(each) if self.log else each for each in (self.ticks[0], self.ticks[-1], value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def ticks_of(axis: Axis, values: Iterable[float]) -> tuple[float, ...]:
    """Return round ticks around all values.

    A linear axis begins at 0 if no value is below it.

    Raises:
        ValueError: there are no values, one is no finite number, or one of a logarithmic axis is not over 0.
    """
    values = list(values)
    if not values:
        raise ValueError(f"no values for {axis.title!r}: give at least one point, or draw no chart")
    if wrong := [each for each in values if not math.isfinite(each)]:
        raise ValueError(f"{axis.title!r} has {wrong[0]}: leave points out that have no finite number")
    if axis.log and min(values) <= 0:
        raise ValueError(f"{axis.title!r} has {min(values)}: leave it out, or take a linear axis")
    return _log_ticks(min(values), max(values)) if axis.log else _linear_ticks(min(values), max(values))


def _linear_ticks(least: float, most: float) -> tuple[float, ...]:
    low, high = min(0, least), max(0, most)
    if low == high:
        return 0.0, 1.0
    exponent = math.floor(math.log10((high - low) / STEPS))
    for step in (_decimal(first, exponent) for first in (*ROUND, 10, 20)):
        first, last = math.floor(low / float(step)), math.ceil(high / float(step))
        if last - first <= STEPS:
            break
    return tuple(float(step * each) for each in range(first, last + 1))


def _log_ticks(least: float, most: float) -> tuple[float, ...]:
    low, high = math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 1
    fine = [float(_decimal(first, exponent)) for exponent in range(low, high + 1) for first in ROUND]
    first = max((place for place, each in enumerate(fine) if each <= least))
    last = min((place for place, each in enumerate(fine) if each >= most))
    if first == last:
        first, last = first - 1, last + 1
    decades = math.log10(fine[last] / fine[first])
    if decades <= FEW_DECADES:
        return tuple(fine[first : last + 1])
    first, last = first - first % len(ROUND), last + -last % len(ROUND)
    powers = fine[first : last + 1 : len(ROUND)]
    apart = math.ceil((len(powers) - 1) / (STEPS + 2))
    missing = -(len(powers) - 1) % apart
    powers += [float(_decimal(1, high + each)) for each in range(missing)]
    return tuple(powers[::apart])


def _decimal(first: int, exponent: int) -> Decimal:
    return Decimal(first).scaleb(exponent)


def number(value: float) -> str:
    """Write a number with at most three digits that are not 0: ``0.0125``, ``229,000``, ``1.23 million``."""
    rounded = float(f"{value:.3g}")
    for size, name in ((BILLION, " billion"), (MILLION, " million"), (1, "")):
        if abs(rounded) >= size or size == 1:
            return f"{Decimal(f'{rounded / size:.3g}'):,f}{name}"
    raise AssertionError
