"""The scripts do to the bitmaps, byte for byte, what the model does to its bytearray."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import servers
from support.model import ModelShard, ModelSlice
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.bloom.digest import blocked_offsets, classic_offsets, shard_of
from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.protocol.scripts import vectors

VECTORS = json.loads(vectors())
geometries = st.one_of(
    st.tuples(st.just("blocked"), st.sampled_from([8, 12, 16]), st.integers(1, 40)),
    st.tuples(st.just("classic"), st.integers(1, 30), st.integers(1, 5000)),
    st.tuples(st.just("counting"), st.integers(1, 30), st.integers(1, 2000)),
)
# Few different digests, so that repetitions and false positives happen; extreme words too.
words = st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x01\x00\x00\x80", b"abcd", b"\x00\x00\xf0\xff"])
digests = st.lists(
    st.one_of(
        st.binary(min_size=16, max_size=16),
        st.tuples(words, words, words, words).map(b"".join),
        st.integers(0, 30).map(lambda i: md5(str(i).encode())),
    ),
    min_size=1,
    max_size=20,
)
operations = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "contains", "forget", "remove"]), digests, st.booleans()),
    max_size=12,
)


@pytest.fixture(
    params=[
        kind if kind == servers.DEFAULT else pytest.param(kind, marks=pytest.mark.slow)
        for kind in (*servers.KINDS, *servers.FURTHER)
    ]
)
def client(request, clean_server):
    with clean_server(request.param).client() as client:
        yield client


@given(geometry_=geometries, operations_=operations)
def run_against_model(client, geometry_, operations_):
    config = geometry(*geometry_)
    shard, model = Shard(client, config), ModelShard(*geometry_)
    for command, some, packed in operations_:
        if command == "remove" and config.layout != "counting":
            continue
        expected = getattr(model, command)(some)
        assert expected == shard.ask(command, b"".join(some) if packed else some)
        assert bytes(model.slices[-1].data) == shard.today()
    assert str(model.inserted) == shard.meta()["inserted"]
    assert set(model.forgotten) == set(client.zrange(KEYS.forgotten, 0, -1))


def test_scripts_do_what_the_model_does(client):
    """Any sequence of insert, contains and forget, any geometry: the same answers and the same bytes."""
    run_against_model(client)


def uris(description: str) -> list[bytes]:
    assert description == "https://example.com/0 .. 49, md5"
    return [f"https://example.com/{i}".encode() for i in range(50)]


@given(units=st.integers(128, 5000), operations_=operations)
def run_in_a_module(client, units, operations_):
    shard, model = Shard(client, geometry(REDISBLOOM, 14, units)), ModelShard(REDISBLOOM, 14, units)
    for command, some, packed in operations_:
        if command != "remove":
            assert getattr(model, command)(some) == shard.ask(command, b"".join(some) if packed else some)
    assert str(model.inserted) == shard.meta()["inserted"]
    assert set(model.forgotten) == set(client.zrange(KEYS.forgotten, 0, -1))


def test_scripts_do_with_a_module_what_the_model_does(bloom):
    """Layout redisbloom: the same answers as a set of so few items."""
    with bloom.client() as client:
        run_in_a_module(client)


@pytest.mark.parametrize("vector", VECTORS["slices"], ids=lambda v: v["layout"])
def test_known_slices(client, vector):
    """Both the model and the scripts make the known bitmaps."""
    units = vector.get("blocks") or vector["m"]
    inserted = [md5(uri) for uri in uris(vector["items"])]
    shard = Shard(client, geometry(vector["layout"], vector["k"], units))
    model = ModelSlice(vector["layout"], vector["k"], units)
    for digest in inserted:
        model.insert(digest)
    shard.ask("insert", b"".join(inserted))
    assert vector["bytes"] == model.data.hex() == shard.today().hex()


@pytest.mark.parametrize("item", VECTORS["items"], ids=lambda v: v["uri"][:30])
def test_known_digests_shards_and_offsets(item):
    """The published digests, shards and offsets."""
    digest = md5(item["uri"].encode())
    assert item["digest"] == digest.hex()
    assert item["shard_of_7"] == shard_of(digest, 7)
    assert item["shard_of_4096"] == shard_of(digest, 4096)
    for known in item["classic"]:
        assert known["offsets"] == list(classic_offsets(digest, known["m"], known["k"]))
    for known in item["blocked"]:
        assert known["offsets"] == list(blocked_offsets(digest, known["blocks"], known["k"]))
