"""``plan``, ``digest`` and ``fingerprint``: the commands that work without a filter."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from urifilter_redis import UriFilter
from urifilter_redis.bloom import costs
from urifilter_redis.bloom.digest import HASHES, make_digester, new_seed, shard_of
from urifilter_redis.bloom.normalize import NORMALIZATIONS, explain
from urifilter_redis.bloom.retention import (
    TIMED,
    Shape,
    error_rate_at_capacity,
    live_slices,
    memory,
    placed,
    seconds_of,
    shards_needed,
    size_first,
)
from urifilter_redis.bloom.rules import canonical_rules
from urifilter_redis.bloom.sizing import (
    ANY_SHARDS,
    LAYOUTS,
    REDISBLOOM,
    SHARDS_LIMIT,
    Sizing,
    segment_limit,
    size,
    size_text,
)
from urifilter_redis.errors import UriFilterError
from urifilter_redis.extras import how_to_get
from urifilter_redis.protocol.calls import items_a_call
from urifilter_redis.protocol.config import Config, Settings, allows_module
from urifilter_redis.protocol.routing import shards_by_master

from .common import (
    Shared,
    columns,
    complain,
    count,
    counted,
    filter_name,
    given_of,
    json_item,
    pass_shared,
    print_json,
    shared,
)
from .filters import rules_option, size_options, time_options
from .line_commands import Input, Summary, form_options, windows
from .records import PLAIN
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .records import Form

#: Most filters among which ``plan --nodes`` divides the items.
FILTERS = 100

#: Shards lie evenly if, when the fullest master is busy, all masters together are busy for this share of their time.
EVEN = 0.8

_TIMES = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))


@dataclass(frozen=True)
class Cluster:
    """A Redis Cluster and its clients, as ``plan`` gets them.

    Attributes:
        nodes: the number of masters, which share the slots evenly.
        layout: the filter's layout.
        name: the filter's name, which decides the slots of its shards.
        batch: the number of items that a client asks about at once.
    """

    nodes: int
    layout: str = "blocked"
    name: str = "any"
    batch: int = 1000


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster; the command gets them as ``cluster``, None without a cluster."""

    @click.option("--nodes", type=int, metavar="N", help="Plan for so many masters of a Redis Cluster.")
    @click.option("--layout", type=click.Choice(LAYOUTS), help="With --nodes: the layout; blocked by default.")
    @click.option("--name", type=filter_name, help="With --nodes: the filter's name, on which its slots depend.")
    @click.option(
        "--batch",
        type=count,
        metavar="COUNT",
        help="With --nodes: items that a client asks about at once; 1000 by default.",
    )
    @functools.wraps(command)
    def with_cluster(*arguments: Any, **options: Any) -> None:
        values = {name: options.pop(name) for name in ("nodes", "layout", "name", "batch")}
        given = {name: value for name, value in values.items() if value is not None}
        if given and "nodes" not in given:
            raise click.UsageError(f"--{next(iter(given))} needs --nodes")
        command(*arguments, cluster=Cluster(**given) if given else None, **options)

    return with_cluster


def _print_nodes(settings: dict[str, Any], cluster: Cluster, *, as_json: bool) -> None:
    plan = ClusterPlan(*_divide(settings | {"layout": cluster.layout}), cluster)
    if as_json:
        print_json(plan.values())
        return
    click.echo(plan.title())
    click.echo()
    columns(("a master", "least", "most", "in all"), plan.shares())
    click.echo()
    columns(("cost", "a shard", "a filter"), plan.costs())
    for note in plan.notes():
        click.echo(f"\n{note}")


