"""The files for other languages: scripts, their index, and known answers."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.encoding import encode_item
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.bloom.rules import canonical_rules
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.bloom.url_parts import INDEX_PAGES, TRACKING_PARAMETERS
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.scripts import Header, exported_files, files_in, vectors

FILES = exported_files()
INDEX = json.loads(FILES["scripts.json"])
KNOWN = json.loads(vectors())


def test_every_script_is_a_file():
    """Each composed script has its file, under a name for its layout and k; the index has the SHA1 of each file."""
    listed = {each["file"] for each in INDEX["scripts"].values()} | {"vectors.json", "scripts.json"}
    assert listed == set(FILES)
    assert files_in(FILES["scripts.json"]) == {
        name: hashlib.sha1(data).hexdigest() for name, data in FILES.items() if name != "scripts.json"
    }
    for script in scripts.variants(BLOCKED_K):
        assert FILES[INDEX["scripts"][script.name]["file"]].decode() == script.source
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+(-\d+)?(-claims)?)?\.(lua|json)", name) for name in FILES)


def test_a_client_finds_the_script_of_its_filter():
    """Command, layout and k of meta lead to the script, and of two that for shards with claims or without."""
    found = INDEX["scripts"]["insert:blocked-12"]
    assert (found["command"], found["layout"], found["k"]) == ("insert", "blocked", 12)
    found = INDEX["scripts"]["contains:classic"]
    assert (found["command"], found["layout"], found["k"]) == ("contains", "classic", None)
    found = INDEX["scripts"]["turn"]
    assert (found["command"], found["layout"], found["k"]) == ("turn", None, None)
    assert [INDEX["scripts"][f"insert:blocked-12{twin}"]["claims"] for twin in ("", ":claims")] == [False, True]
    assert INDEX["scripts"]["insert:blocked-12:claims"]["file"] == "insert-blocked-12-claims.lua"
    assert {INDEX["scripts"][name]["claims"] for name in ("claim:blocked-12", "beat")} == {None}


def test_the_index_says_what_the_header_says():
    """KEYS, ARGV, reply and error words of a script, with lines that were broken made whole."""
    found = INDEX["scripts"]["insert:classic"]
    assert [each["name"] for each in found["keys"]] == ["meta", "replies", "forgotten", "slices"]
    assert [each["many"] for each in found["keys"]] == [False, False, False, True]
    assert [each["name"] for each in found["args"]] == ["uid", "call id", "max_age", "encoding", "items"]
    assert found["reply"].startswith("an array with the age of each item: 0 = new, and now inserted")
    assert found["reply"].endswith("-1 = in flight (see claim), nothing is written.")
    assert found["errors"][:2] == ["NOFILTER", "MISMATCH"]
    turn = Header.of(scripts.load("build"))
    assert turn.args[4].text.endswith("finish: the number of pieces; halted: 0")
    assert turn.purpose.startswith("make history_1 into the next history")


@pytest.mark.parametrize("command", scripts.COMMANDS)
def test_every_header_is_read_whole(command):
    """Nothing of a script's KEYS, ARGV and error words is left out."""
    script = scripts.load(command, next(iter(scripts.COMMANDS[command]), ""), 12)
    header, comment = Header.of(script), script.source.split("\n\n")[0]
    assert len(header.keys) == comment.count("-- KEYS[")
    assert len(header.args) == comment.count("-- ARGV[")
    assert header.reply
    assert all(word in comment for word in header.errors)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"scripts": []}', b'{"vectors": 1, "scripts": {}}', b"\xff"])
def test_no_index(text):
    """Another file of that name lists nothing."""
    assert files_in(text) == {}


@pytest.mark.parametrize("known", KNOWN["encoded"], ids=lambda known: repr(known["item"])[:30])
def test_known_encodings(known):
    """The published bytes of an item."""
    assert encode_item(known["item"]).hex() == known["bytes"]


@pytest.mark.parametrize("known", KNOWN["digests"], ids=lambda known: known["bytes"][:30] or "empty")
def test_known_digests(known):
    """The published digests of some bytes, by each hash."""
    data = bytes.fromhex(known["bytes"])
    for name, seeds in (("mmh3", known["mmh3"]), ("md5", {"": known["md5"]}), ("blake2b", known["blake2b"])):
        for seed, digest in seeds.items():
            assert hasher(name, seed)([data])[0].hex() == digest


@pytest.mark.parametrize("known", KNOWN["normalized"], ids=lambda known: known["item"])
def test_known_normalisations(known):
    """The published spellings. Filters keep hashes of them, so they never change."""
    for name in ("whatwg", "sorted", "loose"):
        assert normalizer(name)(known["item"]) == known[name]
    assert set(KNOWN["tracking_parameters"]) == TRACKING_PARAMETERS
    assert set(KNOWN["index_pages"]) == INDEX_PAGES


@pytest.mark.parametrize("known", KNOWN["ruled"], ids=lambda known: known["normalize"])
def test_known_rules(known):
    """The published spellings under rules, and the text of these."""
    assert canonical_rules(known["rules"], known["normalize"]) == known["rules"]
    change = normalizer(known["normalize"], known["rules"])
    assert [change(each["item"]) for each in known["spellings"]] == [each["spelling"] for each in known["spellings"]]
