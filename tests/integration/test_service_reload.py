"""SIGHUP: the settings are read again, in all workers, and no request is lost."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import signal
import threading

import pytest
from support.servers import wait_until
from support.service import Service, ask, known, serving

from urifilter_redis.sdk import FilterAPIClient, FilterAPIError
from urifilter_redis.service import tokens

RELOADS = 20
READ = "SIGHUP: the settings were read again; changed: "
STAY = "SIGHUP: the old settings stay: "
IN_USE = "SIGHUP: the new settings are in use"


@pytest.fixture
def news(make_filter):
    # while workers start slowly many more items come in
    return make_filter(retention="growing")


class Served:
    """A service whose settings file the test writes."""

    def __init__(self, service: Service, secrets: dict[str, str]) -> None:
        self.service, self._secrets = service, secrets
        self._file = service.folder / "settings.toml"

    def write(self, *names: str, more: str = "") -> None:
        """Write a settings file with these tokens, as an editor does: a new file takes the old one's place."""
        part = self._file.with_suffix(".new")
        part.write_text(more + tables(self._secrets, *names))
        part.replace(self._file)

    def hang_up(self, text: str) -> None:
        """Send SIGHUP, and wait until the log has a text once more."""
        before = self.service.log().count(text)
        self.service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.service.log().count(text) > before, f"no {text!r}")

    def status(self, name: str) -> int:
        return ask(self.service, "GET", "/v1/filters", token=self._secrets[name]).status


def tables(secrets: dict[str, str], *names: str) -> str:
    return "".join(known(name, secrets[name], "write") for name in names)


@pytest.fixture
def secrets():
    return {name: tokens.new() for name in ("first", "second", "third")}


@contextlib.contextmanager
def served(url, secrets, *names, workers=1, more=""):
    with Service(url, "--workers", workers, settings=more + tables(secrets, *names)) as service:
        wait_until(lambda: service.log().count("Application startup complete") == workers, "they do not start")
        yield Served(service, secrets)
    assert "Traceback" not in service.log()
    assert not any(secret in service.log() for secret in secrets.values())


@pytest.mark.slow
def test_tokens(any_server, news, secrets):
    """They come and go in one process, which is the same as before; its connections live on."""
    with served(any_server.url, secrets, "first", "second") as here, here.service.raw() as connection:
        assert [here.status(name) for name in secrets] == [200, 200, 401]
        here.write("second", "third", more="log_requests = true\nport = 1\n[limits]\nitems = 5\n")
        here.hang_up("SIGHUP: these settings change only with a restart: limits")  # the later line of the two
        assert READ + "log_requests, tokens" in here.service.log()
        wait_until(lambda: here.status("third") == 200, "it does not come")
        assert [here.status(name) for name in secrets] == [401, 200, 200]
        assert connection.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
        wait_until(lambda: "route=/healthz" in here.service.log(), "the requests are not logged")


@pytest.mark.slow
def test_wrong_settings(any_server, news, secrets):
    """The old ones stay, and the log says why, until they are mended; a file without tokens opens nothing."""
    with served(any_server.url, secrets, "first") as here:
        for more, names, text in (
            ("path = 'no path'\n", ["second"], f"{STAY}wrong settings (flags, environment, "),
            ("port = \n", ["second"], f"{STAY}the settings (flags, environment, "),
            ("", [], f"{STAY}tokens: the service has tokens, so going without any needs a restart"),
        ):
            here.write(*names, more=more)
            here.hang_up(text)
            assert [here.status(name) for name in ("first", "second")] == [200, 401]
        (here.service.folder / "settings.toml").unlink()
        here.hang_up(f"{STAY}[Errno 2] No such file")
        here.write("second")
        here.hang_up(READ + "tokens")
        wait_until(lambda: here.status("second") == 200, "it does not come")
        assert here.status("first") == 401


class Load:
    """Crawlers that insert until they are told to stop; ``refused`` has what went wrong."""

    def __init__(self, url: str, token: str, count: int = 3) -> None:
        self.new: collections.Counter[str] = collections.Counter()
        self.asked: set[str] = set()
        self.refused: list[FilterAPIError] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._crawl, args=(url, token, number)) for number in range(count)]

    def _crawl(self, url: str, token: str, number: int) -> None:
        with FilterAPIClient(url, token) as api:
            for batch in itertools.count():
                if self._stop.is_set():
                    return
                # every other crawler asks the same
                uris = [f"https://example.com/{number // 2}/{batch}/{index}" for index in range(20)]
                try:
                    self.new.update(api.unique("news", uris))
                except FilterAPIError as error:
                    self.refused.append(error)
                    return
                self.asked.update(uris)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_reloads_and_killed_workers_under_load(any_server, news, secrets):
    """20 reloads, and two workers killed (-9): each URI is new once, no request is refused, and all workers agree."""
    with served(any_server.url, secrets, "first", "second", workers=2) as here:
        service, killed = here.service, []
        with Load(service.url, secrets["first"]) as load:
            for number in range(RELOADS):
                alive = serving(service)
                here.write("first", "second" if number % 2 else "third")
                if number in {4, 13} and len(alive) == 2:
                    os.kill(alive[number % 2], signal.SIGKILL)
                    killed.append(alive[number % 2])
                here.hang_up(READ + "tokens")
            here.write("first", "third", more="trusted_proxies = ['10.0.0.0/8']\n")
            here.hang_up(READ)
            wait_until(lambda: len(serving(service)) == 2, "they are not both there again", patience=120)
            wait_until(lambda: all_agree(here), "a worker has old settings")
        assert load.refused == []
        assert load.new == dict.fromkeys(load.asked, 1)
        assert news.inserted() == len(load.asked) > 0
        assert killed
        assert "Child process" in service.log()
        assert service.log().count(READ) == RELOADS + 1


def all_agree(here: Served) -> bool:
    """Whether 30 connections in a row, of both workers most likely, know the tokens of the last settings."""
    return all((here.status("third"), here.status("first")) == (200, 200) for _ in range(30))


@pytest.mark.slow
def test_a_worker_that_starts_later(any_server, news, secrets):
    """It has the newest settings, and not those of the service's start: a token that was taken away stays away."""
    with served(any_server.url, secrets, "first", "second", workers=2) as here:
        first, second = serving(here.service)
        here.write("second", "third")
        here.hang_up(IN_USE)
        for each in (first, second):
            os.kill(each, signal.SIGKILL)
        wait_until(lambda: len(set(serving(here.service)) - {first, second}) == 2, "no other workers are started")
        for _ in range(20):
            assert [here.status(name) for name in secrets] == [401, 200, 200]


@pytest.mark.slow
def test_hangups_of_workers_that_start(any_server, news, secrets):
    """SIGHUP after SIGHUP while workers are started and killed, and to workers themselves: none dies of it."""
    with served(any_server.url, secrets, "first", workers=2) as here:
        service = here.service
        for number in range(4):
            before = serving(service)
            os.kill(before[0], signal.SIGKILL)
            here.write("first", "second" if number % 2 else "third")
            while len(set(serving(service)) - {before[0]}) < 2:
                service.process.send_signal(signal.SIGHUP)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(before[1], signal.SIGHUP)
                assert service.process.poll() is None
        assert service.log().count("died") == 4
        assert here.status("first") == 200
