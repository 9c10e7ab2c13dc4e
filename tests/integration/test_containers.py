"""The commands of the Dockerfile and of ``compose.yaml``, run as they stand there; only addresses are the test's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.containers import VARIABLE, compose, contained, copy_context, dockerfile
from support.mongo import MongoServer
from support.prometheus import Prometheus, program
from support.servers import PATIENCE, Server, free_port, wait_until

from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient
from urifilter_redis.service import tokens

PASSWORD = "0123456789abcdef"

#: Where the image has the program.
PLACE = "/opt/urifilter"

#: Where the tests' libraries are; the project itself is in none of these folders.
LIBRARIES = os.pathsep.join(each for each in sys.path if each.endswith("site-packages"))

#: Install the project alone.
ALONE = " --no-deps --no-build-isolation --ignore-installed"

pytestmark = pytest.mark.slow


def own(text: str, **replaced: object) -> str:
    """Return a text with the test's passwords and addresses."""
    text = VARIABLE.sub(PASSWORD, text)
    for said, ours in replaced.items():
        text = text.replace(said, str(ours))
    return text


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The folder of the program, made by the Dockerfile's commands of what it copies; the libraries are the tests'."""
    source, place = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("image") / "urifilter"
    copy_context(source)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": LIBRARIES, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for command in dockerfile()[0].all("RUN"):
        whole = command.replace(PLACE, str(place)) + (ALONE if " install " in command else "")
        done = subprocess.run(whole, shell=True, cwd=source, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return place


class Container:
    """Containers of the image."""

    def __init__(self, image: Path, folder: Path) -> None:
        self._image, self._folder = image, folder
        self._last = dockerfile()[1]

    def environment(self, service: str = "", **replaced: object) -> dict[str, str]:
        """Return all variables of the image, and those of a service of compose.yaml."""
        more = compose()["services"][service]["environment"] if service else {}
        found = {name: value.replace(PLACE, str(self._image)) for name, value in self._last.environment.items()}
        found["PATH"] = found["PATH"].replace("$PATH", "/usr/bin:/bin")
        volume = self._last.one("VOLUME")
        found["URIFILTER_DATA_DIR"] = found["URIFILTER_DATA_DIR"].replace(volume, str(self._folder / "volume"))
        found |= {"TMPDIR": str(self._folder / "tmp"), "HOME": "/", "PYTHONPATH": LIBRARIES}
        return found | {name: own(value, **replaced) for name, value in more.items()}

    @contextlib.contextmanager
    def run(self, service: str, **replaced: object):
        """Run a service of compose.yaml; yield its process and the file of its log."""
        said = compose()["services"][service]
        command = json.loads(self._last.one("ENTRYPOINT")) + said.get("command", json.loads(self._last.one("CMD")))
        environment = self.environment(service, **replaced)
        environment |= {"URIFILTER_PORT": str(replaced["8000"])} if "8000" in replaced else {}
        for name in ("tmp", "volume"):
            (self._folder / name).mkdir(exist_ok=True)
        whole = contained(command, self._folder / "tmp", [self._folder / "volume"])
        log = self._folder / f"{service}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(whole, env=environment, stdout=stream, stderr=stream, cwd="/")
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()

    def is_healthy(self, port: int) -> bool:
        """Whether the image's health check says so."""
        command = [own(word, **{"8000": port}) for word in self._last.health_check]
        return subprocess.run(command, env=self.environment(), capture_output=True).returncode == 0


@pytest.fixture
def container(image, tmp_path):
    return Container(image, tmp_path)


@pytest.fixture
def valkey():
    """The Valkey of compose.yaml, with its options."""
    name, *options = map(own, compose()["services"]["valkey"]["command"])
    assert name == "valkey-server"
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    with Server("valkey", **{option.removeprefix("--"): value for option, value in pairs.items()}) as server:
        yield server


