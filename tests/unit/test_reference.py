"""The reference leaves nothing out, and the keys of the diagram are real."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest
from urifilter_redis.cli import main

import urifilter_redis
from urifilter_redis import errors, sdk
from urifilter_redis import scrapy as for_scrapy
from urifilter_redis.bloom.digest import hasher, shards_of
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.service import settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SOURCES = [path for folder in ("urifilter_redis", "cli") for path in (ROOT / folder).rglob("*.py")]

TABLES = (
    "answers",
    "endpoints",
    "error-codes",
    "metrics",
    "python-errors",
    "settings",
    "settings-filters",
    "settings-limits",
    "settings-tokens",
    "shape",
)


def module(name: str, monkeypatch):
    """Import a module of the site's own."""
    folder, _, name = name.rpartition("/")
    monkeypatch.syspath_prepend(str(DOCS / folder))
    yielded = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return yielded


def test_every_public_name_is_documented():
    """The pages have a directive for each name that can be imported, and for no other."""
    page = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    directives = re.findall(r"^\.\. auto\w+:: (\S+)$", page, re.MULTILINE)
    assert len(directives) == len(set(directives))
    in_errors = {f"urifilter_redis.errors.{name}" for name in errors.__all__}
    wanted = {f"urifilter_redis.{name}" for name in urifilter_redis.__all__ if name not in errors.__all__}
    wanted |= {f"urifilter_redis.sdk.{name}" for name in sdk.__all__ if name not in errors.__all__}
    wanted |= {f"urifilter_redis.scrapy.{name}" for name in for_scrapy.__all__}
    wanted |= {f"urifilter_redis.service.settings.{name}" for name in settings.__all__}
    assert set(directives) == wanted | in_errors


def test_every_command_is_documented():
    """Each command of the command line stands on one of its two pages."""
    page = "".join((REFERENCE / name).read_text() for name in ("cli.md", "cli-programs.md"))
    listed = re.findall(r"^   :commands: (.+)$", page, re.MULTILINE)[0].split(",")
    listed += re.findall(r"^   :prog: urifilter (\S+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(main.commands)


def test_every_table_stands_on_a_page():
    """Each table is made once, and stands on one page."""
    found = [
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"^```\{from-code\} (.+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(found) == sorted(TABLES)


@pytest.mark.sampled
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_code(monkeypatch, name):
    """Each row has all its cells, and none that a reader must do without."""
    tables = module("_ext/tables", monkeypatch)
    assert tuple(tables.TABLES) == TABLES
    head: list[str] = []
    for line in tables.TABLES[name]().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        head = head if cells and head else cells
        if cells and set(cells) != {"---"}:
            assert len(cells) == len(head), line
            may_be_empty = {"labels", "fields of the body or query"}
            assert all(cell for cell, column in zip(cells, head, strict=True) if column not in may_be_empty), line


@pytest.mark.slow
def test_every_endpoint_has_an_example(monkeypatch):
    """Each endpoint is asked in a snippet, which is run."""
    tables = module("_ext/tables", monkeypatch)
    page = (REFERENCE / "http.md").read_text()
    endpoints = re.findall(r"^\| `(\w+)` `(\S+)` \|", tables.TABLES["endpoints"](), re.MULTILINE)
    assert len(endpoints) >= 10
    for _, path in endpoints:
        asked = rf"^\$ curl -s http://localhost:8000{re.escape(path).replace(re.escape('{filter}'), 'news')}\s"
        assert re.search(asked, page, re.MULTILINE), path


def texts_of(path: Path) -> set[str]:
    """Return the texts that a module has."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_setting_of_scrapy_is_listed():
    """Each setting that Scrapy's parts read by its name stands in a table of the page about Scrapy."""
    texts = {text for path in SOURCES if "scrapy" in path.parts for text in texts_of(path)}
    page = (ROOT / "docs" / "reference" / "scrapy.md").read_text()
    rows = " ".join(line for line in page.splitlines() if line.startswith("|"))
    listed = {f"URIFILTER_{name}" for name in re.findall(r"`(?:URIFILTER)?_([A-Z_]+)`", rows)}
    assert {text for text in texts if re.fullmatch(r"URIFILTER_[A-Z_]+[A-Z]", text)} <= listed


@pytest.mark.slow
def test_every_variable_is_listed():
    """Each variable of the environment that the code reads by its name has a row, and each row's is read."""
    texts = {text for path in SOURCES if "scrapy" not in path.parts for text in texts_of(path)}
    page = (REFERENCE / "settings.md").read_text()
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", page, re.MULTILINE)
    listed = set(re.findall(r"[A-Z_]+", " ".join(rows)))
    read = {text for text in texts if re.fullmatch(r"URIFILTER_[A-Z_]+[A-Z]|SSL_CERT_\w+|PROMETHEUS_\w+", text)}
    assert listed == read


def test_the_keys_of_the_diagram_are_real():
    """The item's digest and shard, and all keys, are those of a filter with three shards and the seed 0."""
    text = (DOCS / "concepts" / "keys-and-shards.md").read_text().partition("```mermaid\n")[2].partition("```")[0]
    digest = hasher("mmh3", "0")([b"https://example.com/"])
    assert digest[0].hex() in text
    assert re.findall(r"3 / 4096⌋ = (\d)\" --> \w+\[\"shard (\d)", text) == [(str(shards_of(digest, 3)[0]),) * 2]
    keys = FilterKeys("urifilter", "news").of(3)
    of_shards = [keys.shard(number) for number in range(3)]
    real = {each for one in of_shards for each in (one.meta, one.replies, one.forgotten, one.slice("today"))}
    assert set(re.findall(r"urifilter:[^<\"]+", text)) == real | {keys.filters}


def test_links_that_lead_nowhere_are_found(monkeypatch, tmp_path):
    """A built site is searched for links to files and fragments that are not there."""
    links = module("_ext/links", monkeypatch)
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/page.html#there">1</a><a href="a/page.html#no">2</a><a href="#here" id="here">3</a>'
        '<a href="a/none.html">4</a><a href="https://example.com/none">5</a><img src="a/none.svg">'
        '<object data="a/neither.svg"></object>'
    )
    (tmp_path / "a" / "page.html").write_text('<p id="there"><a href="../index.html">1</a><a href="#no">2</a></p>')
    assert links.wrong_links(tmp_path) == [
        "a/page.html: #no",
        "index.html: a/page.html#no",
        "index.html: a/none.html",
        "index.html: a/none.svg",
        "index.html: a/neither.svg",
    ]
