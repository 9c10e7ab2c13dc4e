"""The page about RedisBloom: no URL is lost while both filters are asked, also if a call of the old one fails."""

from __future__ import annotations

import pytest
import redis
from support.pages import REDIS, ROOT, blocks_of

PAGE = ROOT / "docs" / "how-to" / "from-redisbloom.md"
URLS = ["https://example.com/a", "https://example.com/b", "https://example.com/c"]


class Old:
    """Answers as a server with RedisBloom; of one command the first reply is lost."""

    def __init__(self, loses: str) -> None:
        self.seen, self._loses, self.asked = {URLS[0]}, loses, []

    def execute_command(self, command, _, *uris):
        assert uris  # RedisBloom refuses a call without items
        self.asked.append(command)
        were_there = [int(uri in self.seen) for uri in uris]
        if command == "BF.MADD":
            self.seen |= {*uris}
        if command == self._loses:
            self._loses = ""
            raise redis.ConnectionError("Connection closed by server.")
        return were_there if command == "BF.MEXISTS" else [1 - each for each in were_there]


@pytest.fixture
def names(any_server, monkeypatch):
    """Python's names after the snippets, with an old filter that is set by the test."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    found = [block.code for block in blocks_of(PAGE) if "def unseen" in block.code]
    assert len(found) == 2

    def do(number, old):
        made = {}
        for code in found[: number + 1]:
            exec(code.replace(REDIS, any_server.url), made)
        made["old"].close()
        made["old"] = old
        opened.append(made["news"])
        return made["unseen"]

    opened = []
    yield do
    for each in opened:
        each.close()


@pytest.mark.parametrize("number", [0, 1], ids=["forth", "and back"])
def test_old_filter_that_cannot_be_asked(names, capsys, number):
    """The call fails before anything is inserted, and its repeat has all new URLs."""
    old = Old("BF.MEXISTS")
    unseen = names(number, old)
    with pytest.raises(redis.ConnectionError):
        unseen(URLS)
    assert unseen(URLS) == URLS[1:]
    assert unseen(URLS) == unseen([]) == []
    assert capsys.readouterr().out == ""


def test_old_filter_that_cannot_be_written(names, capsys):
    """The new URLs are returned all the same, and the next call returns none of them again."""
    old = Old("BF.MADD")
    unseen = names(1, old)
    assert unseen(URLS) == URLS[1:]
    assert "may lack 3 URIs" in capsys.readouterr().out
    assert unseen(URLS) == []
    assert old.seen == {*URLS}
    assert old.asked == ["BF.MEXISTS", "BF.MADD"] * 2
