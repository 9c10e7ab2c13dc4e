"""The options for a filter's settings, which ``create`` and ``plan`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from urifilter_redis.bloom.digest import HASHES
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import EXPIRE_AFTER, RETENTIONS, WRITES
from urifilter_redis.bloom.sizing import LAYOUTS

from .common import count

__all__ = ["identity_options", "layout_option", "size_options", "time_options", "yes_option"]

F = TypeVar("F", bound=Callable[..., Any])

_CAPACITY = "Items of the whole window: 10M, 1e8 (growing: of the first slice)."
_EXPIRE = "When an item's time begins; first-seen by default."
_WRITE = "Ring: write one slice and test all, or write all and test one; newest by default."


def size_options(*, required: bool, capacity: str = "--capacity", text: str = _CAPACITY) -> Callable[[F], F]:
    """Add the options for a filter's size.

    Args:
        required: whether the capacity must be given.
        capacity: the name of the option for it.
        text: the help of that option.
    """
    return _all(
        click.option(capacity, "capacity", type=count, metavar="COUNT", required=required, help=text),
        click.option(
            "--error-rate",
            type=float,
            default=1e-4,
            show_default=True,
            help="Share of new items that are answered seen, at capacity.",
        ),
        click.option("--shards", type=int, help="Independent parts; by default the fewest that fit."),
    )


def layout_option(command: F) -> F:
    """Add the option for the layout."""
    text = "blocked: fast; classic: smallest; counting: items can be removed."
    return click.option("--layout", type=click.Choice(LAYOUTS), default="blocked", show_default=True, help=text)(
        command
    )


def time_options(command: F) -> F:
    """Add the options for the expiry of items."""
    retention = click.Choice(RETENTIONS)
    return _all(
        click.option("--retention", type=retention, default="forever", show_default=True, help="How items expire."),
        click.option("--slices", type=int, metavar="N", help="Ring, rolling: the window, in periods."),
        click.option("--period", metavar="TIME", help="Ring, rolling: between rotations: 45s, 10m, 6h, 1d, 2w."),
        click.option("--expire-after", type=click.Choice(EXPIRE_AFTER), help=_EXPIRE),
        click.option("--write", type=click.Choice(WRITES), help=_WRITE),
        click.option("--period-capacity", type=count, metavar="COUNT", help="Ring: the most new items of one period."),
    )(command)


def identity_options(command: F) -> F:
    """Add the options that decide whether two spellings are one item."""
    normalize, hash_ = click.Choice(NORMALIZATIONS), click.Choice(HASHES)
    return _all(
        click.option(
            "--normalize", type=normalize, default="none", show_default=True, help="Which spellings are one item."
        ),
        click.option("--hash", type=hash_, default="mmh3", show_default=True, help="blake2b: for hostile input."),
        click.option("--seed", help="The hash's seed; random by default."),
    )(command)


def yes_option(command: F) -> F:
    """Add the option that allows a large filter."""
    text = "Make the filter even if it leaves the server too little free memory."
    return click.option("--yes", is_flag=True, help=text)(command)


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
