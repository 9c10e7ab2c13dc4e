"""``plan`` and ``digest``: what needs no filter."""

from __future__ import annotations

from typing import Any

import click

from urifilter_redis import UriFilter
from urifilter_redis.batch import Digester
from urifilter_redis.digest import HASHES, hasher, new_seed, shard_of
from urifilter_redis.normalize import NORMALIZATIONS
from urifilter_redis.sizing import LAYOUTS, Sizing, size

from .common import Shared, columns, count, pass_shared, print_json, shared, size_text
from .lines import windows_of

__all__ = ["digest", "plan"]

#: Error rates that are shown beside the one asked for.
SHOWN = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@click.command()
@click.option("--capacity", type=count, metavar="COUNT", required=True, help="Items over the whole filter: 10M, 1e8.")
@click.option("--error-rate", type=float, default=1e-4, show_default=True, help="Wrongly seen, at capacity.")
@click.option("--shards", type=int, help="Independent parts; by default the fewest that fit.")
@shared
@pass_shared
def plan(options: Shared, capacity: int, error_rate: float, shards: int | None) -> None:
    """Show what a filter would cost, for every layout and several error rates.

    "Wrongly skipped" is how many new pages are taken for seen on the way from empty to capacity.

    \b
    Example:
      urifilter plan --capacity 100M --error-rate 1e-4
    """
    rates = sorted({*SHOWN, error_rate}, reverse=True)
    sizings = [size(capacity, rate, layout, shards) for layout in LAYOUTS for rate in rates]
    if options.json:
        print_json([_values(each) for each in sizings])
        return
    head = ("layout", "error rate", "k", "bits an item", "memory", "shards", "wrongly skipped", "")
    columns(head, (_row(each, error_rate) for each in sizings))


def _row(sizing: Sizing, asked: float) -> tuple[object, ...]:
    mark = "<" if sizing.error_rate == asked else ""
    skipped = f"{sizing.wrongly_skipped:,.0f}" if sizing.wrongly_skipped >= 10 else f"{sizing.wrongly_skipped:.2g}"  # noqa: PLR2004
    rate, bits = f"{sizing.error_rate:g}", f"{sizing.bits_per_item:.1f}"
    return sizing.layout, rate, sizing.k, bits, size_text(sizing.memory), sizing.shards, skipped, mark


def _values(sizing: Sizing) -> dict[str, Any]:
    names = ("layout", "capacity", "error_rate", "k", "bits_per_item", "memory", "shards", "slice_bytes",
             "shard_capacity", "error_rate_at_capacity", "wrongly_skipped")  # fmt: skip
    return {name: getattr(sizing, name) for name in names}


@click.command()
@click.argument("items", nargs=-1)
@click.option("--filter", "name", help="Use this filter's hash, seed and normalisation; show the shard too.")
@click.option("--hash", "hash_name", type=click.Choice(HASHES), default="md5", show_default=True)
@click.option("--seed", help="Of the hash: a number for mmh3, 32 hex digits for blake2b.")
@click.option("--normalize", type=click.Choice(NORMALIZATIONS), default="none", show_default=True)
@shared
@pass_shared
def digest(
    options: Shared, items: tuple[str, ...], name: str | None, hash_name: str, seed: str | None, normalize: str
) -> None:
    """Print the digest of each item, a tab, and the item; the items are arguments or lines of stdin.

    \b
    Example:
      urifilter digest https://www.baidu.com/
    """
    shards = 0
    if name is not None:
        with UriFilter.open(name, **options.where()) as opened:
            config = opened.config
        digester, shards = Digester(config.normalize, hasher(config.hash, config.seed)), config.shards
    else:
        if hash_name != "md5" and seed is None:
            raise click.UsageError(f"{hash_name} needs --seed, or --filter")
        digester = Digester(normalize, hasher(hash_name, new_seed(hash_name, seed)))
    given = [item.encode("utf-8", "surrogateescape") for item in items]
    for lines, some in windows_of(("-",), lambda _: None) if not items else [(given, given)]:
        for line, each in zip(lines, digester(some), strict=True):
            shard = f"\t{shard_of(each, shards)}".encode() if shards else b""
            click.echo(each.hex().encode() + shard + b"\t" + line)
