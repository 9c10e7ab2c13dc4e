"""Seeds that a test does not give, from a sequence of its own, in the tests and in the Python processes they start.

So each run has the same seeds, and the same items that are taken for seen by chance.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

#: In the environment: what the sequence is drawn from.
VARIABLE = "TEST_URIFILTER_SEEDS"


def drawn(text: str) -> SimpleNamespace:
    """Return what the product needs of the module ``secrets`` for seeds."""
    sequence = random.Random(text)
    return SimpleNamespace(randbits=sequence.getrandbits, token_hex=lambda size: sequence.randbytes(size).hex())
