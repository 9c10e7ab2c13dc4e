"""A chart of bars: peers by one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.plots.looks import looks_of
from bench.plots.picture import EDGE, WIDTH, Picture, cut, width
from bench.plots.scales import number

#: Pixels of a bar, to the next one, and to the feet of its words.
THICK, APART, FOOT = 16, 24, 12.5

#: Stands behind a figure whose fastest tries do not agree, and at the foot.
UNSURE, UNSURE_MEANS = "?", "? the fastest tries do not agree"


@dataclass(frozen=True, slots=True)
class Bar:
    """The figure of a peer.

    Attributes:
        name: of the peer.
        value: 0 or more.
        sure: whether the fastest tries agree (``bench.kbest.Best.converged``).
        ours: whether it is this library's.
    """

    name: str
    value: float
    sure: bool = True
    ours: bool = False

    @property
    def figure(self) -> str:
        """The value as text, with a mark if it is not sure."""
        return f"{number(self.value)}{'' if self.sure else f' {UNSURE}'}"


def bars(title: str, unit: str, values: Sequence[Bar]) -> str:
    """Return a chart of horizontal bars as SVG, the longest one first.

    Args:
        title: of the chart.
        unit: of the values.
        values: at least one.

    Raises:
        ValueError: there is no value, or one is below 0 or no finite number.
    """
    if not values:
        raise ValueError(f"no bars for {title!r}: give at least one, or draw no chart")
    for bar in values:
        if not (math.isfinite(bar.value) and bar.value >= 0):
            raise ValueError(f"{bar.name!r} has {bar.value}: a bar has a value of 0 or more; leave others out")
    ordered = sorted(values, key=lambda bar: (-bar.value, bar.name))
    described = ", ".join(f"{bar.name} {bar.figure}" for bar in ordered)
    picture = Picture(title, f"Bars, {unit}: {described}.")
    picture.text(EDGE, picture.top + 14, unit, "soft")
    top = picture.top + 28
    left = EDGE + max(width(cut(bar.name)) for bar in ordered) + 8
    room = WIDTH - EDGE - left - max(width(bar.figure) for bar in ordered) - 8
    most = ordered[0].value or 1.0
    looks = looks_of({bar.name: bar.ours for bar in ordered})
    for place, bar in enumerate(ordered):
        at, end, weight = top + APART * place, left + max(room * bar.value / most, 1), "strong" if bar.ours else ""
        picture.text(left - 8, at + FOOT, cut(bar.name), f"end {weight}")
        picture.box((left, at), (end, at + THICK), looks[bar.name].kind)
        picture.text(end + 8, at + FOOT, bar.figure, weight)
    foot = top + APART * len(ordered)
    if not all(bar.sure for bar in ordered):
        picture.text(EDGE, foot + 12, UNSURE_MEANS, "soft")
        foot += 20
    return picture.done(foot + EDGE / 2)
