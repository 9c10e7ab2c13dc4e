"""The settings of a Scrapy project that begin with ``URIFILTER_``."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import load_object
from w3lib.url import canonicalize_url

from urifilter_redis.bloom.retention import period_of, seconds_of
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import ConfigMismatch
from urifilter_redis.protocol.claims import PARKED, check_delay, check_lease
from urifilter_redis.protocol.config import Config, Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: The key of a request's ``meta``: a spider's word; or the add-on's mark, while it waits in the project's scheduler.
META = "urifilter"

#: The capacity of a filter that is made without ``URIFILTER_CAPACITY``: 29 MB in Redis.
CAPACITY = 10_000_000

#: What a crawl does while Redis is away.
ON_ERROR = ("pause", "pass", "close")

#: Slices of a filter that forgets after ``URIFILTER_AGAIN_AFTER``. An address is new again after 10 to 11 periods.
_SLICES = 11

#: The settings, without ``URIFILTER_``, that say where the filter is, and their keyword arguments of ``open``.
_WHERE = {"REDIS_URL": "redis", "ARCHIVE": "archive", "PREFIX": "prefix", "ROTATE": "rotate"}

#: The settings that fix the filter, by the kinds of their values.
_COUNTS = ("capacity", "slices", "period_capacity", "shards")
_WORDS = ("layout", "retention", "period", "write", "expire_after", "normalize", "hash", "seed")

#: The settings of a crawl that neither say where the filter is nor fix it, and those of claims, without ``URIFILTER_``.
_OTHERS = (
    "AGAIN_AFTER", "CLAIM", "CLAIM_DELAY", "CLAIM_FAILURES", "CLAIM_LAPSES", "CLEAR", "CONNECTIONS", "ERROR_RATE",
    "FAILED_CODES", "KEY", "LARGE", "LEASE", "NAME", "NEAR_CACHE", "NEAR_CACHE_SECONDS", "ON_ERROR", "RULES",
    "SCHEDULER", "SHARE", "TIMEOUT",
)  # fmt: skip

#: What is wrong with a filter that normalises its items, if these are fingerprints.
_NO_EFFECT = "has no effect on fingerprints: set URIFILTER_KEY = 'url', too, or leave it out"

#: The settings of failures after which a page is rejected, and of lapses after which it is parked: 3 by default.
_TRIES = ("claim_failures", "claim_lapses")

#: The settings of claims that are whole numbers above 0.
_WHOLE = (*_TRIES, "share")

#: Seconds after which a page that failed for the first time is tried again.
_DELAY = 30.0

#: Seconds of the longest delay: below the time for which pages are parked, so that spiders can tell one from the other.
_LONGEST_DELAY = PARKED / 2


@dataclass(frozen=True)
class Claiming:
    """The settings of a crawl with claims.

    Attributes:
        lease: seconds for which pages stay in flight without a sign of life; None: the filter's default.
        failures: failures after which a page is rejected.
        lapses: lapses after which a page is parked.
        delay: seconds before the second try of a page; doubled for each later one.
        share: the most pages that wait for their download in a process; None: any number.
    """

    lease: float | None
    failures: int
    lapses: int
    delay: float
    share: int | None

    def delay_after(self, failures: int) -> float:
        """Return the seconds before the next try of a page that failed so often."""
        return min(self.delay * 2.0 ** (failures - 1), _LONGEST_DELAY)

    @property
    def longest_delay(self) -> float:
        """The longest delay before a try."""
        return self.delay_after(max(1, self.failures - 1))


@dataclass(frozen=True)
class Options:
    """The settings of a crawl.

    Attributes:
        name: the filter's name.
        where: the keyword arguments of ``open``: the server, the archive and the time to wait for them.
        filter: the keyword arguments of ``create`` that fix the filter; empty: an existing filter is taken as it is.
        to_make: those for a filter that is made.
        cache: the keyword arguments of the near cache.
        key: makes the item of a request; None: its fingerprint as hex text is the item.
        items: the name of ``key``, which a filter that is made remembers: ``fingerprint``, ``url`` or ``function``.
        on_error: ``pause``, ``pass`` or ``close``.
        clear: whether ``clear()`` empties the filter.
        claiming: the settings of claims; None: without.
        failed: the HTTP statuses of a download that failed.
    """

    name: str
    where: dict[str, Any]
    filter: dict[str, Any]
    to_make: dict[str, Any]
    cache: dict[str, Any]
    key: Callable[[Request], str | bytes] | None
    items: str
    on_error: str
    clear: bool
    claiming: Claiming | None
    failed: frozenset[int]

    def named(self, error: ValueError) -> str:
        """Return the settings, as far as they are set, that an error is about as the filter is opened."""
        names = {value: name for name, value in _WHERE.items()}
        given = [each for each in (*self.where, *self.cache) if each != "timeouts"]
        about = [each for each in given if each != "redis" and re.search(rf"\b{each}\b", str(error))]
        about = about or [each for each in given if each == "redis"] or given
        return ", ".join(f"URIFILTER_{names.get(each, each.upper())}" for each in about)

    @classmethod
    def of(cls, crawler: Crawler) -> Options:
        """Return the options of a crawl; a ValueError names a setting that is not possible."""
        settings = crawler.settings
        _check_names(settings)
        on_error, key = settings.get("URIFILTER_ON_ERROR", "pause"), _key(settings.get("URIFILTER_KEY", "fingerprint"))
        if on_error not in ON_ERROR:
            raise ValueError(f"URIFILTER_ON_ERROR is one of {', '.join(ON_ERROR)} and not {on_error!r}")
        claims = _flag(settings, "claim")
        if not claims and settings.get("URIFILTER_SHARE") is not None:
            raise ValueError("URIFILTER_SHARE needs URIFILTER_CLAIM: only claimed pages can go to other processes")
        made, items = _filter(settings), "fingerprint" if key is None else "url" if key is url_item else "function"
        if key is None and made.get("normalize", "none") != "none":
            raise ValueError(f"URIFILTER_NORMALIZE {_NO_EFFECT}")
        return cls(
            name=settings.get("URIFILTER_NAME") or settings["BOT_NAME"],
            where=_where(settings),
            filter=made,
            to_make={"large": _flag(settings, "large"), "items": items, "capacity": CAPACITY} | made,
            cache={"near_cache": 100_000} | _numbers(settings, near_cache=int, near_cache_seconds=float),
            key=key,
            items=items,
            on_error=on_error,
            clear=_flag(settings, "clear"),
            claiming=_claiming(settings) if claims else None,
            failed=_failed(settings),
        )

    def check(self, config: Config) -> None:
        """Refuse a filter of other items, or one that normalises addresses where the items are fingerprints."""
        if config.items not in {None, self.items}:
            raise ConfigMismatch(
                f"{self.name}: this filter's items were made by a URIFILTER_KEY that is {config.items!r}, and not "
                f"{self.items!r}: set that, or another URIFILTER_NAME",
                {"items": (self.items, config.items)},
            )
        if self.key is None and config.normalize != "none":
            raise ConfigMismatch(f"{self.name}: this filter's normalize = {config.normalize!r} {_NO_EFFECT}")


def _check_names(settings: BaseSettings) -> None:
    """Refuse a setting that means nothing, with the nearest name: a crawl without what was meant would begin."""
    known = sorted(each.upper() for each in (*_WHERE, *_COUNTS, *_WORDS, *_OTHERS))
    for name in settings:
        given = str(name).removeprefix("URIFILTER_")
        if given != name and given not in known:
            near = difflib.get_close_matches(given, known, 1)
            meant = f"URIFILTER_{near[0]} is meant, perhaps" if near else f"after URIFILTER_ comes {', '.join(known)}"
            raise ValueError(f"{name} is no setting: {meant}")


@contextlib.contextmanager
def _naming(names: Iterable[str]) -> Iterator[None]:
    """Name settings, given without ``URIFILTER_``, in the message of a ValueError; of several those it is about."""
    try:
        yield
    except ValueError as error:
        names = list(names)
        about = [each for each in names if re.search(rf"\b{each}\b", str(error))] or names
        raise ValueError(f"{', '.join(f'URIFILTER_{each.upper()}' for each in about)}: {error}") from None


def _flag(settings: BaseSettings, name: str) -> bool:
    with _naming([name]):
        return settings.getbool(f"URIFILTER_{name.upper()}")


def _failed(settings: BaseSettings) -> frozenset[int]:
    with _naming(["failed_codes"]):
        return frozenset(map(int, settings.getlist("URIFILTER_FAILED_CODES", settings.getlist("RETRY_HTTP_CODES"))))


def _where(settings: BaseSettings) -> dict[str, Any]:
    given = {name: settings.get(f"URIFILTER_{setting}") for setting, name in _WHERE.items()}
    where = {name: value for name, value in given.items() if value is not None} | _numbers(settings, connections=int)
    timeout = _numbers(settings, timeout=float).get("timeout")
    if timeout is not None:
        if not 0 < timeout < math.inf:
            raise ValueError(f"URIFILTER_TIMEOUT is a number of seconds above 0 and not {timeout}")
        where["timeouts"] = Timeouts(total=timeout)
    return where


def _numbers(settings: BaseSettings, **kinds: type[int | float]) -> dict[str, Any]:
    """Return the settings of these names and kinds, as far as they are set."""
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = settings.get(f"URIFILTER_{name.upper()}")
        try:
            found |= {} if value is None else {name: kind(value)}
        except (TypeError, ValueError):
            wanted = "whole number" if kind is int else "number"
            raise ValueError(f"URIFILTER_{name.upper()} is a {wanted} and not {value!r}") from None
    return found


def _filter(settings: BaseSettings) -> dict[str, Any]:
    words = {name: settings.get(f"URIFILTER_{name.upper()}") for name in _WORDS}
    made = _numbers(settings, **dict.fromkeys(_COUNTS, int), error_rate=float)
    made |= {name: value for name, value in words.items() if value is not None}
    if (rules := settings.get("URIFILTER_RULES")) is not None:
        made["rules"] = Path(rules) if isinstance(rules, str) else rules
    if isinstance(made.get("seed"), str) and made.get("hash", "mmh3") == "mmh3":
        with _naming(["seed"]):
            made["seed"] = int(made["seed"])
    again = settings.get("URIFILTER_AGAIN_AFTER")
    if again is not None:
        both = {"retention", "slices", "period"} & made.keys()
        if both:
            named = ", ".join(f"URIFILTER_{each.upper()}" for each in sorted(both))
            raise ValueError(f"URIFILTER_AGAIN_AFTER sets the retention: leave out {named}")
        with _naming(["again_after"]):
            made |= {
                "retention": "rolling",
                "slices": _SLICES,
                "period": -(-seconds_of(period_of(again)) // (_SLICES - 1)),
            }
    if made:
        given = [each for each in made if settings.get(f"URIFILTER_{each.upper()}") is not None]
        with _naming(given or ["again_after"]):
            Settings(**{"capacity": CAPACITY} | made)  # what is not possible is refused before the crawl begins
    return made


def _claiming(settings: BaseSettings) -> Claiming:
    scheduler = load_object(settings.get("URIFILTER_SCHEDULER") or settings["SCHEDULER"])
    if settings.get("JOBDIR") or Scheduler not in scheduler.__mro__:  # issubclass() takes every scheduler for one
        raise ValueError(
            "URIFILTER_CLAIM needs Scrapy's own scheduler without JOBDIR, because what a stopped spider has in "
            "hand goes back to the filter: remove SCHEDULER and JOBDIR, or URIFILTER_CLAIM"
        )
    if _flag(settings, "clear"):
        raise ValueError(
            "URIFILTER_CLEAR would drop the pages that others have in flight: remove it, or URIFILTER_CLAIM"
        )
    given: dict[str, Any] = {"claim_delay": _DELAY} | dict.fromkeys(_TRIES, 3)
    given |= _numbers(settings, lease=float, claim_delay=float, **dict.fromkeys(_WHOLE, int))
    for name in _WHOLE:
        if given.get(name, 1) < 1:
            raise ValueError(f"URIFILTER_{name.upper()} is a whole number above 0 and not {given[name]}")
    with _naming(["lease"]):
        lease = check_lease(given["lease"]) if "lease" in given else None
    with _naming(["claim_delay"]):
        delay = check_delay(given["claim_delay"], PARKED)
    return Claiming(lease, given["claim_failures"], given["claim_lapses"], delay, given.get("share"))


def url_item(request: Request, *, normalized: bool = False) -> str:
    """Return a request's canonical address; behind the method, and before the body's digest, if it is no plain GET.

    ``normalized`` says that the filter normalises addresses. It is asked about that of a plain GET as it is, because
    ``canonicalize_url`` would make more of it, and less alike what other tools ask about. All other items begin with
    the method: a filter would take one that begins with the address for a URL, and the digest for a part of its last
    parameter, which it may drop.
    """
    is_plain = request.method == "GET" and not request.body
    if normalized and is_plain:
        return request.url
    words = [] if is_plain else [request.method]
    words.append(canonicalize_url(request.url))
    if request.body:
        words.append(hashlib.sha256(request.body).hexdigest())
    return " ".join(words)


def _key(setting: Any) -> Callable[[Request], str | bytes] | None:
    if setting == "fingerprint":
        return None
    if setting == "url":
        return url_item
    key = load_object(setting) if isinstance(setting, str) and "." in setting else setting
    if not callable(key):
        raise ValueError(  # noqa: TRY004 - as for every other setting
            f"URIFILTER_KEY is fingerprint, url, or a function of a request, and not {setting!r}"
        )
    return key  # type: ignore[no-any-return]
