"""``plan`` and ``digest``: the commands that work without a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from urifilter_redis import UriFilter
from urifilter_redis.bloom.costs import memory_when_full
from urifilter_redis.bloom.digest import HASHES, hasher, new_seed, shard_of
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import error_rate_at_capacity, live_slices, size_first
from urifilter_redis.bloom.sizing import LAYOUTS, size
from urifilter_redis.engine.batch import Digester
from urifilter_redis.protocol.config import Settings

from .common import Shared, columns, filter_name, pass_shared, print_json, print_json_line, shared, size_text
from .lines import windows_of
from .nodes import Cluster, nodes_options, print_nodes
from .settings import size_options, time_options

__all__ = ["digest", "plan"]

#: The error rates that ``plan`` shows beside the given one.
SHOWN = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@click.command()
@size_options(required=True)
@time_options
@nodes_options
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
        print_nodes({"capacity": capacity, "error_rate": error_rate, **time}, cluster, json=options.json)
        return
    size(1, error_rate)  # an error rate that is impossible at any capacity ends the command
    layouts = LAYOUTS if time["retention"] == "forever" else LAYOUTS[:-1]
    plans = [
        _planned({"capacity": capacity, "error_rate": rate, "layout": layout, **time})
        for layout in layouts
        for rate in sorted({*SHOWN, error_rate}, reverse=True)
    ]
    if all(isinstance(each, Impossible) for each in plans):  # the fault is in another setting than the error rate
        raise ValueError(next(each.why for each in plans if isinstance(each, Impossible) and each.asked(error_rate)))
    if options.json:
        print_json([each.values() for each in plans])
        return
    head = ("layout", "error rate", "k", "bits an item", "at first", "when full", "shards", "wrongly skipped", "")
    columns(head, (each.row(error_rate) for each in plans))


def _planned(settings: dict[str, Any]) -> Plan | Impossible:
    try:
        return Plan(Settings(**settings))
    except ValueError as error:
        return Impossible(settings, str(error))


@dataclass
class Impossible:
    """A row for settings that no filter can have.

    Attributes:
        settings: the settings.
        why: the reason.
    """

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
        self.full = None if settings.retention == "growing" else memory_when_full(settings)
        self.bits = 8 * self.sizing.slice_bytes * self.sizing.shards * self.slices / settings.capacity

    def row(self, asked: float) -> tuple[object, ...]:
        """Return the cells of the table."""
        sizing, rate = self.sizing, self.settings.error_rate
        mark = "<" if rate == asked else ""
        skipped = f"{self.skipped:,.0f}" if self.skipped >= 10 else f"{self.skipped:.2g}"  # noqa: PLR2004
        full = "grows" if self.full is None else size_text(self.full)
        sizes = size_text(sizing.memory), full
        return sizing.layout, f"{rate:g}", sizing.k, f"{self.bits:.1f}", *sizes, sizing.shards, skipped, mark

    def values(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        sizing, settings = self.sizing, self.settings
        return {
            "layout": sizing.layout,
            "retention": settings.retention,
            "capacity": settings.capacity,
            "error_rate": settings.error_rate,
            "k": sizing.k,
            "bits_per_item": self.bits,
            "memory_at_first": sizing.memory,
            "memory_when_full": self.full,
            "live_slices": self.slices,
            "shards": sizing.shards,
            "slice_bytes": sizing.slice_bytes,
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
    help="Use this filter's hash, seed and normalisation; show the shard too.",
)
@click.option("--hash", "hash_name", type=click.Choice(HASHES), default="md5", show_default=True)
@click.option("--seed", help="The hash's seed: a number for mmh3, 32 hex digits for blake2b.")
@click.option("--normalize", type=click.Choice(NORMALIZATIONS), default="none", show_default=True)
@shared
@pass_shared
def digest(
    options: Shared, items: tuple[str, ...], name: str | None, hash_name: str, seed: str | None, normalize: str
) -> None:
    """Print the digest of each item, a tab, and the item. The items are arguments, or lines of stdin.

    With --json print an object a line.

    \b
    Example:
      urifilter digest https://www.baidu.com/
    """
    shards = 0
    if name is not None:
        with UriFilter.open(name, **options.filter()) as opened:
            config = opened.config
        digester, shards = Digester(config.normalize, hasher(config.hash, config.seed)), config.shards
    else:
        if hash_name != "md5" and seed is None:
            raise click.UsageError(f"{hash_name} needs --seed, or --filter")
        digester = Digester(normalize, hasher(hash_name, new_seed(hash_name, seed)))
    given = [item.encode("utf-8", "surrogateescape") for item in items]
    for lines, some in windows_of(("-",), lambda _: None) if not items else [(given, given)]:
        for line, item, each in zip(lines, some, digester(some), strict=True):
            number = shard_of(each, shards) if shards else None
            if options.json:
                shard = {} if number is None else {"shard": number}
                print_json_line({"item": item.decode(errors="surrogateescape"), "digest": each.hex()} | shard)
            else:
                words = [each.hex().encode(), *([] if number is None else [str(number).encode()]), line]
                click.echo(b"\t".join(words))
