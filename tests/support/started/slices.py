"""The most slices of a growing filter made few, so that one is full soon, in the processes that the tests start."""

from __future__ import annotations

import os

#: In the environment: there are only so many.
VARIABLE = "TEST_URIFILTER_FEW_SLICES"
MOST = 4


def limit(retention) -> None:
    """Change the module."""
    if VARIABLE in os.environ:
        retention.GROWN_LIMIT = MOST
