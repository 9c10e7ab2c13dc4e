"""The Dockerfile and ``compose.yaml``: safe by default, and of the versions that the project is tested with."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest
from support.containers import VARIABLE, compose, dockerfile, in_context
from support.pages import ROOT, blocks_of

from urifilter_redis.http_api import DEFAULT_PORT

BUILD, IMAGE = dockerfile()
COMPOSE = compose()
SERVICES = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if "build" in each}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Files that whoever runs it makes; they hold secrets, or their hashes.
MADE = {"./serve.toml": "/serve.toml", "./urifilter.token": "/urifilter.token"}


def test_images_have_plain_names():
    """Each image has a version, and none an address of a registry."""
    named = [BUILD.base, IMAGE.base, *(each["image"] for name, each in SERVICES.items() if name not in OURS)]
    assert len(named) == 5
    for name in named:
        assert re.fullmatch(r"[a-z]+(/[a-z]+)?:[\w.-]*\d[\w.-]*", name), name


def test_versions_agree():
    """Python is one that the project is for and CI runs, and Valkey is the embedded one."""
    assert BUILD.base == IMAGE.base
    version = re.search(r"python:(\d\.\d+)-", IMAGE.base)[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert f"tests_with python{version}" in (ROOT / ".ci" / "nightly").read_text()
    (embedded,) = PROJECT["optional-dependencies"]["embedded"]
    assert SERVICES["valkey"]["image"].partition(":")[2] == embedded.partition(">=")[2]


def test_the_image_may_do_little():
    """Its user is not root and has a number, for platforms that check it; the notes' folder is a volume."""
    user = re.fullmatch(r"(\d+):(\d+)", IMAGE.one("USER"))
    assert min(map(int, user.groups())) > 0
    names = [name for name, _ in IMAGE.instructions]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert IMAGE.environment["URIFILTER_DATA_DIR"].startswith(f"{IMAGE.one('VOLUME')}/")
    assert f"-o {user[1]} -g {user[2]} {IMAGE.one('VOLUME')}" in IMAGE.one("RUN")
    assert IMAGE.one("EXPOSE") == str(DEFAULT_PORT)
    assert str(DEFAULT_PORT) in IMAGE.health_check[-1]


@pytest.mark.parametrize("name", OURS)
def test_our_containers_may_do_little(name):
    """Their root can only be read, and they have no capabilities and get none."""
    service = OURS[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_nothing_is_open_to_other_machines():
    """Ports are published on this machine alone, and those of Valkey and MongoDB not at all."""
    published = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert COMPOSE["networks"]["data"]["internal"] is True
    for name in ("valkey", "mongo"):
        assert (SERVICES[name]["networks"], SERVICES[name].get("ports")) == (["data"], None)


def test_no_secret_is_in_a_file_of_the_project():
    """Passwords are variables that must be set; files with secrets come neither into git nor into the image."""
    text = (ROOT / "compose.yaml").read_text()
    assert set(VARIABLE.findall(text)) == {"VALKEY_PASSWORD", "MONGO_PASSWORD"}
    assert text.count("${") == len(VARIABLE.findall(text))
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", *MADE.values()} <= set(ignored)
    assert not any(map(in_context, (".env", "serve.toml", "urifilter.token", ".git/config", "tests/conftest.py")))


def test_tokens_are_kept_outside_the_checkout(tmp_path):
    """What the page says makes the crawlers' token elsewhere, and every file with a secret for its user alone."""
    (commands,) = (each.code for each in blocks_of(ROOT / "docs" / "deployment.md") if "token new" in each.code)
    for folder in ("bin", "home", "checkout"):
        (tmp_path / folder).mkdir()
    said = 'case "$*" in *token*) echo "[[tokens]]"; echo "the token: for $6" >&2 ;; esac'
    for name, script in (("docker", said), ("sudo", ""), ("openssl", "echo 0123")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-euc", f"umask 022\n{commands}"], env=env, cwd=tmp_path / "checkout", check=True)
    files = {each.relative_to(tmp_path).as_posix(): each for each in tmp_path.glob("[ch]*/**/*") if each.is_file()}
    open_to_all = {name for name, file in files.items() if file.stat().st_mode & 0o077}
    assert open_to_all == {"checkout/serve.toml"}
    assert {name for name, file in files.items() if "for crawlers" in file.read_text()} == {
        "home/.config/urifilter/crawlers.txt"
    }
    assert files["checkout/urifilter.token"].read_text() == "for prometheus\n"


def test_what_is_mounted_is_there():
    """Each file is one of the project, or one that the page says how to make; each volume and network is declared."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    used = set()
    for each in SERVICES.values():
        assert set(each["networks"]) <= set(COMPOSE["networks"])
        for source, _, _ in (volume.partition(":") for volume in each["volumes"]):
            if source in MADE:
                assert f"> {source.removeprefix('./')}" in page
            elif source.startswith("."):
                assert (ROOT / source).is_file()
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_the_image_has_all_that_the_package_needs():
    """The build gets what pyproject.toml names, and each package whole."""
    copied = {source for text in BUILD.all("COPY") for source in text.split()[:-1]}
    assert copied == {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "cli", "lua", "urifilter_redis"}
    assert all(map(in_context, ["lua/insert.lua", "cli/main.py", "urifilter_redis/service/page/index.html"]))
    assert not in_context("cli/__pycache__/main.cpython-313.pyc")
