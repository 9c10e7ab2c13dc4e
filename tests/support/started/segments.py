"""Several bitmaps in each slice of a shard, where a filter may have them, in the processes that the tests start."""

from __future__ import annotations

import os

#: In the environment: so many.
VARIABLE = "TEST_URIFILTER_SEGMENTS"


def multiply(sizing) -> None:
    """Change the module, before others import from it."""
    if VARIABLE not in os.environ:
        return
    number, plain = int(os.environ[VARIABLE]), sizing.size

    def size(capacity, error_rate=1e-4, layout="blocked", shards=None, share=None, *, most_segments=1):
        found = plain(capacity, error_rate, layout, shards, share, most_segments=most_segments)
        if found.segments > found.shards or most_segments < number or found.shards * number > sizing.SHARDS_LIMIT:
            return found
        return sizing._sized(capacity, found.error_rate, layout, found.shards, found.shards * number)

    sizing.size = size
