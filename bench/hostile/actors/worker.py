"""The worker: it checkpoints, rotates and restores the filters, one after the other, and says what it wrote back."""

from __future__ import annotations

import time

from bench.hostile.actors.part import Part
from bench.hostile.filters import SETTINGS
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Worker

#: Seconds between two checkpoints of a filter.
EVERY = 4.0


def run(part: Part) -> None:
    """Look after each filter, so that the beginning of each checkpoint is known well."""
    backend = open_backend(part.archive)
    workers = {name: Worker(part.redis, "urifilter", part.archive, backend, EVERY, (name,)) for name in SETTINGS}
    for _ in part.steps():
        for name, worker in workers.items():
            began = time.monotonic()
            for done in worker.once():
                if done.error is None and done.checkpoint is not None:
                    part.log.say("checkpoint", filter=name, began=began)
