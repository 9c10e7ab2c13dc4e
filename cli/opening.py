"""Filters that a command opens: one of those that it names, or of all that are on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from urifilter_redis import ConfigMismatch, UriFilter, UriFilterError, list_filters

from .common import Shared, complain

__all__ = ["open_one_of_all", "rows_of_each"]


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
