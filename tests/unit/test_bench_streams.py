"""The URIs that the bench gives to each peer: how many are new is known."""

from __future__ import annotations

import itertools

import pytest

from bench.streams import MIXES, STREAMS, WARM, Uris, tries, uri


def first(mix: str, place: int = 0, seed: int = 1, count: int = 5):
    return list(itertools.islice(tries(mix, 200, place, seed), count))


@pytest.mark.parametrize("mix", [*MIXES, *STREAMS])
def test_how_many_are_new(mix):
    """Each try has as many new URIs as it says, after the warming and the tries before it."""
    known = set(Uris(range(WARM)))
    for place in (0, 1):
        for each in first(mix, place):
            assert len(each.uris) == 200
            assert {len(uri) for uri in each.uris} == {66}
            assert len({*each.uris} - known) == each.new
            known |= {*each.uris}


def test_the_share_of_new_ones():
    """All are new, none is, or about a third is, and always as many."""
    counts = {mix: {each.new for each in first(mix)} for mix in MIXES}
    assert counts["new"] == {200}
    assert counts["seen"] == {0}
    assert len(counts["links"]) == 1
    assert 40 < min(counts["links"]) < 100


@pytest.mark.parametrize("mix", MIXES)
def test_all_peers_get_the_same(mix):
    """A seed repeats all tries."""
    assert first(mix) == first(mix)
    assert (first(mix) == first(mix, seed=2)) == (mix == "new")


def test_streams_of_links():
    """A crawl has a page for 100 links, far has each link a second time half a try later, and skewed has few twice."""
    crawl, skewed, far = (first(stream)[0] for stream in ("crawl", "skewed", "far"))
    assert crawl.new == 2
    assert far.uris[:100] == far.uris[100:]
    assert far.new == 100
    assert 100 < skewed.new < 200


def test_seen_of_others():
    """A filter that was filled is asked about all of its items."""
    given = next(tries("seen", 50, 0, 1, 50))
    assert {*given.uris} == {*Uris(range(50))}


def test_uris_of_numbers():
    """They are made when they are asked for, and are those of their numbers."""
    made = Uris(range(3, 10**8, 2))
    assert len(made) == len(range(3, 10**8, 2))
    assert made[2] == uri(7)
    assert made[1:3] == [uri(5), uri(7)]
