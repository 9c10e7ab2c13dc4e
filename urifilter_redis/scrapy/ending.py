"""The ways in which an address that was new to a crawl ends in the filter."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["COMMIT", "FORGET", "RECORD", "Ending"]


class Ending(NamedTuple):
    """One way in which items end.

    Attributes:
        command: ``forget`` makes items new again; ``record`` inserts those of pages that were fetched without a
            question; ``commit`` and ``release`` end claims.
        delay: release: seconds before the items are offered again.
        failed: release: whether a failure of each item is counted.
    """

    command: Literal["forget", "record", "commit", "release"]
    delay: float = 0
    failed: bool = False


FORGET, RECORD, COMMIT = Ending("forget"), Ending("record"), Ending("commit")