def _divide(settings: dict[str, Any]) -> tuple[Settings, int]:
    """Divide the items among as few filters as can have them; return the settings of each filter, and their number."""
    for filters in range(1, FILTERS + 1):
        parts = {part: settings[part] for part in ("capacity", "period_capacity") if settings[part]}
        each = settings | {part: -(-number // filters) for part, number in parts.items()}
        try:
            return Settings(**each), filters
        except ValueError:
            if not _too_many(each):
                raise
    text = f"{settings['capacity']:,} items need more than {FILTERS} filters of {SHARDS_LIMIT:,} bitmaps"
    raise ValueError(f"{text}: take a lower capacity or a higher error_rate")


def _too_many(settings: dict[str, Any]) -> bool:
    """Whether the number of items is what makes the settings impossible."""
    try:
        return shards_needed(Shape(**settings)) is None
    except ValueError:
        return False


class ClusterPlan:
    """A filter, or several equal ones, on the masters of a Redis Cluster.

    Attributes:
        settings: the settings of each filter.
        names: the names of the filters; several have the cluster's name with a number behind it.
        nodes: the number of masters.
        sizing: the geometry of the first slice of each filter.
        masters: the number of shards that each master has.
    """

    def __init__(self, settings: Settings, filters: int, cluster: Cluster) -> None:
        if cluster.batch < 1:
            raise ValueError(f"a client asks about 1 item or more at once, and not {cluster.batch:,}")
        settings = placed(settings, cluster.nodes)
        self.settings, self.nodes = settings, cluster.nodes
        self.names = [cluster.name]
        if filters > 1:
            self.names = [f"{cluster.name}-{number}" for number in range(1, filters + 1)]
        self.sizing = size_first(settings)
        self.masters = shards_by_master(self.names, self.sizing.shards, self.nodes)
        live = live_slices(settings)
        self._written = self.sizing.slice().whole.size * live
        self._asked = costs.insert_cost(settings, cluster.batch, items_a_call(Config.new(settings), live))
        self._turned = costs.rotation_cost(settings)

    def title(self) -> str:
        """Return the line above the tables."""
        settings, sizing = self.settings, self.sizing
        names = f"{self.names[0]}: "
        if len(self.names) > 1:
            names = f"{len(self.names)} filters {self.names[0]} to {self.names[-1]}, each for "
        kind = f"{settings.capacity:,} items at {settings.error_rate:g}, {settings.layout}, {settings.retention}"
        kind += " (its first slice)" if settings.retention == "growing" else ""
        row = sizing.slice().segments
        shards = counted(sizing.shards, "shard") + (f" of {row} bitmaps" if row > 1 else ", bitmaps")
        shards += f" of {size_text(sizing.segment_bytes)}"
        return f"{names}{kind}: {shards}, on {counted(self.nodes, 'master')}"

    def shares(self) -> Iterator[tuple[object, ...]]:
        """Yield the rows about masters: the least and the most that one has, and all together."""
        values = self._shares()
        yield "shards", *(f"{each:,}" for each in values["shards"].values())
        yield "memory", *map(size_text, values["memory"].values())
        if "closed" in values:
            yield "closed slices, in Redis", *map(size_text, values["closed"].values())
        for key in ("new", "seen"):
            yield f"{key} items a second", *(f"{_rounded(each):,}" for each in values[key].values())

    def costs(self) -> Iterator[tuple[object, ...]]:
        """Yield the rows about rotations and checkpoints."""
        if turned := self._turned:
            what = "the next slice" if self.settings.retention == "growing" else "a rotation"
            yield f"longest pause of {what}", _time_text(turned.pause), ""
            yield f"time of {what}", _time_text(turned.shard), _time_text(turned.filter)
        sizes = (self._written, self._written * self.sizing.shards)
        yield "size of a full checkpoint", *map(size_text, sizes)
        yield "time of a full checkpoint", *(_time_text(costs.checkpoint_seconds(size)) for size in sizes)

    def values(self) -> dict[str, Any]:
        """Return what ``--json`` prints; times are seconds, sizes bytes."""
        sizes = {"shard": self._written, "filter": self._written * self.sizing.shards}
        return {
            "filters": self.names,
            **_geometry(self.settings, self.sizing),
            "nodes": self.nodes,
            "a_node": self._shares(),
            "batch": self._asked.items,
            "calls": self._asked.calls,
            "microseconds": {"new": self._asked.new, "seen": self._asked.seen},
            "rotation": asdict(self._turned) if self._turned else None,
            "checkpoint": {
                "bytes": sizes,
                "seconds": {part: costs.checkpoint_seconds(size) for part, size in sizes.items()},
            },
            "measured": {"command": costs.COMMAND, "machine": costs.MACHINE},
            "notes": list(self.notes()),
        }

    def notes(self) -> Iterator[str]:
        """Yield what the tables do not say."""
        filters = len(self.names)
        if filters > 1:
            size = f"{round(segment_limit(self.settings.layout) / 2**20)} MiB"
            text = f"One filter ends at {SHARDS_LIMIT:,} bitmaps of {size}, so these items take {filters} filters"
            yield f"{text}. Divide by host: a hash of the host, modulo {filters}, chooses the filter of a URI."
        yield from self._evenness()
        yield from self._slowness()
        calls = f"{self._asked.calls:,.3g}" if self._asked.calls < 1000 else f"{self._asked.calls:,.0f}"  # noqa: PLR2004
        text = f"Items a second are for one core a master, and for clients that ask about {self._asked.items:,} at once"
        yield f"{text}, in {calls} calls (--batch). Measured by `{costs.COMMAND}`: {costs.MACHINE}."

    def _evenness(self) -> Iterator[str]:
        """Yield a line if some masters have much less to do than others, or nothing."""
        every, most, unused = sum(self.masters), max(self.masters), self.masters.count(0)
        if _even(self.masters):
            return
        if every < self.nodes:
            text = f"{counted(every, 'shard')} on {counted(self.nodes - unused, 'master')}, and none on {unused:,}"
            text = f"{text}: a shard is on one master, so more masters do not help."
        else:
            text = f"The fullest master has {most} shards, the mean is {every / self.nodes:.3g}, and the fullest sets"
            text = f"{text} the pace: {self.nodes} masters do {every / most:.3g} times the work of one."
        shards = self._more_even()
        yield f"{text} --shards {shards} lie evenly, and cost more calls." if shards else text

    def _more_even(self) -> int | None:
        """Return a higher number of shards that lie evenly; None if there is none."""
        possible = {*range(self.nodes, ANY_SHARDS + 1, self.nodes), *(2**n for n in range(SHARDS_LIMIT.bit_length()))}
        higher = sorted(each for each in possible if each > max(self.sizing.shards, self.nodes - 1))
        return next((each for each in higher if _even(shards_by_master(self.names, each, self.nodes))), None)

    def _slowness(self) -> Iterator[str]:
        if self._turned and self.settings.retention in TIMED:
            period = seconds_of(str(self.settings.period))
            if 2 * self._turned.filter > period:
                text = f"A rotation takes {_time_text(self._turned.filter)}, over half of the period"
                yield f"{text}: take longer periods, or several filters, which rotate side by side."

    def _shares(self) -> dict[str, dict[str, float]]:
        """Return the least and the most of a master, and all, of shards, memory and items a second."""
        least, most, every = min(self.masters), max(self.masters), sum(self.masters)
        shards = {"least": least, "most": most, "all": every}
        found: dict[str, dict[str, float]] = {"shards": dict(shards)}
        a_shard = memory(self.settings) // self.sizing.shards
        found["memory"] = {part: number * a_shard for part, number in shards.items()}
        if closed := costs.closed_bytes(self.settings):
            found["closed"] = {part: number * closed for part, number in shards.items()}
        # Shards get equal shares of the items. So when the fullest master is busy, the others are in proportion.
        for key, microseconds in (("new", self._asked.new), ("seen", self._asked.seen)):
            found[key] = {part: 1e6 / microseconds * number / most for part, number in shards.items()}
        return found


def _geometry(settings: Settings, sizing: Sizing) -> dict[str, Any]:
    """Return what ``--json`` prints of a filter, on one server and on several."""
    return {
        "layout": settings.layout,
        "retention": settings.retention,
        "capacity": settings.capacity,
        "error_rate": settings.error_rate,
        "shards": sizing.shards,
        "segments": sizing.segments,
        "segment_bytes": sizing.segment_bytes,
        "live_slices": live_slices(settings),
    }


def _even(masters: Sequence[int]) -> bool:
    """Whether masters with so many shards each are used evenly when the fullest is busy."""
    return sum(masters) >= EVEN * len(masters) * max(masters)


def _rounded(number: float) -> int:
    """Return a number with three significant digits."""
    return int(round(number, 2 - math.floor(math.log10(number)))) if number >= 1 else 0


def _time_text(seconds: float) -> str:
    """Return a time in its largest unit."""
    size, unit = next((each for each in _TIMES if seconds >= each[0]), _TIMES[-1])
    return f"{seconds / size:.3g} {unit}"


#: The error rates that ``plan`` shows beside the given one.
SHOWN = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@click.command()
@size_options(required=True)
@time_options
@cluster_options
@shared
@pass_shared
def plan(options: Shared, /, capacity: int, error_rate: float, cluster: Cluster | None, **time: Any) -> None:
    """Show the cost of a filter, for every layout and several error rates.

    With --nodes show the cost of this filter on the masters of a Redis Cluster: shards, memory, items a second,
    rotations and checkpoints, from measured figures.

    "Wrongly skipped" is the number of new pages that are answered "seen" until the filter is at capacity; with a
    retention that expires, the most of one window. "At first" is the memory that `create` takes, and "when full" the
    most that the full filter takes: all live slices, the bitmap more that a rotation needs, and the closed slices of a
    rolling filter, which an archive elsewhere would have. An impossible row says why.

    \b
    Example:
      urifilter plan --capacity 100M --error-rate 1e-4
      urifilter plan --capacity 1G --nodes 3
    """
    if cluster is not None:
        _print_nodes({"capacity": capacity, "error_rate": error_rate, **time}, cluster, as_json=options.json)
        return
    size(1, error_rate)  # an error rate that is impossible at any capacity ends the command
    allowed = {"counting": time["retention"] == "forever", REDISBLOOM: allows_module(Shape(capacity=1, **time))}
    plans: list[Plan | Impossible] = []
    for layout in (each for each in LAYOUTS if allowed.get(each, True)):
        for rate in sorted({*SHOWN, error_rate}, reverse=True):
            settings = {"capacity": capacity, "error_rate": rate, "layout": layout, **time}
            try:
                plans.append(Plan(Settings(**settings)))
            except ValueError as error:
                plans.append(Impossible(settings, str(error)))
    if all(isinstance(each, Impossible) for each in plans):  # the fault is in another setting than the error rate
        raise ValueError(next(each.why for each in plans if isinstance(each, Impossible) and each.asked(error_rate)))
    head = ("layout", "error rate", "k", "bits an item", "at first", "when full", "bitmaps", "wrongly skipped", "")
    options.tell_rows([each.values() for each in plans], head, (each.row(error_rate) for each in plans))


@dataclass
class Impossible:
    """A row for settings that no filter can have, and the reason why."""

    settings: dict[str, Any]
    why: str

    def asked(self, error_rate: float) -> bool:
        """Whether the row has the given error rate."""
        return bool(self.settings["error_rate"] == error_rate)

    def row(self, asked: float) -> tuple[object, ...]:
        """Return the cells of the table."""
        mark = "< " if self.asked(asked) else ""
        return self.settings["layout"], f"{self.settings['error_rate']:g}", "", "", "", "", "", "", f"{mark}{self.why}"

    def values(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        given = {name: self.settings[name] for name in ("layout", "retention", "capacity", "error_rate")}
        return given | {"impossible": self.why}


class Plan:
    """A row for a possible filter.

    Attributes:
        settings: the filter's settings.
        sizing: the geometry of its first slice.
        slices: the number of live slices.
        skipped: the number of new items that are answered "seen" until the filter is at capacity.
        bits: bits of memory an item, over all live slices.
        full: the most bytes that the full filter takes; None for a growing one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sizing = size_first(settings)
        self.slices = live_slices(settings)
        forever = settings.retention == "forever"
        self.skipped = self.sizing.wrongly_skipped if forever else settings.capacity * settings.error_rate
        self.full = None if settings.retention == "growing" else costs.memory_when_full(settings)
        self.bits = 8 * self.sizing.segment_bytes * self.sizing.segments * self.slices / settings.capacity

    def row(self, asked: float) -> tuple[object, ...]:
        """Return the cells of the table."""
        sizing, rate = self.sizing, self.settings.error_rate
        mark = "<" if rate == asked else ""
        skipped = f"{self.skipped:,.0f}" if self.skipped >= 10 else f"{self.skipped:.2g}"  # noqa: PLR2004
        full = "grows" if self.full is None else size_text(self.full)
        sizes = size_text(sizing.memory), full
        return sizing.layout, f"{rate:g}", sizing.k, f"{self.bits:.1f}", *sizes, sizing.segments, skipped, mark

    def values(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        sizing, settings = self.sizing, self.settings
        return {
            **_geometry(settings, sizing),
            "k": sizing.k,
            "bits_per_item": self.bits,
            "memory_at_first": sizing.memory,
            "memory_when_full": self.full,
            "slice_capacity": sizing.capacity,
            "shard_capacity": sizing.shard_capacity,
            "error_rate_at_capacity": error_rate_at_capacity(settings),
            "wrongly_skipped": self.skipped,
        }


@click.command()
@click.argument("items", nargs=-1)
@click.option(
    "--filter",
    "name",
    type=filter_name,
    metavar="NAME",
    help="Use this filter's hash, seed, normalisation and rules; show the shard too.",
)
@click.option("--hash", "hash_name", type=click.Choice(HASHES), default="md5", show_default=True)
@click.option("--seed", help="The hash's seed: a number for mmh3, 32 hex digits for blake2b.")
@click.option("--normalize", type=click.Choice(NORMALIZATIONS), default="none", show_default=True)
@rules_option
@form_options
@click.option("--explain", "explains", is_flag=True, help="Show each step of the normalisation that changes the item.")
@shared
@pass_shared
def digest(
    options: Shared,
    items: tuple[str, ...],
    name: str | None,
    hash_name: str,
    seed: str | None,
    normalize: str,
    rules: Path | None,
    form: Form,
    *,
    explains: bool,
) -> None:
    """Print the digest of each item, a tab, and the item. The items are arguments, or lines of stdin.

    With --json print an object a line.

    \b
    Example:
      urifilter digest https://www.baidu.com/
    """
    shards = 0
    if name is not None:
        if own := given_of("hash_name", "seed", "normalize", "rules"):
            option = own[0].removesuffix("_name")
            raise click.UsageError(f"--{option} is the filter's own: leave it out, or --filter")
        with UriFilter.open(name, **options.filter()) as opened:
            config = opened.config
        normalize, canonical, shards = config.normalize, config.rules, config.shards
        digester = make_digester(normalize, config.hash, config.seed, canonical)
    else:
        if hash_name != "md5" and seed is None:
            raise click.UsageError(f"{hash_name} needs --seed, or --filter")
        canonical = None if rules is None else canonical_rules(rules, normalize)
        digester = make_digester(normalize, hash_name, new_seed(hash_name, seed), canonical)
    for some in _given(items, form):
        for item, each in zip(some, digester(some), strict=True):
            number = shard_of(each, shards) if shards else None
            steps = explain(item, normalize, canonical) if explains else []
            if options.json:
                shard = {} if number is None else {"shard": number}
                told = {"steps": [{"step": step, "spelling": text} for step, text in steps]} if explains else {}
                click.echo(json.dumps({"item": json_item(item), "digest": each.hex()} | shard | told))
            else:
                words = [each.hex().encode(), *([] if number is None else [str(number).encode()]), item]
                click.echo(b"\t".join(words) + form.end, nl=False)
                for step, spelling in steps:
                    click.echo(f"  {step:12}{spelling}")


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@form_options
@shared
@pass_shared
def fingerprint(options: Shared, urls: tuple[str, ...], form: Form) -> None:
    """Print Scrapy's fingerprint of each URL: the item of a crawl that shares a filter. URLs are arguments, or stdin.

    It is that of a GET request, by Scrapy's own fingerprinter. With --json print an object a line.

    \b
    Example:
      urifilter fingerprint https://www.baidu.com/
    """
    try:
        from scrapy import Request  # noqa: PLC0415 - an extra brings it
        from scrapy.utils.request import fingerprint as of_request  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise UriFilterError(f"fingerprint needs Scrapy: {how_to_get('scrapy')}") from error
    bad = 0
    for each in chain.from_iterable(_given(urls, form)):
        url = each.decode(errors="surrogateescape")
        try:
            made = of_request(Request(url)).hex()
        except ValueError as error:
            bad += 1
            complain(f"{url!r} is no URL, and left out: {error}", "Unreadable")
            continue
        click.echo(json.dumps({"url": url, "fingerprint": made}) if options.json else made)
    if bad:
        raise click.exceptions.Exit(2)


def _given(arguments: Sequence[str], form: Form) -> Iterator[Sequence[bytes]]:
    """Yield the arguments of a command, or else the items of stdin, in windows; exit with 2 if any was left out."""
    if arguments:
        if form != PLAIN:
            raise click.UsageError("items were named, and an option says how stdin is read: give one of both")
        yield [each.encode("utf-8", "surrogateescape") for each in arguments]
        return
    summary = Summary(Input(form=form, quiet=True))
    with Signals() as signals:
        for window in windows(summary, signals):
            yield window.items
    if summary.end_bad():
        raise click.exceptions.Exit(2)
