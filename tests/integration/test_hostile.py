"""A minute of the hostile run: everything at once, and a fault every second or two; no promise is broken."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support import servers

SEED = 17

#: Seconds that the run may take until it ends by itself; only reached when something is wrong.
PATIENCE = 600


@pytest.mark.nightly
@pytest.mark.usefixtures("usual_timeouts")
@pytest.mark.parametrize(("server", "segments"), [("redis", 1), ("redis", 18), ("cluster", 1)])
def test_a_minute(tmp_path, server, segments):
    """Its table has what was asked, faults of many kinds, and no wrong answer; its output has what failed."""
    servers.executable("redis70")
    command = ["--minutes", "1", "--seed", str(SEED), "--history", str(tmp_path / "history.txt")]
    command += ["--server", server, "--segments", str(segments)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.hostile", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    assert "every promise was kept" in done.stdout
    # Whatever a library has warned of stands between the rows.
    rows = re.findall(r"^(pages|days|rate|claims|ring|links) +\S+ +([\d,]+)", done.stdout, re.MULTILINE)
    assert len([name for name, count in rows if count != "0"]) == 6, done.stdout
    kinds = re.findall(r"^  (kill|stop|set|flush|out of|bad|archive).* +[1-9]\d*$", done.stdout, re.MULTILINE)
    assert len(kinds) > 8, done.stdout
    assert (tmp_path / "history.txt").read_text().startswith("schedule\n")
