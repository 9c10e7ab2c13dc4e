"""What ships: one top-level package with every script inside, and little to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

EXTRAS = ("daemon", "embedded", "scrapy", "sdk", "server")

SHIPPED = {".py", ".lua", ".html", ".css", ".js", ".json"}

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built of the files that git would ship, without the network."""
    pytest.importorskip("hatchling", reason="hatchling is missing: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for part in ("lua", "cli", "urifilter_redis"):
        for file in (ROOT / part).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                target = source / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_one_top_level_package(wheel):
    """``lua`` and ``cli`` are inside the package and not beside it."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"urifilter_redis"}


@pytest.mark.slow
def test_every_file_is_inside(wheel):
    """All modules, all Lua files, the known answers, the page, and the marker of types."""
    inside = {name for name in wheel.namelist() if name.startswith("urifilter_redis/")}
    expected = {"urifilter_redis/py.typed"}
    for part, package in (
        ("lua", "urifilter_redis/lua"),
        ("cli", "urifilter_redis/cli"),
        ("urifilter_redis", "urifilter_redis"),
    ):
        files = [file for file in (ROOT / part).rglob("*") if file.suffix in SHIPPED]
        expected |= {f"{package}/{file.relative_to(ROOT / part)}" for file in files}
    assert expected == inside


def test_base_dependencies_are_few():
    """The library alone needs little; servers are extras."""
    requires = metadata.requires("urifilter-redis")
    base = {re.match(r"[\w-]+", line)[0].replace("_", "-") for line in requires if "extra ==" not in line}
    assert base == {"can-ada", "click", "mmh3", "pymongo", "redis", "rich", "zstandard"}


def test_licences_of_all_dependencies():
    """The table of licences names each dependency, with the extra that brings it, and no strict licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(
        r"^\| `?(\w+)`? \| (\S+) \| (.+) \|$", (ROOT / "docs" / "reference" / "licences.md").read_text(), re.MULTILINE
    )
    told = {(extra, name.lower().replace("_", "-")) for extra, name, _ in rows}
    extras = {name: project["optional-dependencies"][name] for name in EXTRAS}
    needed = {
        (extra, re.match(r"[\w-]+", line)[0].lower().replace("_", "-"))
        for extra, lines in {"always": project["dependencies"], **extras}.items()
        for line in lines
    }
    assert needed <= told
    assert [row for row in rows if re.search(r"GPL|\?|UNKNOWN", row[2])] == []


def test_version_is_in_the_changelog():
    """The version that is installed has its section."""
    version = metadata.version("urifilter-redis")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
