"""Eight crawlers, slots that move, and a master that is killed: the answers are exact, but for what nobody has."""

from __future__ import annotations

import os

import pytest
from support.cluster_run import Run

pytestmark = pytest.mark.slow

#: Masters that are killed, one after the other, in each run.
ROUNDS = int(os.environ.get("TEST_URIFILTER_ROUNDS", "1"))
SEED = int(os.environ.get("TEST_URIFILTER_SEED", "1"))


@pytest.mark.nightly
@pytest.mark.parametrize("wait_replicas", [0, 1])
def test_a_master_is_killed(tmp_path, wait_replicas):
    """Each URI is new once, and once more for each failover that has lost its acknowledged write.

    With ``wait_replicas=1`` there are no such losses.
    """
    with Run(tmp_path, wait_replicas, SEED) as run:
        for _ in range(ROUNDS):
            run.round(3)
            if wait_replicas:
                run.stall(1)
        counts = run.finish()
    assert counts.wrong == {}, counts
    assert (counts.unreplicated > 0) == (wait_replicas == 0)
    assert counts.asked > 1000
    assert counts.moved > 5
