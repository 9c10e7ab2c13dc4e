"""What the workers of a service count together."""

from __future__ import annotations

import os
import subprocess
import sys

from urifilter_redis.service import FOLDER_VARIABLE, metrics

COUNT = "from urifilter_redis.service import metrics; metrics.note_restart()"


def test_a_worker_that_just_starts(tmp_path, monkeypatch):
    """Its file is empty for a moment; what the others count is told."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    subprocess.run([sys.executable, "-c", COUNT], env=os.environ, check=True)
    (tmp_path / "counter_1.db").touch()
    (tmp_path / "gauge_livesum_1.db").touch()
    assert b"\nurifilter_worker_restarts_total 1.0\n" in metrics.exposed()
