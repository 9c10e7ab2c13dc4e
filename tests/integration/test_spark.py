"""The example for Spark, in Spark, whose tasks fail, are killed, and run twice at the same time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import programs
from support.servers import free_port, wait_until

from urifilter_redis import UriFilter

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "support" / "spark_job.py"
EXAMPLE = ROOT / "examples" / "spark_unique.py"

#: Where the processes of Spark find what goes through pickle by name.
PATHS = (str(EXAMPLE.parent), str(JOB.parent))

PASSWORD = "open-sesame-4711"

#: Seconds that a job may take; only reached when something is wrong.
PATIENCE = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None,
        reason="PySpark is missing: pip install pyspark pyarrow 'pandas<3'",
    ),
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing: apt-get install openjdk-17-jre-headless"),
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are found in /proc"),
]

#: Kilobytes that a Python process of Spark takes at most, however long the input is.
MEMORY = 200_000

#: Spark's own settings: small batches, so that there are many; no page on a port.
CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
}


@pytest.fixture
def server(make_server):
    """A server with a password, and an empty filter."""
    made = make_server("redis70", requirepass=PASSWORD)
    with UriFilter.create("news", redis=made.url, capacity=1_000_000, error_rate=1e-9):
        yield made


@pytest.fixture
def spark(server, tmp_path):
    """Start a program of Spark; at the end it and its processes are killed if they still run."""
    with programs(tmp_path) as start, (tmp_path / "stderr").open("w") as err:

        def submit(master, *command, **conf):
            options = [word for name, value in (CONF | conf).items() for word in ("--conf", f"{name}={value}")]
            environment = {
                "URIFILTER_REDIS_URL": server.url,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": " ".join(["--master", master, *options, "pyspark-shell"]),
                "PYTHONPATH": os.pathsep.join((*PATHS, os.environ["PYTHONPATH"])),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            return start(command, os.environ | environment, err)

        yield submit


def finished(process, tmp_path) -> str:
    """Wait for the end of a program; return its last line."""
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (tmp_path / "stderr").read_text()[-5000:]
    return out.splitlines()[-1]


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for task in tasks for each in task.read_text().split()]


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def workers(process) -> list[int]:
    """The Python processes of Spark that run tasks: children of a daemon that is one of Spark's."""

    def is_daemon(pid):
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()

    try:
        daemons = [each for each in descendants(process.pid) if is_daemon(each)]
        return [each for daemon in daemons for each in children(daemon)]
    except (FileNotFoundError, ProcessLookupError):  # one has just ended
        return []


def noted(server) -> int:
    """The number of batches that are answered."""
    with server.client() as admin:
        return sum(admin.hlen(key) // 2 for key in admin.keys("urifilter-spark:*:[0-9]"))


@pytest.mark.parametrize(("rows", "distinct"), [(160_000, 90_000), (1_000_000, 600_000)])
def test_tasks_that_fail(spark, server, tmp_path, rows, distinct):
    """They raise, or are killed, from inside and outside, before and after they inserted: each URL is new once."""
    process = spark("local[2,8]", sys.executable, JOB, tmp_path, str(rows), str(distinct), "fail")
    batches = 8 * -(-rows // 8 // 2000)
    wait_until(lambda: len(list(tmp_path.glob("failed-*"))) == 4, "not all fail that shall", PATIENCE)
    for part in (0.6, 0.7, 0.8):
        wait_until(lambda part=part: noted(server) > part * batches, "the job does not go on", PATIENCE)
        for worker in workers(process):
            os.kill(worker, signal.SIGKILL)
    begun = ("waits-*", "attempt-7-[1-9]")  # the last partition waits to be killed, unless it was and has begun again
    wait_until(lambda: any(list(tmp_path.glob(each)) for each in begun), "it does not begin", PATIENCE)
    for waiting in tmp_path.glob("waits-*"):
        with contextlib.suppress(ProcessLookupError):  # it was killed above
            os.kill(int(waiting.name.partition("-")[2]), signal.SIGKILL)
    found = json.loads(finished(process, tmp_path))
    assert found == {"rows": rows, "ids": rows, "new": distinct, "distinct new": distinct, "null": 0}
    assert noted(server) == batches
    ended = [list(map(int, each.name.split("-")[1:])) for each in tmp_path.glob("done-*")]
    assert {partition for partition, _, _ in ended} == set(range(8))
    last_attempts = {partition: attempt for partition, attempt, _ in sorted(ended)}
    assert sum(last_attempts.values()) > 4, "nothing was killed from outside"
    assert max(kilobytes for _, _, kilobytes in ended) < MEMORY


@pytest.fixture
def cluster(tmp_path):
    """A cluster of Spark with an executor on each of two hosts, as Spark repeats slow tasks only on another host."""
    import pyspark

    program, port = Path(pyspark.__file__).parent / "bin" / "spark-class", free_port()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    log = (tmp_path / "cluster").open("w")
    started = []

    def start(kind, host, *options):
        command = [program, f"org.apache.spark.deploy.{kind}.{kind.capitalize()}", "--host", host, *options]
        environment["SPARK_LOCAL_IP"] = host
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    master, page = f"spark://127.0.0.1:{port}", ("--webui-port", "0")
    start("master", "127.0.0.1", "--port", str(port), *page)
    for host in ("127.0.0.1", "127.0.0.2"):
        start("worker", host, "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / host), *page, master)
    yield master
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log.close()


def test_speculative_execution(spark, cluster, server, tmp_path):
    """A second attempt of a slow task runs at the same time: both get the same answers, and each URL is new once."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.executor.cores": "2",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join((*PATHS, str(ROOT))),
        "spark.executorEnv.URIFILTER_REDIS_URL": server.url,
    }
    process = spark(cluster, sys.executable, JOB, tmp_path, "100000", "60000", "slow", **conf)
    found = json.loads(finished(process, tmp_path))
    assert found == {"rows": 100_000, "ids": 100_000, "new": 60_000, "distinct new": 60_000, "null": 0}
    assert {"attempt-7-0", "attempt-7-1"} <= {each.name for each in tmp_path.glob("attempt-*")}


def test_the_example(spark, server, tmp_path):
    """It marks the lines of a file; a second run sees them all; the first, started again, gets its answers again."""
    dump = tmp_path / "dump.txt"
    dump.write_text("".join(f"https://example.com/{number * 7919 % 3000}\n" for number in range(5000)))

    def run(name):
        command = [sys.executable, EXAMPLE, dump, tmp_path / "out", "--capacity", "1000000"]
        return finished(spark("local[2]", *command, "--run", name), tmp_path)

    assert run("monday") == "5,000 URLs: 3,000 new, 2,000 seen, 0 that nobody knows"
    assert run("tuesday") == "5,000 URLs: 0 new, 5,000 seen, 0 that nobody knows"
    assert run("monday") == "5,000 URLs: 3,000 new, 2,000 seen, 0 that nobody knows"
