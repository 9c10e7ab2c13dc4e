"""The options that say what a filter is: those of ``create`` and ``plan``."""

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
_EXPIRE = "What an item's time counts from; first-seen by default."
_WRITE = "Ring: write one slice and look at all, or write all and look at one; newest by default."


def size_options(*, required: bool) -> Callable[[F], F]:
    """Add what a filter's size depends on."""
    return _all(
        click.option("--capacity", type=count, metavar="COUNT", required=required, help=_CAPACITY),
        click.option("--error-rate", type=float, default=1e-4, show_default=True, help="Wrongly seen, at capacity."),
        click.option("--shards", type=int, help="Independent parts; by default the fewest that fit."),
    )


def layout_option(command: F) -> F:
    """Add the layout."""
    text = "blocked: fast; classic: smallest; counting: items can be removed."
    return click.option("--layout", type=click.Choice(LAYOUTS), default="blocked", show_default=True, help=text)(
        command
    )


def time_options(command: F) -> F:
    """Add what happens over time."""
    retention = click.Choice(RETENTIONS)
    return _all(
        click.option(
            "--retention", type=retention, default="forever", show_default=True, help="What expires, and how."
        ),
        click.option("--slices", type=int, metavar="N", help="Ring, rolling: the window, in periods."),
        click.option("--period", metavar="TIME", help="Ring, rolling: between rotations: 45s, 10m, 6h, 1d, 2w."),
        click.option("--expire-after", type=click.Choice(EXPIRE_AFTER), help=_EXPIRE),
        click.option("--write", type=click.Choice(WRITES), help=_WRITE),
        click.option("--period-capacity", type=count, metavar="COUNT", help="Ring: items that one period may bring."),
    )(command)


def identity_options(command: F) -> F:
    """Add what makes two items one."""
    normalize, hash_ = click.Choice(NORMALIZATIONS), click.Choice(HASHES)
    return _all(
        click.option("--normalize", type=normalize, default="none", show_default=True, help="Spellings that are one."),
        click.option("--hash", type=hash_, default="mmh3", show_default=True, help="blake2b: for hostile input."),
        click.option("--seed", help="Of the hash; random by default."),
    )(command)


def yes_option(command: F) -> F:
    """Add the answer to the question whether the filter may be large."""
    text = "Make the filter even if it takes more than half of the memory that is free."
    return click.option("--yes", is_flag=True, help=text)(command)


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
