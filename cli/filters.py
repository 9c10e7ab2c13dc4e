"""``create``, ``list``, ``info``, ``drop``."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import click

from urifilter_redis import FilterInfo, UriFilter, UriFilterError, drop_filter, list_filters
from urifilter_redis.config import RETENTIONS
from urifilter_redis.digest import HASHES
from urifilter_redis.normalize import NORMALIZATIONS
from urifilter_redis.sizing import LAYOUTS

from .common import Shared, columns, count, pass_shared, print_json, say, shared, size_text

__all__ = ["create", "drop", "info", "list_"]


@click.command()
@click.argument("name")
@click.option("--capacity", type=count, metavar="COUNT", required=True, help="Items over the whole filter: 10M, 1e8.")
@click.option("--error-rate", type=float, default=1e-4, show_default=True, help="Wrongly seen, at capacity.")
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="blocked",
    show_default=True,
    help="blocked: fast; classic: smallest.",
)
@click.option(
    "--retention", type=click.Choice(RETENTIONS), default="forever", show_default=True, help="What happens over time."
)
@click.option("--shards", type=int, help="Independent parts; by default the fewest that fit.")
@click.option(
    "--normalize",
    type=click.Choice(NORMALIZATIONS),
    default="none",
    show_default=True,
    help="Which spellings are one item.",
)
@click.option(
    "--hash", type=click.Choice(HASHES), default="mmh3", show_default=True, help="blake2b: for hostile input."
)
@click.option("--seed", help="Of the hash; random by default.")
@shared
@pass_shared
def create(options: Shared, /, name: str, **settings: Any) -> None:
    """Make a filter; if it is there with these settings, do nothing.

    \b
    Example:
      urifilter create news --capacity 100M --error-rate 1e-4
    """  # fmt: skip
    with UriFilter.create(name, **options.where(), **settings) as made:
        found = made.info()
    if options.json:
        print_json(found.to_dict())
    else:
        size = size_text(found.shards * found.slice_bytes)
        shards = "" if found.shards == 1 else f" in {found.shards} shards"
        click.echo(f"{name}: {found.capacity:,} items at {found.error_rate:g}, {found.layout}, {size}{shards}")


@click.command(name="list")
@shared
@pass_shared
def list_(options: Shared) -> None:
    """List the filters.

    \b
    Example:
      urifilter list --json
    """
    found: list[FilterInfo] = []
    broken = False
    for name in list_filters(**options.where()):
        try:
            with UriFilter.open(name, **options.where()) as each:
                found.append(each.info())
        except UriFilterError as error:
            say(f"urifilter: {error}")
            broken = True
    if options.json:
        print_json([each.to_dict() for each in found])
    else:
        head = ("name", "layout", "retention", "capacity", "inserted", "fill", "error rate now", "memory")
        columns(head, (_row(each) for each in found))
    if broken:
        raise click.exceptions.Exit(2)


def _row(found: FilterInfo) -> tuple[object, ...]:
    inserted = f"{found.inserted:,} (over capacity)" if found.over_capacity else found.inserted
    fill, memory = f"{found.fill:.1%}", size_text(found.memory)
    return found.name, found.layout, found.retention, found.capacity, inserted, fill, found.error_rate_now, memory


@click.command()
@click.argument("name")
@shared
@pass_shared
def info(options: Shared, name: str) -> None:
    """Show a filter's configuration and state.

    \b
    Example:
      urifilter info news
    """
    with UriFilter.open(name, **options.where()) as opened:
        found = opened.info()
    if options.json:
        print_json(found.to_dict())
        return
    values = found.to_dict() | {
        "created": dt.datetime.fromtimestamp(found.created, dt.UTC).isoformat(" ", "seconds"),
        "fill": f"{found.fill:.2%}",
        "memory": f"{found.memory:,} bytes",
        "over_capacity": "yes: more items are wrongly seen than was asked for" if found.over_capacity else "no",
    }
    for key, value in values.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value
        click.echo(f"{key.replace('_', ' '):24}{text}".rstrip())


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
@pass_shared
def drop(options: Shared, name: str, *, yes: bool) -> None:
    """Remove a filter and all that it has seen; also one that has lost parts.

    \b
    Example:
      urifilter drop news --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on: say --yes")
        click.confirm(f"Forget everything that {name!r} has seen?", abort=True, err=True)
    if not drop_filter(name, **options.where()):
        say(f"urifilter: there is no filter {name!r}")
        raise click.exceptions.Exit(2)
    say(f"dropped {name}")
