"""Axes: from values to pixels, with round ticks, and numbers as text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

#: The first digits of ticks.
ROUND = (1, 2, 5)

#: Numbers from such a size on are counted in it.
SIZES = ((10**9, " billion"), (10**6, " million"))

#: Returns the pixels that the label of a tick takes, along its axis, with the room around it.
Room = Callable[[str], float]


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
        low: the value at its beginning.
        high: the value at its end.
        start: the pixel of ``low``.
        end: the pixel of ``high``; it may be less than ``start``.
        log: whether equal steps are equal ratios.
        ticks: the values that get a label, rising.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def has(self, room: Room) -> bool:
        """Return whether the labels of all ticks have room."""
        return all(
            abs(self.place(after) - self.place(before)) >= (room(number(before)) + room(number(after))) / 2
            for before, after in itertools.pairwise(self.ticks)
        )


def scale_of(axis: Axis, values: Iterable[float], start: float, end: float, room: Room) -> Scale:
    """Return a scale around all values, with as many round ticks as have room.

    A linear axis begins at 0 if no value is below it, and ends at a tick. A logarithmic one begins and ends at 1, 2 or
    5 times a power of ten.

    Args:
        axis: of which kind.
        values: at least one.
        start: the pixel of its beginning.
        end: the pixel of its end.
        room: what a label takes.

    Raises:
        ValueError: there are no values, one is no finite number, or one of a logarithmic axis is not over 0.
    """
    values = [float(each) for each in values]
    if not values:
        raise ValueError(f"no values for {axis.title!r}: give at least one point, or draw no chart")
    if wrong := [each for each in values if not math.isfinite(each)]:
        raise ValueError(f"{axis.title!r} has {wrong[0]}: leave points out that have no finite number")
    if axis.log and min(values) <= 0:
        raise ValueError(f"{axis.title!r} has {min(values)}: leave it out, or take a linear axis")
    choices = (_log if axis.log else _linear)(min(values), max(values))
    scales = [Scale(low, high, start, end, axis.log, ticks) for low, high, ticks in choices]
    return next((scale for scale in scales if scale.has(room)), scales[-1])


#: The ends of an axis, and its ticks.
_Choice = tuple[float, float, tuple[float, ...]]


def _linear(least: float, most: float) -> Iterator[_Choice]:
    low, high = (Decimal(str(each)) for each in (min(0.0, least), max(0.0, most) or (1.0 if least >= 0 else 0.0)))
    size = (high - low).adjusted()
    for exponent, digit in itertools.product((size - 1, size, size + 1), ROUND):
        step = Decimal(digit).scaleb(exponent)
        first, last = (low / step).to_integral_value(ROUND_FLOOR), (high / step).to_integral_value(ROUND_CEILING)
        ticks = tuple(float(step * each) for each in range(int(first), int(last) + 1))
        yield ticks[0], ticks[-1], ticks


def _log(least: float, most: float) -> Iterator[_Choice]:
    exponents = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    fine = [float(Decimal(digit).scaleb(exponent)) for exponent in exponents for digit in ROUND]
    first = max(place for place, each in enumerate(fine) if each <= least)
    last = min(place for place, each in enumerate(fine) if each >= most)
    if first == last:
        first, last = first - 1, last + 1
    low, high = fine[first], fine[last]
    yield low, high, tuple(fine[first : last + 1])
    for apart in range(1, len(exponents)):
        powers = (float(Decimal(1).scaleb(exponent)) for exponent in exponents if exponent % apart == 0)
        yield low, high, tuple(each for each in powers if low <= each <= high)


def number(value: float) -> str:
    """Write a number with at most three digits that are not 0: ``0.0125``, ``229,000``, ``1.23 million``."""
    rounded = float(f"{value:.3g}")
    size, name = next((each for each in SIZES if abs(rounded) >= each[0]), (1, ""))
    return f"{Decimal(f'{rounded / size:.3g}'):,f}{name}"
