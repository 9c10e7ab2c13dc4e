"""Filters that a command makes, or opens: one of those that it names, or of all that are on the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from urifilter_redis import ConfigMismatch, TooLarge, UriFilter, UriFilterError, list_filters

from .common import Shared, complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["DEFAULT_SETTINGS", "confirm", "made", "open_one_of_all", "over_capacity", "rows_of_each"]

#: The settings of a filter that a command makes without being told its size. The capacity is that of its first slice.
DEFAULT_SETTINGS: dict[str, Any] = {"capacity": 10_000_000, "retention": "growing"}

Made = TypeVar("Made", bound=UriFilter)


def made(kind: type[Made], name: str, **settings: Any) -> Made:
    """Make a filter of a class; if it is large and stdin is a terminal, ask first."""
    try:
        return kind.create(name, **settings)
    except TooLarge as error:
        if not error.fits:
            raise
        confirm(error, "Make it?")
    return kind.create(name, **(settings | {"large": True}))


def confirm(error: UriFilterError, question: str) -> None:
    """Ask whether to do all the same what an error has refused; raise it if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise error
    click.confirm(f"{error}. {question}", abort=True, err=True)


def over_capacity(news: UriFilter) -> str:
    """Return the notice that a filter has more items than it is made for; an empty text if it has not."""
    config = news.config
    if config.retention == "growing" or config.expire_after == "last-seen":  # the first grows; the other counts often
        return ""
    inserted = news.inserted()
    if inserted <= config.capacity:
        return ""
    text = f"filter {news.name} is over its capacity: {inserted:,} of {config.capacity:,}"
    return f"{text}; it goes on working, with more items wrongly seen"


def open_one_of_all(options: Shared, name: str) -> UriFilter:
    """Open one filter of the list; ignore the named archive if the filter was created without one."""
    try:
        return UriFilter.open(name, **options.filter())
    except ConfigMismatch as error:
        if "archive" not in error.differences:
            raise
        return UriFilter.open(name, **options.filter() | {"archive": ""})


def rows_of_each(
    options: Shared, names: Sequence[str], rows_of: Callable[[str], Iterable[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], bool]:
    """Do something to the named filters, or to all of the server; one that fails does not keep it from the others.

    Returns:
        The rows of all, and whether any failed.
    """
    rows: list[dict[str, Any]] = []
    failed = False
    for name in names or list_filters(**options.where()):
        try:
            rows += rows_of(name)
        except UriFilterError as error:
            complain(str(error), type(error).__name__)
            failed = True
    return rows, failed
