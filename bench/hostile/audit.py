"""After the run, with nothing broken any more: everything is asked about once more, and claims are handed on."""

from __future__ import annotations

from pathlib import Path

from bench.hostile.actors import making
from bench.hostile.actors.blocking import PLAIN, Opened, ask
from bench.hostile.actors.claiming import NAME, Crawler, holder_of
from bench.hostile.actors.part import Part
from bench.hostile.filters import ARCHIVED, NOBODYS, uri
from bench.hostile.journal import calls_of, lines_of

#: Items of a call, and items that nobody inserted of which the filter that measures its error rate is asked.
BATCH, PROBES = 500, 20_000


class _Audit(Part):
    """A part that goes on although the run is over."""

    def goes_on(self) -> bool:
        return True


def audit(settings: dict[str, object], journals: list[Path]) -> Path:
    """Ask about all items that anybody asked about; return the journal of that."""
    asked: dict[str, set[int]] = {}
    for path in journals:
        for call in calls_of(lines_of(path)).values():
            asked.setdefault(call.filter, set()).update(call.items)
    with _Audit(**settings) as part:  # type: ignore[arg-type]
        opened = making.run(part)
        _claims(part, opened, sorted(asked.get(NAME, ())))
        for name in PLAIN:
            numbers = sorted(asked.get(name, ()))
            for how in ("insert", "contains"):
                _ask_all(part, opened, name, how, numbers)
        _measure(part, opened, len(asked.get("rate", ())))
    return Path(part.journal)


def _ask_all(part: Part, opened: Opened, name: str, how: str, numbers: list[int]) -> None:
    for start in range(0, len(numbers), BATCH):
        ask(part, opened, name, how, numbers[start : start + BATCH], audit=True)


def _claims(part: Part, opened: Opened, numbers: list[int]) -> None:
    """Reclaim what dead holders had, make it final, and then claim everything."""
    news = opened.get(NAME)
    with holder_of(news) as mine:
        crawler = Crawler(part, opened, mine, audit=True)
        crawler.drain()
        for start in range(0, len(numbers), BATCH):
            crawler.commit(crawler.claim(numbers[start : start + BATCH]))


def _measure(part: Part, opened: Opened, inserted: int) -> None:
    """Fill the filter that measures its error rate to its capacity, and ask it about items that are nobody's."""
    left = max(0, ARCHIVED["rate"]["capacity"] - inserted)
    opened.get("rate").insert_many(uri(2 * NOBODYS + number) for number in range(left))
    _ask_all(part, opened, "rate", "contains", list(range(NOBODYS, NOBODYS + PROBES)))
