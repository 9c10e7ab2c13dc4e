"""The HTTP service as a surface: bare requests in JSON, and each answer checked against itself."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from support.service import Answer, Raw, request
from support.surfaces.refused import of_code
from urifilter_redis import Claim, DeadLetter, InFlight, Outstanding
from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.protocol.claims import new_holder

#: The fields of each command's answer, beside the filter's name.
_FIELDS = {
    "insert": {"ages", "new", "total", "unique"},
    "contains": {"ages", "total", "seen"},
    "claim": {"ages", "claimed", "counts", "total", "unique"},
    "commit": {"ages", "committed", "total", "unique"},
    **{command: {"was_there", "total", "seen"} for command in ("forget", "remove", "release")},
}

#: Attempts at one request; it is repeated under its key when its connection ends without an answer.
ATTEMPTS = 5


class OfHttp:
    """A filter by requests to a port, over one connection for as long as that is kept."""

    def __init__(self, port: int, name: str) -> None:
        self._port, self._path = port, f"/v1/filters/{name}"
        self._keys = (f"{secrets.token_hex(8)}/0/{number}" for number in itertools.count(1))
        self._connection: Raw | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def ask(self, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
        """Ask, and return the answer; it is a refusal if the service refuses."""
        content = None if body is None else json.dumps(body).encode()
        said = request(method, self._path + path, content, Idempotency_Key=next(self._keys) if content else None)
        answer = self._answer(said)
        told = answer.json()
        if answer.status != 200:
            assert answer.status == ERROR_CODES[told["error_code"]].status
            raise of_code(told["error_code"], told.get("indices", []), told["error"])
        assert told.pop("filter") == self._path.rpartition("/")[2]
        return told

    def _answer(self, said: bytes) -> Answer:
        for _ in range(ATTEMPTS):
            self._connection = self._connection or Raw(self._port)
            answer = self._connection.ask(said)
            if answer is not None:
                return answer
            self.close()
        raise AssertionError(f"no answer in {ATTEMPTS} attempts")

    def post(self, command: str, items: Iterable[Any], **more: Any) -> dict[str, Any]:
        """Send items, and check that the answer is for these and counts them right."""
        items = [*items]
        told = self.ask("POST", f"/{command}", {"items": items} | more)
        assert {*told} == _FIELDS[command]
        answers = told.get("ages", told.get("was_there"))
        assert told["total"] == len(answers) == len(items)
        for field in {"new", "claimed", "committed"} & told.keys():
            assert told[field] == [age == 0 for age in answers]
        if "unique" in told:
            assert told["unique"] == answers.count(0)
        if "seen" in told:
            assert told["seen"] == sum(map(bool, answers))
        return told

    # What the clients have, too

    def insert_ages(self, items: Iterable[Any], max_age: int | None = None) -> list[int]:
        return self.post("insert", items, max_age=max_age)["ages"]

    def insert_many(self, items: Iterable[Any], max_age: int | None = None) -> list[bool]:
        return self.post("insert", items, max_age=max_age)["new"]

    def unique(self, items: Iterable[Any]) -> list[Any]:
        items = [*items]
        return [item for item, new in zip(items, self.insert_many(items), strict=True) if new]

    def ages(self, items: Iterable[Any], max_age: int | None = None) -> list[int]:
        return self.post("contains", items, max_age=max_age)["ages"]

    def contains_many(self, items: Iterable[Any], max_age: int | None = None) -> list[bool]:
        return [age != 0 for age in self.ages(items, max_age)]

    def forget(self, items: Iterable[Any]) -> list[bool]:
        return self.post("forget", items)["was_there"]

    def remove(self, items: Iterable[Any]) -> list[bool]:
        return self.post("remove", items)["was_there"]

    def commit(self, items: Iterable[Any], **more: Any) -> list[bool]:
        return self.post("commit", **_with_bytes(items), **more)["committed"]

    def release(self, items: Iterable[Any], **more: Any) -> list[bool]:
        return self.post("release", **_with_bytes(items), **more)["was_there"]

    def in_flight(self, limit: int = 100) -> list[InFlight]:
        return [_read(InFlight, each) for each in self._listed("in_flight", limit)]

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        return [_read(DeadLetter, each) for each in self._listed("dead_letters", limit)]

    def retry_dead_letters(self, items: Iterable[Any] | None = None) -> int:
        told = self.ask("POST", "/retry_dead_letters", {} if items is None else _with_bytes(items))
        assert told["total"] == len(told["was_there"])
        assert items is None or told["offered"] == sum(told["was_there"])
        return told["offered"]

    def _listed(self, name: str, limit: int) -> list[dict[str, Any]]:
        """Return at most so many entries of a list, of as many pages as it takes."""
        found: list[dict[str, Any]] = []
        after = ""
        while len(found) < limit:
            wanted = min(limit - len(found), 100)
            told = self.ask("GET", f"/{name}?limit={wanted}{after}")
            found += told[name]
            if "next" not in told:
                break
            assert len(told[name]) == wanted
            after = f"&after={told['next']}"
        return found

    def figures(self) -> dict[str, Any]:
        return self.ask("GET")["info"]

    def unclosed(self, lease: float = 60) -> Holder:
        return Holder(self, lease)

    @contextlib.contextmanager
    def claims(self, lease: float = 60):
        yield self.unclosed(lease)


class Holder:
    """A holder that names itself in each request; ``held`` is what it was told that it has."""

    def __init__(self, news: OfHttp, lease: float) -> None:
        self._news, self._holder, self._lease = news, new_holder(), lease
        self._about = {"holder": self._holder, "lease": lease}
        self._claimed: dict[str, Claim] = {}

    def claim_ages(self, items: Iterable[Any], payload: Callable[[Any], Any] | None = None) -> list[int]:
        items = [*items]
        more = self._about | ({} if payload is None else {"payloads": [payload(item) for item in items]})
        told = self._news.post("claim", items, **more)
        counts = {each.pop("index"): each for each in told["counts"]}
        assert [*counts] == sorted(counts)
        for index, (item, age) in enumerate(zip(items, told["ages"], strict=True)):
            assert age == 0 or index not in counts
            if age == 0:
                kept = item if payload is None else payload(item)
                self._claimed[json.dumps(item)] = Claim(item, kept, **counts.get(index, {}))
        return told["ages"]

    def claim_many(self, items: Iterable[Any], payload: Callable[[Any], Any] | None = None) -> list[bool]:
        return [age == 0 for age in self.claim_ages(items, payload)]

    def claim(self, item: Any, payload: Any = ...) -> bool:
        return self.claim_many([item], None if payload is ... else lambda _: payload)[0]

    def unique(self, items: Iterable[Any]) -> list[Any]:
        items = [*items]
        return [item for item, mine in zip(items, self.claim_many(items), strict=True) if mine]

    def claimed(self, items: Iterable[Any]) -> list[Claim]:
        """Return what the claims of items have told, of those that were claimed."""
        return [self._claimed[json.dumps(item)] for item in items if json.dumps(item) in self._claimed]

    def commit(self, items: Iterable[Any]) -> list[bool]:
        return self._news.commit(items, **self._about)

    def reject(self, items: Iterable[Any], reason: str = "") -> list[bool]:
        return self._news.commit(items, reason=reason, **self._about)

    def release(self, items: Iterable[Any], *, delay: float = 0, failed: bool = False) -> list[bool]:
        return self._news.release(items, delay=delay, failed=failed, **self._about)

    def reclaim(self, limit: int = 100) -> list[Claim]:
        told = self._news.ask("POST", "/reclaim", self._about | {"limit": limit})
        assert told["total"] == len(told["claims"]) <= limit
        return [_read(Claim, each) for each in told["claims"]]

    def outstanding(self) -> Outstanding:
        told = self._news.ask("POST", "/reclaim", self._about | {"limit": 0})
        assert told["claims"] == []
        return Outstanding(**told["outstanding"])


def _with_bytes(items: Iterable[Any]) -> dict[str, Any]:
    """Return items as a request has them: bytes as base64, whose positions may come in any order."""
    items = [*items]
    places = [place for place, item in enumerate(items) if isinstance(item, bytes)]
    if not places:
        return {"items": items}
    plain = [base64.b64encode(item).decode() if isinstance(item, bytes) else item for item in items]
    return {"items": plain, "base64": places[::-1]}


def _read(kind: type, entry: dict[str, Any]) -> Any:
    """Return an entry of an answer as the library's object; text in base64 is bytes."""
    fields = {name: value for name, value in entry.items() if not name.endswith("_base64")}
    coded: Sequence[str] = [name for name in entry if name.endswith("_base64")]
    return kind(**fields, **{name.removesuffix("_base64"): base64.b64decode(entry[name]) for name in coded})
