"""Settings that are read again: what changes, what waits for a restart, and what is refused."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from urifilter_redis.errors import UriFilterError
from urifilter_redis.service import FOLDER_VARIABLE
from urifilter_redis.service.server import LIVE, merged, publish, published, read_again
from urifilter_redis.service.settings import ServiceSettings, load
from urifilter_redis.service.tokens import digest


def settings(*names, **more) -> ServiceSettings:
    tokens = [{"name": name, "digest": digest(name)} for name in names]
    return ServiceSettings(**{"tokens": tokens} | more)


@pytest.fixture
def said(caplog):
    """Return the level and text of each line of the log."""
    logger = logging.getLogger("urifilter_redis.service")
    logger.propagate = True
    caplog.set_level(logging.INFO, logger.name)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_changes(said):
    """Tokens, proxies and the log of requests do; of all others the names are told, and no value."""
    old = settings("one", redis_url="redis://:hunter2@old")
    other = {"redis_url": "redis://:hunter3@new", "workers": 7, "limits": {"items": 5}, "host": "0.0.0.0"}
    new = settings("one", "two", log_requests=True, trusted_proxies=["10.0.0.0/8"], **other)
    found = read_again(old, lambda: new)
    assert {name: getattr(found, name) for name in LIVE} == {name: getattr(new, name) for name in LIVE}
    rest = set(ServiceSettings.model_fields) - set(LIVE)
    assert {name: getattr(found, name) for name in rest} == {name: getattr(old, name) for name in rest}
    assert said() == [
        ("INFO", "SIGHUP: the settings were read again; changed: log_requests, tokens, trusted_proxies"),
        ("WARNING", "SIGHUP: these settings change only with a restart: host, limits, redis_url, workers"),
    ]


def test_nothing_changes(said):
    """It is said, too."""
    old = settings("one")
    assert read_again(old, lambda: settings("one")) == old
    assert said() == [("INFO", "SIGHUP: the settings were read again; changed: nothing")]


@pytest.mark.parametrize(
    "error",
    [ValueError("wrong settings:\n  port: no"), FileNotFoundError("no file"), UriFilterError("no pymongo")],
    ids=lambda error: type(error).__name__,
)
def test_wrong_settings(error, said):
    """The old ones stay, and one line says why."""

    def read():
        raise error

    assert read_again(settings("one"), read) is None
    text = str(error).replace("\n ", ";")
    assert said() == [("ERROR", f"SIGHUP: the old settings stay: {text}")]


@pytest.mark.parametrize(
    "text", ["[[tokens]]\nname = 'x'\ndigest = 'hunter2'\n", f"a = {'[' * 5000}", "\xff", "port = x"]
)
def test_wrong_files(text, said, tmp_path):
    """Whatever is wrong with a file, it is no more than that, and nothing of its values is told."""
    file = tmp_path / "settings.toml"
    file.write_bytes(text.encode("latin-1"))
    assert read_again(settings("one"), lambda: load({}, file)) is None
    ((level, line),) = said()
    assert (level, str(file) in line, "hunter2" in line, "\n" in line) == ("ERROR", True, False, False)


def test_whether_there_are_tokens_stays():
    """A file that was cut off does not open the service to everybody; and the first token makes other rules."""
    with pytest.raises(ValueError, match="tokens: the service has tokens, so going without any needs a restart"):
        merged(settings("one", host="0.0.0.0"), settings())
    with pytest.raises(ValueError, match="tokens: the service has no tokens, so the first one needs a restart"):
        merged(settings(), settings("one"))


def test_workers_get_them(folder, said):
    """What the parent has written down is what each worker has, whatever its own sources say by now."""
    old = settings("one", redis_url="redis://old")
    assert published(old) is None  # SIGHUP came for the log
    new = merged(old, settings("one", "two", trusted_proxies=["10.0.0.0/8", "fd00::/8"], log_requests=True))
    assert publish(new)
    assert published(old) == new
    assert published(new) is None
    assert said() == [("INFO", "SIGHUP: the new settings are in use")]
    assert "redis://" not in "".join(path.read_text() for path in folder.iterdir())


def test_they_cannot_be_written_down(monkeypatch, tmp_path, said):
    """The old ones stay, and it is said why."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert not publish(settings("one"))
    ((level, line),) = said()
    assert (level, line.startswith("SIGHUP: the old settings stay: ")) == ("ERROR", True)


HANGUPS = """
import os, signal, time
from urifilter_redis.service.logs import on_hangup
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
os.kill(os.getpid(), signal.SIGHUP)
calls = []
def act():
    calls.append(1)
    if len(calls) == 1:
        raise RuntimeError("a bug")
on_hangup(act)
while len(calls) < 2:
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.01)
print("alive")
"""


@pytest.mark.slow
def test_hangups():
    """One that came before the handler is acted on, and a bug in one does not end the next, nor the process."""
    done = subprocess.run([sys.executable, "-c", HANGUPS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert "RuntimeError: a bug" in done.stderr
