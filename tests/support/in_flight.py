"""Holders that claim by the calls of the scripts, without the bookkeeping of the library's ``claims``."""

from __future__ import annotations

from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.queries import ask_shard
from urifilter_redis.errors import FilterFull
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import claims
from urifilter_redis.protocol.calls import NO_CALL_ID

#: A lease, s, that does not end while a test runs.
LONG = 3600.0


class Holder:
    """A holder of a filter's items, of which it keeps the text of each and, after a bar, its payload.

    Attributes:
        news: the open filter, which may be replaced.
        name: the holder's 8 bytes.

    Args:
        news: the open filter.
        lease: seconds.
        payload: what is kept of each item beside it.
    """

    def __init__(self, news, lease: float = LONG, payload: str = "") -> None:
        self.news, self._payload = news, payload
        self._holding = claims.Holding(claims.new_holder(), round(lease * 1000))
        self.name = bytes.fromhex(self._holding.holder)

    def claim(self, items) -> list[int]:
        def build(keys, view, digests, some):
            kept = [f"{item}|{self._payload}".encode() for item in some]
            return claims.claim(self.news.config, keys, view, NO_CALL_ID, digests, kept, self._holding)

        return self._each(build, items)

    def commit(self, items) -> list[int]:
        def build(keys, view, digests, _):
            return claims.commit(self.news.config, keys, view, NO_CALL_ID, digests, self._holding)

        return self._each(build, items)

    def release(self, items, delay: float = 0, *, failed: bool = False) -> list[int]:
        given = {"delay_holder": claims.new_delay_holder(), "delay": round(delay * 1000), "failed": failed}

        def build(keys, _, digests, __):
            return claims.release(self.news.config.uid, keys, NO_CALL_ID, digests, self._holding, **given)

        return self._each(build, items)

    def beat(self) -> int:
        """Return how many entries it has, in all shards."""
        uid, holding = self.news.config.uid, self._holding
        return sum(self._in_shard(shard, lambda keys, _: claims.beat(uid, keys, holding)) for shard in self._shards())

    def reclaim(self, limit: int = claims.RECLAIMED_A_CALL) -> list[claims.Entry]:
        """Reclaim so many of each shard."""
        uid, found = self.news.config.uid, []
        for shard in self._shards():
            reply = self._in_shard(shard, lambda keys, _: claims.reclaim(uid, keys, NO_CALL_ID, self._holding, limit))
            found += claims.entries_of(reply)
        return found

    def _shards(self) -> range:
        return range(self.news.config.shards)

    def _each(self, build, items) -> list[int]:
        """Call for the items of each shard; return the answers in the order of the items."""
        items, session = list(items), self.news._session
        digests = session.digester(items)
        shards = shards_of(digests, self.news.config.shards)
        answers = [0] * len(items)
        for shard in sorted(set(shards)):
            places = [place for place, each in enumerate(shards) if each == shard]
            for start in range(0, len(places), claims.CLAIMS_A_CALL):
                part = places[start : start + claims.CLAIMS_A_CALL]
                packed, some = b"".join(digests[each] for each in part), [items[each] for each in part]
                reply = self._in_shard(shard, lambda keys, view, p=packed, s=some: build(keys, view, p, s))
                for place, answer in zip(part, reply[: len(part)], strict=True):
                    answers[place] = answer
        return answers

    def _in_shard(self, shard: int, build):
        session = self.news._session
        made = lambda: build(session.keys.shard(shard), session.view(shard))  # noqa: E731 - built anew after STALE
        try:
            reply = drive(ask_shard(session, shard, made), self.news._connector)
        except FilterFull:
            drive(grow(session, shard), self.news._connector)
            return self._in_shard(shard, build)
        return reply


def let_lapse(news, client, holder: bytes | None = None, seconds: float = 60) -> None:
    """Let all holders, or one, have been dead for so many seconds."""
    then = round((client.time()[0] - seconds) * 1000)
    for shard in range(news.config.shards):
        key = news._session.keys.shard(shard).holders
        for each in client.zrange(key, 0, -1):
            if holder in {None, each}:
                client.zadd(key, {each: then})


def in_flight(news, client) -> dict[str, tuple[bytes, int, int]]:
    """Return what is in flight: by its text the holder, failures and lapses; the keys fit together.

    Every entry has its member of ``in_flight`` and a holder in ``holders``, and there are no others.
    """
    found = {}
    for shard in range(news.config.shards):
        keys = news._session.keys.shard(shard)
        fields = client.hgetall(keys.leases)
        entries = {digest: entry for digest, entry in fields.items() if len(digest) == 16}
        assert set(client.zrange(keys.in_flight, 0, -1)) == {entry[:8] + digest for digest, entry in entries.items()}
        assert {entry[:8] for entry in entries.values()} <= set(client.zrange(keys.holders, 0, -1))
        apart = {digest[:16] for digest in fields if len(digest) == 17}
        assert apart == {digest for digest, entry in entries.items() if len(entry) == 12}
        for digest, entry in entries.items():
            kept = entry[12:] or fields[digest + b"+"]
            failures, lapses = (int.from_bytes(entry[at : at + 2], "little") for at in (8, 10))
            found[kept.decode().partition("|")[0]] = entry[:8], failures, lapses
    return found
