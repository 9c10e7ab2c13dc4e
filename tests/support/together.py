"""Work that several threads do at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(works: Iterable[Callable[[], Any]]) -> list[Any]:
    """Do all works at once, each in a thread; return their answers, or raise the first error."""
    works = list(works)
    with ThreadPoolExecutor(len(works)) as threads:
        return [each.result() for each in [threads.submit(work) for work in works]]
