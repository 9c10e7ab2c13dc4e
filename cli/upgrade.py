"""``upgrade``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click

from urifilter_redis import UriFilter

from .common import Shared, counted, filter_name, pass_shared, print_rows, shared
from .opening import open_one_of_all, rows_of_each
from .progress import steps

__all__ = ["upgrade"]


@click.command()
@click.argument("names", type=filter_name, nargs=-1)
@click.option("--all", "every", is_flag=True, help="Upgrade all filters of the server.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@shared
@pass_shared
def upgrade(options: Shared, names: tuple[str, ...], *, every: bool, quiet: bool) -> None:
    """Convert filters that an older release made to this release's format. Inserts go on meanwhile.

    Older releases refuse a filter from then on, so first install this release wherever the filter is used. `urifilter
    doctor` names the filters of older formats. An interrupted upgrade is finished by the next.

    \b
    Example:
      urifilter upgrade news
    """
    if bool(names) == every:
        raise click.UsageError("which filters? Name them, or say --all for all of the server")
    rows, failed = rows_of_each(options, names, partial(_one, options, named=bool(names), quiet=quiet))
    if options.json or not quiet:
        print_rows(options, rows, _described)
    if failed:
        raise click.exceptions.Exit(2)


def _one(options: Shared, name: str, *, named: bool, quiet: bool) -> list[dict[str, Any]]:
    """Upgrade one filter; return its row."""
    with UriFilter.open(name, **options.filter()) if named else open_one_of_all(options, name) as opened:
        with steps(opened, name, quiet=quiet):
            done = opened.upgrade()
        return [{"filter": name, **asdict(done)}]


def _described(row: dict[str, Any]) -> str:
    if not row["shards"]:
        return f"is of format {row['format']} already"
    return f"upgraded {counted(row['shards'], 'shard')} from format {row['before']} to {row['format']}"
