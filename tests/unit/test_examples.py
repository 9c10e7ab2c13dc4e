"""What scripts make is as they make it: the example file, and the blocking twins of the awaited sources."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from urifilter_redis.bloom.normalize import normalizer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_urls_are_what_the_script_makes():
    """``urls.txt`` can be made again."""
    made = runpy.run_path(str(EXAMPLES / "make_urls.py"))["make"]()
    assert made == (EXAMPLES / "urls.txt").read_text().splitlines()


def test_urls_come_again_in_many_spellings():
    """There are plain duplicates, and more under each normalisation."""
    urls = (EXAMPLES / "urls.txt").read_text().splitlines()
    whatwg, sorted_ = (set(map(normalizer(name), urls)) for name in ("whatwg", "sorted"))
    assert len(urls) > len(set(urls)) > len(whatwg) > len(sorted_)


def test_the_service_may_have_many_connections():
    """Systemd's own limit is 1,024 file descriptors, and each connection takes one."""
    unit = (EXAMPLES / "urifilter-serve.service").read_text().splitlines()
    assert "LimitNOFILE=65536" in unit


def test_units_fit_the_page(tmp_path):
    """They start the program that the page installs, as the user that it makes, and systemd finds nothing wrong."""
    page = (EXAMPLES.parent / "docs" / "deployment.md").read_text()
    units = [*EXAMPLES.glob("*.service"), *EXAMPLES.glob("*.timer")]
    assert len(units) == 4
    for unit in units:
        text = unit.read_text()
        assert all(user in ("urifilter", "") for user in re.findall(r"^User=(.*)$", text, re.MULTILINE))
        for program in re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE):
            assert f"sudo python3 -m venv {program.removesuffix('/bin/urifilter')}\n" in page
            text = text.replace(program, sys.executable)
        for file in re.findall(r"^EnvironmentFile=(\S+)|--settings (\S+)", text, re.MULTILINE):
            assert any(name and name.rpartition("/")[0] in page for name in file)
        (tmp_path / unit.name).write_text(text)
    if verify := shutil.which("systemd-analyze"):
        done = subprocess.run([verify, "verify", "--man=no", *tmp_path.iterdir()], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("href", ["http://[bad/", "a\x01b", "http://site/\x7f"])
def test_a_broken_link(href):
    """A link that is no address is left out; an exception would end each process that fetches its page."""
    httpx = pytest.importorskip("httpx")
    links_of = runpy.run_path(str(EXAMPLES / "pages.py"))["links_of"]
    page = httpx.Response(200, html=f'<a href="{href}"><a href="/ok">', request=httpx.Request("GET", "http://site/"))
    assert links_of(page) == ["http://site/ok"]


def test_no_registry_of_npm_is_named():
    """The lock file of the example in JavaScript has versions and checksums, and no address of a registry."""
    lock = (EXAMPLES / "node" / "package-lock.json").read_text()
    assert '"integrity"' in lock
    assert '"resolved"' not in lock


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "tools" / "unasync.py", "--check"], capture_output=True, text=True, check=False
    )


def test_twins_are_generated():
    """Nobody edited a twin, or a source without making its twin again."""
    done = check(ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_edited_twin_is_named(tmp_path):
    """The check says which twin differs, and how to make it again; making them mends it."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for folder in ("", "claiming", "sdk"):
        (tmp_path / "urifilter_redis" / folder).mkdir()
        for path in (ROOT / "urifilter_redis" / folder).glob("*.py"):
            shutil.copy(path, tmp_path / "urifilter_redis" / folder)
    with (tmp_path / "urifilter_redis" / "client.py").open("a") as twin:
        twin.write("# edited\n")
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "not what their sources make: urifilter_redis/client.py; run python tools/unasync.py\n",
    )
    subprocess.run([sys.executable, tmp_path / "tools" / "unasync.py"], check=True)
    assert check(tmp_path).returncode == 0
