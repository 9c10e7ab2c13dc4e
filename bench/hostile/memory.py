"""The memory of the processes: it stays flat."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from bench.hostile.stage import Stage

#: Seconds between two samples, and the shortest life of a process of which the memory counts.
EVERY, LIFE = 1.0, 20.0

#: A process may grow by so much of its first size, and by so many bytes: caches, buffers of replies, more slices.
SHARE, BYTES = 0.3, 24 << 20


class Memory:
    """Samples the resident memory of each process.

    Attributes:
        sizes: by role and process id, the (seconds, bytes) of each sample.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._last = stage, 0.0
        self.sizes: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)

    def sample(self) -> None:
        """Take a sample, if it is time."""
        now = time.monotonic()
        if now < self._last + EVERY:
            return
        self._last = now
        for role in ("server", *self._stage.running):
            pid = self._stage.pid(role)
            if pid and (size := resident(pid)):
                self.sizes[role, pid].append((now, size))

    def rows(self) -> list[tuple[str, int, int, float]]:
        """Return of each role's longest life: role, most bytes in its first half and in its last quarter, seconds.

        A process is warm at the end of its first half, however slowly it begins.
        """
        found: dict[str, tuple[str, int, int, float]] = {}
        for (role, _), sizes in self.sizes.items():
            begins, life = sizes[0][0], sizes[-1][0] - sizes[0][0]
            if life > LIFE:
                first = max(size for at, size in sizes if at <= begins + life / 2)
                last = max(size for at, size in sizes if at >= begins + life * 3 / 4)
                row = role, first, last, life
                found[role] = max(row, found.get(role, row), key=lambda each: each[3])
        return list(found.values())

    def grown(self) -> list[str]:
        """Return what has grown too much."""
        text = "the memory of {} grew from {:.1f} to {:.1f} MB in {:.0f} s"
        return [
            text.format(role, first / 1e6, last / 1e6, seconds)
            for role, first, last, seconds in self.rows()
            if last > first * (1 + SHARE) + BYTES
        ]


def resident(pid: int) -> int:
    """Return the resident memory of a process, bytes; 0 if it is gone, or the system does not say."""
    try:
        pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * 4096
