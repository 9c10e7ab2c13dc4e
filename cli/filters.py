"""``create``, ``list``, ``info``, ``drop``, and the options for a filter's settings."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from urifilter_redis import FilterInfo, FilterNotFound, SliceInfo, UriFilter, UriFilterError, drop_filter, list_filters
from urifilter_redis.base_blocking import run
from urifilter_redis.bloom.costs import memory_when_full
from urifilter_redis.bloom.digest import HASHES
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import EXPIRE_AFTER, RETENTIONS, WRITES
from urifilter_redis.bloom.sizing import LAYOUTS, size_text
from urifilter_redis.flows.loss import loss_text
from urifilter_redis.flows.probe import has_module
from urifilter_redis.protocol.config import Config, allows_module

from .common import (
    Decorator,
    Shared,
    columns,
    complain,
    count,
    filter_name,
    made,
    moment,
    open_one_of_all,
    pass_shared,
    print_json,
    say,
    shared,
    with_options,
)

_CAPACITY = "Items of the whole window: 10M, 1e8 (growing: of the first slice)."
_EXPIRE = "When an item's time begins; first-seen by default."
_WRITE = "Ring: write one slice and test all, or write all and test one; newest by default."


def size_options(*, required: bool, capacity: str = "--capacity", text: str = _CAPACITY) -> Decorator:
    """Return the options of a filter's size; ``capacity`` and ``text`` are the first one's name and help."""
    return with_options(
        click.option(capacity, "capacity", type=count, metavar="COUNT", required=required, help=text),
        click.option(
            "--error-rate",
            type=float,
            default=1e-4,
            show_default=True,
            help="Share of new items that are answered seen, at capacity.",
        ),
        click.option("--shards", type=int, help="Independent parts; by default one, or one a master of a cluster."),
    )


layout_option = click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="blocked",
    show_default=True,
    help="blocked: fast; classic: smallest; counting: items can be removed; redisbloom: by BF.* of the server.",
)

#: The options for the expiry of items.
time_options = with_options(
    click.option(
        "--retention", type=click.Choice(RETENTIONS), default="forever", show_default=True, help="How items expire."
    ),
    click.option("--slices", type=int, metavar="N", help="Ring, rolling: the window, in periods."),
    click.option("--period", metavar="TIME", help="Ring, rolling: between rotations: 45s, 10m, 6h, 1d, 2w."),
    click.option("--expire-after", type=click.Choice(EXPIRE_AFTER), help=_EXPIRE),
    click.option("--write", type=click.Choice(WRITES), help=_WRITE),
    click.option("--period-capacity", type=count, metavar="COUNT", help="Ring: the most new items of one period."),
)

rules_option = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file of what tells no pages apart on some hosts.",
)

#: The options that decide whether two spellings are one item.
identity_options = with_options(
    click.option(
        "--normalize",
        type=click.Choice(NORMALIZATIONS),
        default="none",
        show_default=True,
        help="Which spellings are one item.",
    ),
    rules_option,
    click.option(
        "--hash", type=click.Choice(HASHES), default="mmh3", show_default=True, help="blake2b: for hostile input."
    ),
    click.option("--seed", help="The hash's seed; random by default."),
)

yes_option = click.option(
    "--yes", is_flag=True, help="Make the filter even if it leaves the server too little free memory."
)


@click.command()
@click.argument("name", type=filter_name)
@size_options(required=False)
@layout_option
@time_options
@identity_options
@click.option(
    "--like",
    type=filter_name,
    metavar="NAME",
    help="Take all settings, and the seed, from this filter: for union. --rules may be others.",
)
@yes_option
@shared
@pass_shared
@click.pass_context
def create(
    context: click.Context, options: Shared, /, name: str, like: str | None, *, yes: bool, **settings: Any
) -> None:
    """Make a filter; if it exists with these settings, do nothing.

    Asks before it makes a filter that leaves the server too little free memory.
    A quarter more than it takes "when full" (`urifilter plan`) must be free of
    maxmemory; where none is set, as much again of the machine's memory.

    \b
    Example:
      urifilter create news --capacity 100M --error-rate 1e-4
    """
    if like is not None:
        given = [key for key in settings if context.get_parameter_source(key) is not ParameterSource.DEFAULT]
        if others := [key for key in given if key != "rules"]:
            text = f"--like takes all settings but --rules from {like}"
            raise click.UsageError(f"{text}: leave out --{others[0].replace('_', '-')}")
        with UriFilter.open(like, **options.filter()) as other:
            settings = {**other.settings} | {key: settings[key] for key in given}
    elif settings["capacity"] is None:
        raise click.UsageError("--capacity is missing: how many items, such as 10M or 1e8")
    with made(UriFilter, name, **options.filter(), **settings, large=yes) as new:
        found, config = new.info(), new.config
    is_chosen = like is not None or context.get_parameter_source("layout") is not ParameterSource.DEFAULT
    # nothing is said of a filter with items: it was made before
    may_change = not (is_chosen or found.archive or found.inserted) and allows_module(found)
    if may_change and run(has_module, **options.where()):
        say("urifilter: this server has Bloom filters of its own (BF.*): with --layout redisbloom inserts are faster")
    options.tell(found.to_dict(), f"{name}: {_described(config)}")


def _described(config: Config) -> str:
    """Return the settings and the memory, which is that of `urifilter plan`."""
    time = f", {config.retention}" if config.retention != "forever" else ""
    if config.period:
        time += f" over {config.slices} periods of {config.period}"
    shards = "" if config.shards == 1 else f", {config.shards} shards"
    # an archive elsewhere has the closed slices of a rolling filter
    size = size_text(memory_when_full(config, closed=not config.has_backend))
    when = "at first" if config.retention == "growing" else "when full"
    return f"{config.capacity:,} items at {config.error_rate:g}, {config.layout}{time}{shards}, {size} {when}"


@click.command(name="list")
@shared
@pass_shared
def list_(options: Shared) -> None:
    """List the filters.

    "full" is inserted items in percent of capacity, for the fullest slice (! over capacity). "errors" is the share of
    new items that are answered "seen" now. `urifilter info` and --json show more.

    \b
    Example:
      urifilter list --json
    """
    found: list[FilterInfo] = []
    broken = False
    for name in list_filters(**options.where()):
        try:
            with open_one_of_all(options, name) as each:
                found.append(each.info())
        except UriFilterError as error:
            complain(str(error), type(error).__name__)
            broken = True
    head = ("name", "retention", "inserted", "full", "errors", "memory", "next rotation")
    options.tell_rows([each.to_dict() for each in found], head, map(_row, found))
    if broken:
        raise click.exceptions.Exit(2)


def _row(found: FilterInfo) -> tuple[object, ...]:
    share = max(each.inserted / each.capacity for each in found.live_slices)
    full = f"{share:.0%}{'!' if found.over_capacity else ''}"
    due = "" if found.next_rotation is None else moment(found.next_rotation)[:16]
    return found.name, found.retention, found.inserted, full, found.error_rate_now, size_text(found.memory), due


@click.command()
@click.argument("name", type=filter_name)
@shared
@pass_shared
def info(options: Shared, name: str) -> None:
    """Show a filter's configuration and state, and each live slice, newest first.

    The seed of its hash is secret: only --json shows it.

    \b
    Example:
      urifilter info news
    """
    with UriFilter.open(name, **options.filter()) as opened:
        found, seed = opened.info(), opened.config.seed
    if options.json:
        print_json(found.to_dict() | {"seed": seed})
        return
    apart = {"live_slices", "claims", "loss"} | {key for key in ("shards", "segments") if getattr(found, key) == 1}
    values = {key: value for key, value in found.to_dict().items() if value is not None and key not in apart} | {
        "created": moment(found.created),
        "fill": f"{found.fill:.2%}",
        "memory": f"{found.memory:,} bytes",
        "archived": f"{found.archived:,} bytes",
        "over_capacity": "yes: more items are wrongly seen than was asked for" if found.over_capacity else "no",
    }
    if found.rules is not None:
        values["rules"] = json.dumps(found.rules, ensure_ascii=False)
    for key in ("next_rotation", "checkpointed"):
        if (time := getattr(found, key)) is not None:
            values[key] = moment(time)
    values |= _claims(found)
    if found.loss is not None:
        values["loss"] = loss_text(found.loss, found.shards, name)
    for key, value in values.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value
        click.echo(f"{key.replace('_', ' '):24}{text}".rstrip())
    click.echo()
    head = ("slice", "opened", "closed", "inserted", "capacity", "fill", "error share", "error now", "")
    columns(head, (_slice(each) for each in found.live_slices))


def _claims(found: FilterInfo) -> dict[str, object]:
    """Return the lines about what is in flight; none if nobody has claimed."""
    if found.claims is None:
        return {}
    lines = {key: value for key, value in asdict(found.claims).items() if value is not None}
    lines["lease"] = f"{found.claims.lease:g} s"
    if found.claims.oldest_lapse is not None:
        lines["oldest_lapse"] = f"{found.claims.oldest_lapse:,.0f} s ago"
    return lines


def _slice(each: SliceInfo) -> tuple[object, ...]:
    closed = "" if each.closed is None else moment(each.closed)
    over = "< over capacity" if each.over_capacity else ""
    fill = f"{each.fill:.1%}"
    return (
        each.name, moment(each.opened), closed, each.inserted, each.capacity, fill, each.error_share,
        each.error_rate_now, over,
    )  # fmt: skip


@click.command()
@click.argument("name", type=filter_name)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-archive", is_flag=True, help="Keep the filter in its archive, to restore it later.")
@shared
@pass_shared
def drop(options: Shared, name: str, *, yes: bool, keep_archive: bool) -> None:
    """Remove a filter, its items, and its copies in the archive. A damaged filter is removed, too.

    \b
    Example:
      urifilter drop news --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on: say --yes")
        click.confirm(f"Forget everything that {name!r} has seen?", abort=True, err=True)
    if not drop_filter(name, keep_archive=keep_archive, archive=options.archive, **options.where()):
        raise FilterNotFound(f"there is no filter {name!r}")
    options.tell({"filter": name, "dropped": True}, f"dropped {name}", write=say)
