"""A filter grows out of a server: the commands of the page are typed, with crawlers before and after."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from urifilter_redis import UriFilter

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "outgrow-a-server.md"
CRAWLERS = 4
PAGES = [f"https://example.com/{number}" for number in range(10_000)]


def crawl(number: int, places: list[str], address: str, archive: str) -> tuple[list[str], list[str]]:
    """Ask about pages, each crawler in an order of its own; leave some in flight.

    Returns:
        The pages that were told new, and those that were claimed and not committed.
    """
    turned = places[number * 997 :] + places[: number * 997]
    new: list[str] = []
    with UriFilter.open("news", redis=address, archive=archive) as news:
        for first in range(0, len(turned), 100):
            new += news.unique(turned[first : first + 100])
        mine = news.claims(lease=3600, holder=f"a{number:015d}", beats=False)
        claimed = [f"{place}/claimed" for place in places[:10]]
        taken = [place for place, age in zip(claimed, mine.claim_many(claimed), strict=True) if age]
    return new, taken


@pytest.mark.parametrize("shards", [3, 6])
def test_the_page(make_server, cluster, tmp_path, shards):
    """No page is told new twice, and none is lost; what was in flight is in flight, and nobody else gets it."""
    server = make_server("redis70")
    here, there = tmp_path.joinpath("srv", "archive").as_uri(), tmp_path.joinpath("srv", "cluster").as_uri()
    with UriFilter.create("news", redis=server.url, archive=here, capacity=30_000_000) as news:
        assert (news.config.shards, news.config.segments) == (1, 6)
        news.forget(news.unique(["https://example.com/forgotten"]))
    found: collections.Counter[str] = collections.Counter()
    flying: collections.Counter[str] = collections.Counter()

    def crawlers(places: list[str], address: str, archive: str) -> None:
        with ThreadPoolExecutor(CRAWLERS) as pool:
            for new, taken in pool.map(lambda n: crawl(n, places, address, archive), range(CRAWLERS)):
                found.update(new)
                flying.update(taken)

    crawlers(PAGES[:6000], server.url, here)
    blocks = re.findall(r"```sh\n(export .*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    places = {
        "redis://old:6379/0": server.url,
        "redis+cluster://a:6379,b:6379,c:6379": cluster.cluster_url,
        "file:///var/lib/urifilter/archive": here,
        "file:///var/lib/urifilter/cluster": there,
        "--shards 6": f"--shards {shards}",
    }
    assert all(any(written in block for block in blocks) for written in places)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks:
        for written, real in places.items():
            block = block.replace(written, real)  # noqa: PLW2901 - the same block, with one more place
        done = subprocess.run(
            ["sh", "-ec", block], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert re.search(rf"^shards +{shards}\b", done.stdout, re.MULTILINE)
    crawlers(PAGES, cluster.cluster_url, there)
    assert found == dict.fromkeys(PAGES, 1)
    assert flying == {f"{place}/claimed": 1 for place in PAGES[:10]}
    with UriFilter.open("news", redis=cluster.cluster_url, archive=there) as news:
        assert (news.config.shards, news.config.segments) == (shards, 6)
        assert news.info().inserted == len(PAGES) + 1  # and the forgotten one
        assert news.insert("https://example.com/forgotten")
        assert sum(node.ask("DBSIZE") > 0 for node in cluster.nodes) == 3
        news.drop()
