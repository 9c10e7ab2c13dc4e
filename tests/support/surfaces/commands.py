"""The command line as a surface: items are lines, and commands that only count answer with ``Counted``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from support import cli
from support.surfaces.refused import of_class
from urifilter_redis import Claim, DeadLetter, InFlight, Outstanding
from urifilter_redis.protocol.claims import new_holder

#: The fields of what sums up a command about lines, beside the filter's name, and the lines that there were.
_FIELDS = {
    "dedupe": {"new", "seen", "bad", "over_capacity"},
    "check": {"new", "seen", "bad"},
    "claim": {"holder", "claimed", "in_flight", "seen", "bad"},
    "commit": {"committed", "seen", "bad", "over_capacity"},
    "commit --reject": {"rejected", "not_in_flight", "bad", "over_capacity"},
    "release": {"released", "not_in_flight", "bad"},
    "reclaim": {"holder", "parked", "others", "due"},
    "forget": {"seen", "new", "bad"},
    "remove": {"seen", "new", "bad"},
}


class Counted:
    """The answers of a command that tells how many of its lines were so: equal to each list of as many True."""

    def __init__(self, lines: int, true: int) -> None:
        self._lines, self._true = lines, true

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and (len(other), sum(other)) == (self._lines, self._true)

    __hash__ = None

    def __repr__(self) -> str:
        return f"{self._true} of {self._lines}"


class OfCommands:
    """A filter by commands that name it and its server."""

    def __init__(self, url: str, name: str) -> None:
        self._redis, self._filter = ["--redis", url, "--json"], name

    def close(self) -> None:
        """Do nothing: each command is one of its own."""

    def run(self, command: str, items: Iterable[str] | None, *more: object, codes: Collection[int] = (0,)):
        """Run a command about lines; return its exit code, its lines, and the object that sums it up."""
        given = [*(items or ())]
        text = "".join(f"{item}\n" for item in given).encode()
        code, out, err = self._invoke(codes, command, "--filter", self._filter, *more, given=text)
        about = err or out if command in {"commit", "release", "forget", "remove"} else err
        told, _ = json.JSONDecoder().raw_decode(about)  # a notice may follow
        kind = f"{command} --reject" if "--reject" in more else command
        assert {*told} == _FIELDS[kind] | {"filter", "lines"}
        assert told["filter"] == self._filter
        assert items is None or told["lines"] == len(given)
        return code, out.splitlines(), told

    def _invoke(self, codes: Collection[int], command: str, *more: object, given: bytes = b"") -> tuple[int, str, str]:
        code, out, err = cli.invoke(command, *self._redis, *more, given=given)
        if code == 2:
            told = json.loads(err.decode().splitlines()[-1])
            raise of_class(told["kind"], told["error"])
        assert code in codes, (code, err)
        return code, out.decode(), err.decode()

    def counted(self, command: str, true: str, items: Iterable[str], *more: object) -> Counted:
        """Run a command that only counts; ``true`` is the field of the lines that were so."""
        _, _, told = self.run(command, items, *more)
        return Counted(told["lines"], told[true])

    # What the clients have, too

    def insert_many(self, items: Iterable[str]) -> list[bool]:
        items = [*items]
        _, printed, told = self.run("dedupe", items)
        assert (told["new"], told["seen"]) == (len(printed), len(items) - len(printed))
        return _marked(items, printed)

    def unique(self, items: Iterable[str]) -> list[str]:
        return self.run("dedupe", items)[1]

    def ages(self, items: Iterable[str], max_age: int | None = None) -> list[int]:
        items = [*items]
        narrowed = () if max_age is None else ("--max-age", max_age)
        code, printed, told = self.run("check", items, *narrowed, codes=(0, 1))
        found = [json.loads(line) for line in printed]
        assert [each["item"] for each in found] == items
        assert all(each["seen"] is (each["age"] != 0) for each in found)
        assert (code, told["seen"]) == (0 if told["seen"] else 1, sum(each["seen"] for each in found))
        return [each["age"] for each in found]

    def contains_many(self, items: Iterable[str], max_age: int | None = None) -> list[bool]:
        return [age != 0 for age in self.ages(items, max_age)]

    def forget(self, items: Iterable[str]) -> Counted:
        return self.counted("forget", "seen", items)

    def remove(self, items: Iterable[str]) -> Counted:
        return self.counted("remove", "seen", items)

    def commit(self, items: Iterable[str]) -> Counted:
        return self.counted("commit", "committed", items)

    def release(self, items: Iterable[str], *, delay: float = 0, failed: bool = False) -> Counted:
        return self.counted("release", "released", items, *_released(delay, failed=failed))

    def in_flight(self, limit: int = 100) -> list[InFlight]:
        _, out, _ = self._invoke((0,), "claims", self._filter, "--limit", limit)
        return [InFlight(**each) for each in json.loads(out)]

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        _, out, _ = self._invoke((0,), "dead-letters", self._filter, "--limit", limit)
        return [DeadLetter(**each) for each in json.loads(out)]

    def retry_dead_letters(self) -> int:
        _, out, _ = self._invoke((0,), "dead-letters", self._filter, "--retry")
        return json.loads(out)["offered"]

    def figures(self) -> dict[str, Any]:
        return json.loads(self._invoke((0,), "info", self._filter)[1])

    def unclosed(self, lease: float = 60) -> Holder:
        return Holder(self, lease)

    @contextlib.contextmanager
    def claims(self, lease: float = 60):
        yield self.unclosed(lease)


class Holder:
    """A holder that each command names."""

    def __init__(self, news: OfCommands, lease: float) -> None:
        self._news = news
        self._about = ("--holder", new_holder(), "--lease", f"{lease}s")

    def claim_many(self, items: Iterable[str]) -> list[bool]:
        items = [*items]
        _, printed, told = self._news.run("claim", items, *self._about)
        assert told["claimed"] == len(printed) == len(items) - told["in_flight"] - told["seen"]
        return _marked(items, printed)

    def claim(self, item: str) -> bool:
        return self.claim_many([item])[0]

    def unique(self, items: Iterable[str]) -> list[str]:
        return self._news.run("claim", items, *self._about)[1]

    def commit(self, items: Iterable[str]) -> Counted:
        return self._news.commit(items)

    def reject(self, items: Iterable[str], reason: str = "") -> Counted:
        return self._news.counted("commit", "rejected", items, *self._about, "--reject", reason)

    def release(self, items: Iterable[str], *, delay: float = 0, failed: bool = False) -> Counted:
        return self._news.counted("release", "released", items, *self._about, *_released(delay, failed=failed))

    def reclaim(self, limit: int = 100) -> list[Claim]:
        code, printed, told = self._news.run("reclaim", None, *self._about, "--limit", limit, codes=(0, 1, 3))
        found = [json.loads(line) for line in printed]
        assert (code == 0) is bool(found)
        assert told["lines"] == len(found) <= limit
        assert {each.pop("holder") for each in found} <= {self._about[1]}
        return [Claim(**each) for each in found]

    def outstanding(self) -> Outstanding:
        """Return what others have, once nothing is due."""
        code, _, told = self._news.run("reclaim", None, *self._about, codes=(1, 3))
        assert code == (3 if told["others"] else 1)
        return Outstanding(told["others"], told["due"])


def _released(delay: float, *, failed: bool) -> list[object]:
    return [*(["--failed"] if failed else []), *(["--delay", f"{delay}s"] if delay else [])]


def _marked(items: Sequence[str], printed: Sequence[str]) -> list[bool]:
    """Return which of some lines were printed; those come in the order of the lines, and the first of equal ones."""
    left = [*printed]
    marks = [bool(left) and item == left[0] and bool(left.pop(0)) for item in items]
    assert not left, left
    return marks
