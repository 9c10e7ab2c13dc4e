"""Where labels stand: near what they name, none over another, and off lines where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

#: Pixels from the foot of a label to that of the next one.
APART = 15

#: What it costs to stand on something, as the square of the pixels that a label would rather move.
ON_SOMETHING = 60**2

#: A band of pixels: the highest, and the lowest one.
Band = tuple[float, float]


def spread(wanted: Sequence[float], top: float, bottom: float, taken: Sequence[Band] = ()) -> list[int]:
    """Return where the middles of labels stand, in the order of ``wanted``, which rises.

    The labels keep their order. The sum of the squares of their ways is the least; to stand on a band that is taken
    costs ``ON_SOMETHING``.

    Args:
        wanted: the pixels where each would best stand.
        top: the first pixel where one may stand.
        bottom: the last one.
        taken: where other things are.

    Raises:
        ValueError: there is not enough room.
    """
    rows = range(int(top), int(bottom) + 1)
    if len(rows) <= APART * (len(wanted) - 1):
        raise ValueError(f"{len(wanted)} labels need {APART * len(wanted)} pixels, not {len(rows)}")
    crowd = [ON_SOMETHING * sum(high - APART / 2 < row < low + APART / 2 for high, low in taken) for row in rows]
    best: list[float] = [0.0] * len(rows)
    choices: list[list[int]] = []
    for place, want in enumerate(wanted):
        room = range(APART * place, len(rows))
        cost = {at: best[at - APART if place else at] + (rows[at] - want) ** 2 + crowd[at] for at in room}
        best, choice = [float("inf")] * len(rows), [0] * len(rows)
        least = room.start
        for at in room:
            least = min(least, at, key=cost.__getitem__)
            best[at], choice[at] = cost[least], least
        choices.append(choice)
    found, at = [], len(rows) - 1
    for choice in reversed(choices):
        found.append(choice[at])
        at = choice[at] - APART
    return [rows[at] for at in reversed(found)]