def test_valkey(valkey, container):
    """It is the version that the image's name says, keeps the promises, and its health check says that it is well."""
    said = compose()["services"]["valkey"]
    assert valkey.ask("info", "server")["valkey_version"].startswith(said["image"].partition(":")[2])
    UriFilter.create("news", redis=valkey.url, capacity=1000).close()
    command = ["urifilter", "--json", "doctor", "--redis", valkey.url]
    done = subprocess.run(command, env=container.environment(), capture_output=True, text=True)
    assert '"danger"' not in done.stdout, done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    kind, check = said["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    check = check.replace("valkey-cli", f"redis-cli -p {valkey.port}")  # of Debian, which takes the same arguments
    for password, code in ((own(said["environment"]["REDISCLI_AUTH"]), 0), ("another", 1)):
        environment = os.environ | {"REDISCLI_AUTH": password}
        assert subprocess.run(["sh", "-c", check], env=environment, capture_output=True).returncode == code


def test_service_and_worker(valkey, container, tmp_path):
    """They work on a file system that can only be read, are found well or not, and stop when they are told to."""
    mongo, port, token = MongoServer(), free_port(), tokens.new()
    settings = tmp_path / "serve.toml"
    settings.write_text(tokens.Token("all", tokens.digest(token), ("*",), "write").toml())
    replaced = {
        "valkey:6379": f"127.0.0.1:{valkey.port}",
        f"urifilter:{PASSWORD}@mongo:27017": f"127.0.0.1:{mongo.port}",  # neither FerretDB nor the emulator has users
        "?authSource=admin": "",
        "/etc/urifilter/serve.toml": settings,
        "8000": port,
    }
    try:
        assert not container.is_healthy(port)
        create = ["urifilter", "create", "news", "--capacity", "1000"]
        subprocess.run(create, env=container.environment("worker", **replaced), check=True, capture_output=True)
        with (
            container.run("urifilter", **replaced) as (service, log),
            container.run("worker", **replaced) as (worker, other),
        ):
            wait_until(lambda: container.is_healthy(port), f"it does not get well: {log}", patience=120)
            wait_until(lambda: log.read_text().count("Started server process") >= 2, "it has one worker", patience=120)
            with FilterAPIClient(f"http://127.0.0.1:{port}", access_token=token) as api:
                assert api.unique("news", ["a", "b", "a"]) == ["a", "b"]
            wait_until(lambda: "checkpoint 1," in other.read_text(), f"no checkpoint: {other}", patience=120)
            for process in (service, worker):
                assert process.poll() is None
                process.terminate()
                assert process.wait(PATIENCE) == 0
        assert not container.is_healthy(port)
    finally:
        mongo.stop()


def test_a_service_without_tokens_does_not_start(container, tmp_path):
    """The image listens at all addresses, so it wants tokens, and says so."""
    (tmp_path / "serve.toml").write_text("")
    with container.run("urifilter", **{"/etc/urifilter/serve.toml": tmp_path / "serve.toml"}) as (process, log):
        assert process.wait(PATIENCE) == 2
        assert "so anybody may ask: add tokens" in log.read_text()


def test_prometheus(tmp_path):
    """Its options are ones that Prometheus takes, and its files are where these say."""
    said, port = compose()["services"]["prometheus"], free_port()
    there = {name: own_file for own_file, _, name in (volume.partition(":") for volume in said["volumes"])}
    (tmp_path / "etc").mkdir()
    for name, file in ((name.removesuffix(":ro"), file) for name, file in there.items()):
        if name.startswith("/etc/prometheus/"):
            text = "a token" if file == "./urifilter.token" else (Path(__file__).parents[2] / file).read_text()
            (tmp_path / "etc" / Path(name).name).write_text(text)
    assert sorted(each.name for each in (tmp_path / "etc").iterdir()) == [
        "alerts.yml",
        "prometheus.yml",
        "urifilter.token",
    ]
    moved = {"/etc/prometheus": tmp_path / "etc", "=/prometheus": f"={tmp_path}/data"}
    command = [own(word, **moved) for word in said["command"]]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [program("prometheus"), *command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        wait_until(Prometheus(port).is_ready, f"it does not start: {tmp_path / 'log'}", patience=120)
        assert len(Prometheus(port).ask("rules")["groups"]) == 1
        found = wait_until(lambda: Prometheus(port).ask("targets")["activeTargets"], "it has no target")
        (target,) = found
        host, _, at = target["discoveredLabels"]["__address__"].partition(":")
        assert (host in compose()["services"], at) == (True, dockerfile()[1].one("EXPOSE"))
    finally:
        process.kill()
        process.wait()
