"""The product's default timeouts made long, in the tests and in the Python processes that they start.

A process on a busy machine may stand still for seconds, and a call that fails for that says nothing of the product.
Who gives ``connect``, ``reply`` or ``total`` gets what is asked for; the fixture ``usual_timeouts`` has the product's.
"""

from __future__ import annotations

import functools
import os

LONG = {"connect": 10.0, "reply": 10.0, "total": 20.0}

#: In the environment: who sees it has long timeouts.
VARIABLE = "TEST_URIFILTER_PATIENT"


def lengthen(timeouts: type) -> None:
    """Change the defaults of a class, for as long as the variable is there."""
    made = timeouts.__init__

    @functools.wraps(made)
    def init(self, *args, **given) -> None:
        said = args or any(given.get(name) is not None for name in LONG)
        made(self, *args, **(given if said or VARIABLE not in os.environ else given | LONG))

    timeouts.__init__ = init
