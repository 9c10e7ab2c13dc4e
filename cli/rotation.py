"""``rotate`` and ``union``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from urifilter_redis import OverCapacity, Rotation, UriFilter, UriFilterError, list_filters
from urifilter_redis.bloom.retention import TIMED

from .common import (
    NOTHING_DUE,
    Shared,
    complain,
    confirm,
    filter_name,
    moment,
    open_one_of_all,
    pass_shared,
    quiet_option,
    say,
    shared,
)
from .progress import steps


@click.command()
@click.argument("names", type=filter_name, nargs=-1)
@click.option("--due", is_flag=True, help="Rotate only filters that are due; without NAMES all of them. For cron.")
@click.option("--epoch", type=int, help="Rotate only from this epoch: of several calls that name it, one rotates.")
@click.option("--dry-run", is_flag=True, help="Print the rotations that would be done, and do nothing.")
@quiet_option
@shared
@pass_shared
def rotate(
    options: Shared, names: tuple[str, ...], *, due: bool, epoch: int | None, dry_run: bool, quiet: bool
) -> None:
    """Close today's slice of ring and rolling filters, begin the next, let the oldest expire.

    Finishes an interrupted rotation, too. A late rotation passes over the periods that were missed. With --due
    exits with 0 if any filter was rotated, with 3 if none was due, with 2 on errors.

    \b
    Example:
      urifilter rotate --due
    """
    if not names and not due:
        raise click.UsageError("which filters? Name them, or say --due for all that are due")
    if due and epoch is not None:
        raise click.UsageError("--due knows the epoch itself: leave out --epoch")
    rows: list[dict[str, Any]] = []
    failed = False
    for name in names or list_filters(**options.where()):
        try:
            rows += _rotate(options, name, due=due, epoch=epoch, dry_run=dry_run, named=bool(names), quiet=quiet)
        except UriFilterError as error:  # the other filters are rotated all the same
            complain(str(error), type(error).__name__)
            failed = True
    did = "would rotate" if dry_run else "rotated"
    options.tell(rows, *(f"{row['filter']}: {did} to epoch {row['epoch']}" for row in rows), quiet=quiet)
    if failed:
        raise click.exceptions.Exit(2)
    if due and not rows:
        raise click.exceptions.Exit(NOTHING_DUE)


def _rotate(
    options: Shared, name: str, *, due: bool, epoch: int | None, dry_run: bool, named: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Rotate one filter; return its row, or none if nothing was due."""
    with UriFilter.open(name, **options.filter()) if named else open_one_of_all(options, name) as opened:
        if not named and opened.config.retention not in TIMED:
            return []
        with steps(opened, name, quiet=quiet):
            if due and dry_run:
                target = opened.due()
                done = None if target is None else Rotation(target)
            else:
                done = opened.rotate_due() if due else opened.rotate(epoch, dry_run=dry_run)
        if done is None:
            if named and not quiet and not options.json:
                say(f"{name}: not due before {moment(opened.next_rotation())}")
            return []
    for problem in done.problems:
        say(f"urifilter: {problem}; what it held expires late, not early")
    return [{"filter": name, **asdict(done)}]


@click.command()
@click.argument("target", type=filter_name)
@click.argument("sources", type=filter_name, nargs=-1, required=True)
@quiet_option
@click.option("--yes", is_flag=True, help="Merge even if TARGET is over capacity then.")
@shared
@pass_shared
def union(options: Shared, target: str, sources: tuple[str, ...], *, quiet: bool, yes: bool) -> None:
    """Insert all items of the SOURCES into TARGET. All must have the same geometry, hash and seed.

    `urifilter create --like` makes such filters. If TARGET would be over capacity, nothing is merged without --yes.

    \b
    Example:
      urifilter union all monday tuesday
    """
    with UriFilter.open(target, **options.filter()) as opened:

        def merge(*, over_capacity: bool) -> int:
            with steps(opened, target, quiet=quiet):
                return opened.union(*sources, over_capacity=over_capacity)

        try:
            added = merge(over_capacity=yes)
        except OverCapacity as error:
            confirm(error, "Merge them?")
            added = merge(over_capacity=True)
        text = f"{target}: about {added:,} items added from {', '.join(sources)}"
        options.tell({"filter": target, "sources": list(sources), "added": added}, text, quiet=quiet)
