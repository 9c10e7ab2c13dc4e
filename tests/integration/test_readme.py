"""The README's snippets do what the README says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from urifilter_redis import AnswerLost, UriFilter
from urifilter_redis.http_api import DEFAULT_PATH, DEFAULT_PORT, ERROR_CODES
from urifilter_redis.service.settings import Limits, load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "redis://localhost:6379/0"
SERVICE = "http://localhost:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run_python(code: str, names: dict) -> int:
    """Run a snippet; compare each expression with the literal that its comment begins with; return how many."""
    compared = 0
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement)
        line = code.splitlines()[statement.end_lineno - 1]
        said = re.search(r"# (True|False|\[.*?\])", line)
        if isinstance(statement, ast.Expr) and said:
            assert ast.literal_eval(said[1]) == eval(source, names), source
            compared += 1
        else:
            exec(source, names)
    return compared


def test_python_snippets(redis70, folder, capsys):
    """Each snippet runs, in order, and each commented value is what comes out."""
    first, with_asyncio, lost, _, archived = (block.replace(ADDRESS, redis70.url) for block in blocks("python"))
    names: dict = {}
    assert run_python(first, names) == 6
    run_python(with_asyncio, names)
    assert capsys.readouterr().out == "True\n"
    run_python(lost, names)
    assert names["new"] == names["uris"]
    assert names["AnswerLost"] is AnswerLost
    names["news"].drop()
    run_python(archived.replace("file:///var/lib/urifilter", folder), names)
    names["news"].drop()
    names["news"].close()


def test_console_blocks(redis70, tmp_path):
    """Each command prints what stands below it (a word that ends with … stands for any)."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"URIFILTER_REDIS_URL": redis70.url, "PATH": path}
    subprocess.run("urifilter create news --capacity 1000", shell=True, env=env, check=True, capture_output=True)
    compared = 0
    by_hand, *others = sorted(blocks("console"), key=lambda block: "EVALSHA" not in block)
    for block in [by_hand, "$ urifilter drop news --yes\n", *others]:
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, cwd=tmp_path)
            pattern = re.sub(r"\w*…", ".*", re.escape(expected.replace(ADDRESS, redis70.url)))
            assert re.fullmatch(pattern, done.stdout), (command, done.stdout, done.stderr)
            compared += 1
    assert compared == 23


def test_over_http(redis70, service, capsys):
    """The requests by curl, and the SDK's snippet, answer what stands there."""
    with UriFilter.create("news", redis=redis70.url, capacity=1000):
        compared = 0
        for block in blocks("shell-session"):
            for command, expected in re.findall(r"^\$ (.*)\n(.*)\n", block, re.MULTILINE):
                asked = command.replace(SERVICE, service.url)
                done = subprocess.run(asked, shell=True, capture_output=True, text=True)
                assert done.stdout == expected, (command, done.stderr)
                compared += 1
        assert compared == 5
        (snippet,) = (block for block in blocks("python") if "FilterAPI" in block)
        names: dict = {}
        assert run_python(snippet.replace(SERVICE, service.url), names) == 3
        assert capsys.readouterr().out == "404 filter_not_found\n"
        names["api"].close()


def test_settings_of_the_service(tmp_path):
    """The TOML file is one; each setting that it shows has the value that it has by default, or says so."""
    (tmp_path / "settings.toml").write_text(*blocks("toml"))
    shown = load({}, tmp_path / "settings.toml")
    assert shown.limits == Limits()
    assert (shown.port, shown.path) == (DEFAULT_PORT, DEFAULT_PATH)
    assert (shown.tokens[0].name, shown.filters["news"].slices) == ("crawlers", 30)


def test_error_codes_of_the_service():
    """The table has them all, as they are."""
    rows = [f"| {int(meaning.status)} | `{code}` | {meaning.when} |" for code, meaning in ERROR_CODES.items()]
    assert "\n".join(["| status | `error_code` | when |", "| --- | --- | --- |", *rows, ""]) in README


@pytest.mark.parametrize("number", [0, 1])
def test_main_command(tmp_path, number):
    """The first command's summary, and the second run's, are those of the README."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    command = "urifilter dedupe examples/urls.txt"
    assert README.count(f"venv/bin/{command}") == 1
    runs = [subprocess.run(command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True) for _ in range(2)]
    assert runs[number].stderr == blocks("text")[number]
    printed = runs[0].stdout.splitlines()
    assert len(printed) == len(set(printed))
    assert f"prints the {len(printed):,} different lines" in README


def test_every_public_name_and_command_is_mentioned():
    """A newcomer finds every command and every error of today in the README."""
    from urifilter_redis.cli import main

    for name in [*main.commands, "AsyncUriFilter", "AnswerLost", "SliceLost", "BadItem", "ConfigMismatch"]:
        assert re.search(rf"`{name}\b|urifilter {name}\b", README), name
