"""Where labels stand: near what they name, none over another, and off lines where that is possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

#: Pixels from the foot of a label to that of the next one.
APART = 15

#: The price of standing on a line, and on another label: the square of the pixels that a label would rather move.
ON_A_LINE, ON_A_LABEL = 60**2, 10_000**2

#: A band of pixels: the highest, and the lowest one.
Band = tuple[float, float]

#: The price of labels, and where they stand.
_Choice = tuple[float, tuple[int, ...]]


def spread(wanted: Sequence[float], room: Band, lines: Sequence[Band] = (), labels: Sequence[Band] = ()) -> list[int]:
    """Return where the middles of labels stand, in the order of ``wanted``, which rises.

    The labels keep their order. The sum of the squares of their ways, and of the prices of standing on something, is
    the least.

    Args:
        wanted: the pixels where each would best stand.
        room: the first and the last pixel where one may stand.
        lines: where lines are.
        labels: where other labels are.

    Raises:
        ValueError: there is not enough room.
    """
    rows = range(math.ceil(room[0]), math.floor(room[1]) + 1)
    if len(rows) <= APART * (len(wanted) - 1):
        raise ValueError(f"{len(wanted)} labels have no room in {len(rows)} pixels: give {APART} for each")
    prices = [(ON_A_LINE, band) for band in lines] + [(ON_A_LABEL, band) for band in labels]
    crowd = [sum(price for price, band in prices if band[0] - APART / 2 < row < band[1] + APART / 2) for row in rows]
    best: list[_Choice] = [(0.0, ())] * len(rows)  # of the labels so far, for each row of the next one
    for want in wanted:
        here = (
            (so_far + (row - want) ** 2 + price, (*at, row))
            for row, price, (so_far, at) in zip(rows, crowd, best[: len(rows)], strict=True)
        )
        best = [(math.inf, ())] * APART + list(itertools.accumulate(here, min))
    return list(best[-1][1])
