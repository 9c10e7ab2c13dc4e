"""The loader of Lua scripts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess

import pytest

from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.protocol import scripts

SOURCES = {
    "_two.lua": "-- for readers\n\n-- @section one\nlocal one = 1\n\n-- @section two\nlocal two = 2\n",
    "_nested.lua": '-- @section one\n-- @include "_two.lua" one\n',
    "_circular.lua": '-- @section one\n-- @include "_circular.lua" one\n',
    "_whole.lua": "local whole = 1\n",
}


def read(name: str) -> str:
    return SOURCES[name]


@pytest.mark.parametrize(
    ("sections", "lines"),
    [("one", "local one = 1"), ("two", "local two = 2"), ("two one", "local two = 2\nlocal one = 1")],
)
def test_include_is_replaced_by_the_sections(sections, lines):
    """An include line becomes the text of the sections, in the order that it names, and nothing else changes."""
    source = scripts._include(f'-- top\n-- @include "_two.lua" {sections}\nreturn one\n', read)
    assert source == f"-- top\n{lines}\nreturn one\n"


def test_missing_include_fails():
    """A name that is no file is an error, not an empty text."""
    with pytest.raises(ValueError, match=r"no Lua file _nowhere.lua"):
        scripts._include('-- @include "_nowhere.lua" one\n', scripts._read)


@pytest.mark.parametrize("what", ['"_two.lua"', '"_two.lua" one three', '"_whole.lua"', '"_whole.lua" one'])
def test_missing_section_fails(what):
    """A name that is no section, or no name at all, is an error that tells the names that there are."""
    there = "one, two" if "two" in what else "none"
    with pytest.raises(ValueError, match=f"the sections of _[a-z]*.lua are {there}; an include names"):
        scripts._include(f"-- @include {what}\n", read)


@pytest.mark.parametrize("between", [" ", '\n-- @include "_two.lua" '])
def test_repeated_include_fails(between):
    """The same section twice would define its functions twice."""
    with pytest.raises(ValueError, match=r"section one of _two.lua is included twice"):
        scripts._include(f'-- @include "_two.lua" one{between}one\n', read)


@pytest.mark.parametrize("name", ["_nested.lua", "_circular.lua"])
def test_nested_include_fails(name):
    """Includes have one level."""
    with pytest.raises(ValueError, match="one level only"):
        scripts._include(f'-- @include "{name}" one\n', read)


def test_unroll_repeats_with_word_and_digest_numbers():
    """Words 1 to 6 take their bits from the digest's word 1, 7 to 12 from word 2."""
    source = scripts._specialise("-- @unroll\nw$i d$d\n-- @end\n", {"k": "8"}, 8)
    assert source.splitlines() == [*(f"w{i} d1" for i in range(1, 7)), "w7 d2", "w8 d2"]


@pytest.mark.parametrize("claims", [False, True])
@pytest.mark.parametrize("redisbloom", [False, True])
def test_conditions_choose_lines(claims, redisbloom):
    """Lines stand for the kind of shard, or of layout, that they name; one condition may stand in another."""
    parts = ["-- @if redisbloom\n1\n-- @if claims\n2\n-- @end if\n3\n-- @end if\n"]
    parts += ["-- @if no redisbloom\n4\n-- @if no claims\n5\n-- @end if\n-- @if claims\n6\n-- @end if\n-- @end if\n7\n"]
    chosen = scripts._choose("".join(parts), {"claims": claims, "redisbloom": redisbloom}).split()
    of_module = ["1", "2", "3"] if claims else ["1", "3"]
    assert chosen == [*(of_module if redisbloom else ["4", "6" if claims else "5"]), "7"]


@pytest.mark.parametrize("script", scripts.variants(BLOCKED_K), ids=lambda s: s.name)
def test_composed_script_has_no_directive_left(script):
    """What is sent has no include, no unroll and no placeholder."""
    assert "-- @" not in script.source
    assert re.findall(r"\$(layout|k|words|I4s|i|d)\b", script.source) == []


@pytest.mark.parametrize("script", scripts.variants(BLOCKED_K), ids=lambda s: s.name)
def test_sha1_is_that_of_the_source(script):
    """EVALSHA's digest is the SHA-1 of the source's UTF-8."""
    assert script.sha1 == hashlib.sha1(script.source.encode()).hexdigest()


def test_commands_that_a_script_calls():
    """By their whole names: no part of one counts, and nothing that another script calls."""
    expire = scripts.load("expire")
    assert all(expire.calls(command) for command in ("HMGET", "ZRANGEBYSCORE", "ZREM"))
    assert not any(expire.calls(command) for command in ("ZRANGE", "MGET", "SETRANGE", "hmget", ""))


def test_probe_looks_for_every_function_that_only_servers_have(request):
    """A function of the server's Lua that a script begins to use must be looked for, too."""
    probe, config = scripts.load("probe"), (request.config.rootpath / ".luacheckrc").read_text()
    libraries = re.findall(r'"([a-z]+)"', re.search("^read_globals = .*", config, re.MULTILINE)[0])
    code = "".join(re.sub("--.*", "", made.source) for made in scripts.variants(BLOCKED_K) if made != probe)
    used = set(re.findall(rf"\b(?:{'|'.join(libraries)})\.[a-z0-9_]+", code)) - {"redis.call", "redis.pcall"}
    sought = re.findall(r"{ '([^']+)', function", probe.source)
    assert {"cmsgpack", "redis", "struct"} == set(libraries)
    assert [*sorted(used), "unpack", "numbers of Lua 5.1"] == sought


def test_unknown_command():
    """A wrong name is told with the right ones."""
    with pytest.raises(ValueError, match="there are create, insert"):
        scripts.load("inser")


def test_unknown_layout():
    """A layout that a command has no script for is refused, with those that it has."""
    with pytest.raises(ValueError, match="insert is for layout blocked or classic or counting or redisbloom"):
        scripts.load("insert", "cuckoo", 4)


def test_variants_have_different_names_and_sources():
    """Every command once, or once a layout and k; and the four with a twin for shards with claims twice.

    Of the others some have a script of their own for layout redisbloom.
    """
    made = scripts.variants(BLOCKED_K)
    layouts = len(BLOCKED_K) + 3
    twins = 3 * layouts + 1
    assert len(made) == 15 + len(scripts.MODULE_VARIANTS) + 2 * twins + 2 * layouts + (len(BLOCKED_K) + 1)
    assert sum(script.name.endswith(":claims") for script in made) == twins
    assert len({s.name for s in made}) == len({s.sha1 for s in made}) == len(made)


@pytest.mark.slow
def test_composed_scripts_pass_luacheck(request, tmp_path):
    """Lint what runs, not what is in the files, all of it in one process; in CI a missing luacheck fails."""
    if shutil.which("luacheck") is None and not os.environ.get("CI"):
        pytest.skip("luacheck is missing: apt-get install lua-check")
    made = {script.name.replace(":", "-"): script.source for script in scripts.variants(BLOCKED_K)}
    for name, source in made.items():
        (tmp_path / f"{name}.lua").write_text(source)
    (tmp_path / "wrong.lua").write_text("return what_nobody_defined\n")
    config = request.config.rootpath / ".luacheckrc"
    command = ["luacheck", "--formatter", "TAP", "--config", config, *sorted(tmp_path.glob("*.lua"))]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.findall(r"^(ok|not ok) \d+ .*/([\w-]+)\.lua", said, re.MULTILINE)
    assert sorted(found) == sorted([*(("ok", name) for name in made), ("not ok", "wrong")]), said
    assert "insert-counting" in made
