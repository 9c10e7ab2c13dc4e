"""``upgrade``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from urifilter_redis import UriFilter, UriFilterError, list_filters

from .common import Shared, complain, counted, filter_name, open_one_of_all, pass_shared, print_json, shared
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
    rows: list[dict[str, Any]] = []
    failed = False
    for name in names or list_filters(**options.where()):
        try:
            with UriFilter.open(name, **options.filter()) if names else open_one_of_all(options, name) as opened:
                with steps(opened, name, quiet=quiet):
                    done = opened.upgrade()
                rows.append({"filter": name, **asdict(done)})
        except UriFilterError as error:
            complain(str(error), type(error).__name__)
            failed = True
    if options.json:
        print_json(rows)
    elif not quiet:
        for row in rows:
            click.echo(f"{row['filter']}: {_described(row)}")
    if failed:
        raise click.exceptions.Exit(2)


def _described(row: dict[str, Any]) -> str:
    if not row["shards"]:
        return f"is of format {row['format']} already"
    return f"upgraded {counted(row['shards'], 'shard')} from format {row['before']} to {row['format']}"
