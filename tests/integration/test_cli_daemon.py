"""``serve`` and ``worker`` in the background: one at a time, what their logs say, and how they are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import cli
from support.servers import wait_until
from support.service import Raw, request
from urifilter_redis.cli import daemon as daemon_module
from urifilter_redis.cli.daemon import running

from urifilter_redis import UriFilter

#: What the log says of one that has begun, and of one that has ended.
BEGUN = {"serve": "listens at http://127.0.0.1:", "worker": "begun: looks after all filters, a checkpoint every 1s"}
ENDED = {"serve": "Finished server process", "worker": "INFO stopped"}


class Daemon:
    """A service or a worker, as its user handles it."""

    def __init__(self, command: str, folder: Path) -> None:
        self.command, self.pidfile, self.log = command, folder / "pid", folder / "log"
        more = ("--port", 0) if command == "serve" else ("--checkpoint-every", "1s")
        self.foreground = [command, *more, "--pidfile", self.pidfile, "--log-file", self.log]

    def start(self, *more) -> int:
        """Start it in the background; return its process."""
        before = self.text().count(BEGUN[self.command])
        temporary = os.environ | {"TMPDIR": str(self.log.parent)}
        out, err = cli.run_process(*self.foreground, "--daemon", *more, env=temporary)
        process = int(self.pidfile.read_text())
        assert (out, err) == (b"", f"runs as process {process}; log: {self.log}\n")
        wait_until(lambda: self.text().count(BEGUN[self.command]) > before, "it does not begin")
        return process

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, text) -> None:
        wait_until(lambda: text in self.text(), f"the log has no {text!r}")

    def ask(self, word: str, *more, code=0) -> tuple[bytes, str]:
        """Run ``stop`` or ``status``."""
        return cli.run(self.command, word, "--pidfile", self.pidfile, *more, code=code)

    def check_runs(self, process: int) -> None:
        assert self.ask("status") == (f"running, process {process}\n".encode(), "")
        assert json.loads(self.ask("status", "--json")[0]) == {"running": True, "process": process}
        for more in ((), ("--daemon",)):
            out, err = cli.run(*self.foreground, *more, code=2)
            assert (out, f"it runs already, as process {process}" in err) == (b"", True)

    def stop(self, process: int) -> None:
        """Stop it, and check what is left."""
        assert self.ask("stop") == (b"", f"stopped process {process}\n")
        assert not self.pidfile.exists()
        assert ENDED[self.command] in self.text()
        assert "Traceback" not in self.text()
        self.check_gone()

    def check_gone(self) -> None:
        assert self.ask("status", code=3) == (b"not running\n", "")
        assert json.loads(self.ask("status", "--json", code=3)[0]) == {"running": False, "process": None}
        assert "does not run" in self.ask("stop", code=3)[1]


@pytest.fixture
def where(there, folder, monkeypatch):
    """A server with a filter, and an archive, both named by the environment."""
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    UriFilter.create("news", capacity=1000, error_rate=1e-8, seed=1).close()
    return there


@pytest.fixture(params=["serve", "worker"])
def daemon(request, where, tmp_path):
    """A daemon that can be started; killed at the end if it runs."""
    made = Daemon(request.param, tmp_path)
    yield made
    if process := running(made.pidfile):
        os.killpg(os.getpgid(process), signal.SIGKILL)
        wait_until(lambda: not running(made.pidfile), "it does not die")


def insert(*items) -> None:
    with UriFilter.open("news") as news:
        news.insert_many(items)


def files(folder) -> list[Path]:
    return [path for path in Path(urlsplit(folder).path).rglob("*") if path.suffix in {".blob", ".json"}]


@pytest.mark.slow
def test_its_life(daemon):
    """Status before, while and after; one at a time; it logs that it has begun and ended."""
    daemon.check_gone()
    process = daemon.start()
    assert Path(f"/proc/{process}/cwd").resolve() == Path.cwd()  # else relative paths of the environment are others
    daemon.check_runs(process)
    daemon.stop(process)


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["serve"], indirect=True)
def test_a_service_answers_and_leaves_no_process(daemon):
    """Of two workers neither is left."""
    process = daemon.start("--workers", 2)
    (port,) = re.findall(rf"^{re.escape(BEGUN['serve'])}(\d+)\b", daemon.text(), re.MULTILINE)
    body = json.dumps({"items": ["a"]}).encode()
    with Raw(int(port)) as connection:
        assert connection.ask(request("POST", "/v1/filters/news/insert", body)).json()["new"] == [True]
    wait_until(lambda: daemon.text().count("startup complete") == 2, "the workers do not start")
    processes = [process, *map(int, re.findall(r"server process \[(\d+)\]", daemon.text()))]
    assert len(processes) == 3
    daemon.stop(process)
    wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in processes), "something is left")
    with pytest.raises(ConnectionRefusedError):
        Raw(int(port))


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["worker"], indirect=True)
def test_what_a_worker_writes(daemon, folder):
    """It is no more open than what the command in the foreground writes."""
    before = os.umask(0o027)
    try:
        insert("a")
        daemon.start()
    finally:
        os.umask(before)
    daemon.wait_for("news: checkpoint 1, 1 of 1 shards")
    assert [path.name for path in [daemon.pidfile, *files(folder)] if path.stat().st_mode & 0o027] == []


@pytest.mark.slow
def test_one_that_was_killed(daemon):
    """The pidfile of one that was killed (-9) says nothing and blocks nobody."""
    first = daemon.start()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not running(daemon.pidfile), "it does not die")
    assert daemon.pidfile.read_text() == f"{first}\n"
    daemon.check_gone()
    second = daemon.start()
    assert daemon.ask("status") == (f"running, process {second}\n".encode(), "")
    daemon.stop(second)


@pytest.mark.slow
def test_a_log_that_is_renamed(daemon):
    """At SIGHUP it goes on in a new file, with all that it says, also by other ways than its log."""
    process, old = daemon.start(), daemon.log.with_name("old")
    daemon.log.rename(old)
    os.kill(process, signal.SIGHUP)
    daemon.wait_for("SIGHUP: the log goes on")

    def is_new(number) -> bool:
        return Path(f"/proc/{process}/fd/{number}").resolve() == daemon.log

    wait_until(lambda: is_new(1) and is_new(2), "stderr stays with the old one")
    said = old.read_text()
    insert("a")
    if daemon.command == "worker":  # which sleeps on between two rounds
        daemon.wait_for("news: checkpoint")
    assert old.read_text() == said
    daemon.stop(process)


@pytest.mark.slow
def test_in_the_foreground(daemon, started):
    """Without --daemon the pidfile is held too, for supervisors; and the log is where it was wanted."""
    process = started(*daemon.foreground)
    daemon.wait_for(BEGUN[daemon.command] if daemon.command == "worker" else "Application startup complete")
    daemon.check_runs(process.pid)
    daemon.stop(process.pid)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode, "startup complete" in err.decode()) == (b"", 0, False)


@pytest.mark.slow
def test_stop_waits(daemon, started):
    """It returns when the daemon has ended, however long that takes."""
    process = daemon.start()
    os.kill(process, signal.SIGSTOP)
    stop = started(daemon.command, "stop", "--pidfile", daemon.pidfile)
    time.sleep(0.5)
    assert stop.poll() is None
    os.kill(process, signal.SIGCONT)
    assert stop.communicate(timeout=60)[1].decode() == f"stopped process {process}\n"
    assert (stop.returncode, ENDED[daemon.command] in daemon.text()) == (0, True)
    daemon.stop(daemon.start())


def test_nobody_sees_the_id_of_a_killed_one(tmp_path, monkeypatch):
    """A locked pidfile has the id of the process that holds it, or none yet: never an old one."""
    pidfile, seen = tmp_path / "worker.pid", []
    pidfile.write_text("1\n")
    lock = daemon_module._lock

    def look(*arguments):
        lock(*arguments)
        seen.append(running(pidfile))

    monkeypatch.setattr(daemon_module, "_lock", look)
    with daemon_module.background(daemon=False, pidfile=pidfile, log_file=None):
        assert running(pidfile) == os.getpid()
    assert set(seen) == {0}


@pytest.mark.parametrize("daemon", ["serve"], indirect=True)
def test_wrong_settings(daemon, tmp_path):
    """They are told where it was started, with exit 2, and nothing runs."""
    file = tmp_path / "settings.toml"
    file.write_text("[filters.news]\ncapacity = 5\n")
    out, err = cli.run(*daemon.foreground, "--daemon", "--settings", file, code=2)
    assert (out, "capacity is 1000 and not 5" in err) == (b"", True)
    assert not daemon.pidfile.exists()


WRONG = ["--daemon", "--daemon --log-file log", "--daemon --pidfile pid", "stop", "status"]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_wrong_use(where, command, wrong, tmp_path):
    """Exit 2 with a message, and nothing has been started."""
    before = sorted(tmp_path.rglob("*"))
    out, err = cli.run(command, *wrong.split(), code=2, cwd=tmp_path)
    assert (out, "pidfile" in err, "listens" in err) == (b"", True, False)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--log-file", "--pidfile"])
@pytest.mark.parametrize("more", [[], ["--daemon", "--pidfile", "pid", "--log-file", "log"]], ids=["", "daemon"])
def test_a_file_in_a_missing_folder(option, more, there, tmp_path):
    """Exit 2 and one line that names option and folder, before anything is started."""
    wrong = [*more, option, tmp_path / "nowhere" / "file"]
    out, err = cli.run("serve", "--port", 0, *wrong, code=2, cwd=tmp_path)
    assert (out, err.count("\n")) == (b"", 1)
    assert err.startswith(f"urifilter: {option} {tmp_path}/nowhere/file: there is no folder {tmp_path}/nowhere")
