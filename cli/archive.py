"""``archive list|show|verify|export|import|prune``: work on archives, which needs no Redis."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from urifilter_redis.archive.export import export as export_filter
from urifilter_redis.archive.importing import import_ as import_filter
from urifilter_redis.archive.maintenance import Document, Entry, entries, verify_all
from urifilter_redis.archive.maintenance import prune as prune_leftovers
from urifilter_redis.archive.maintenance import show as show_filter
from urifilter_redis.bloom.retention import period_of, seconds_of
from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import named_backend

from .common import Shared, columns, counted, filter_name, moment, pass_shared, print_json, say, shared
from .progress import bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from urifilter_redis.engine.backend import Backend
    from urifilter_redis.engine.steps import Flow

#: Most shards that are named because they have fewer checkpoints than others.
SHARDS_TOLD = 3

T = TypeVar("T")


@click.group()
@shared
def archive() -> None:
    """Look at an archive, verify it, and clean it up.

    \b
    Example:
      urifilter archive list --archive file:///var/lib/urifilter/archive
    """


@contextmanager
def _backend(options: Shared) -> Iterator[Callable[[Callable[[Backend], Flow[T]]], T]]:
    """Yield a function that runs a flow about the archive."""
    backend = named_backend(options.archive)
    if backend is None:
        raise click.UsageError("which archive? Say --archive or set URIFILTER_ARCHIVE")
    try:
        yield lambda flow: drive(flow(backend))
    finally:
        drive(backend.close())


@archive.command(name="list")
@shared
@pass_shared
def list_(options: Shared) -> None:
    """List the filters of an archive.

    \b
    Example:
      urifilter archive list --archive file:///var/lib/urifilter/archive
    """
    with _backend(options) as run:
        found = run(entries)
    head = ("name", "uid", "layout", "retention", "capacity", "shards", "oldest checkpoint", "slices", "size", "")
    options.tell_rows([asdict(each) for each in found], head, map(_row, found))


def _row(each: Entry) -> tuple[object, ...]:
    begun = moment(each.begun) if each.begun else "none yet" if not each.checkpointed else "not of all shards"
    damaged = f"{len(each.problems)} damaged: urifilter archive verify" if each.problems else ""
    return (
        each.filter, each.uid, each.layout, each.retention, each.capacity, each.shards, begun, each.slices,
        size_text(each.packed), damaged,
    )  # fmt: skip


@archive.command()
@click.argument("name", type=filter_name)
@shared
@pass_shared
def show(options: Shared, name: str) -> None:
    """Show a filter in an archive: its settings, and each checkpoint and closed slice.

    \b
    Example:
      urifilter archive show news --archive file:///var/lib/urifilter/archive
    """
    with _backend(options) as run:
        registration, found = run(lambda backend: show_filter(backend, name))
    config = asdict(registration.config)
    if options.json:
        print_json(
            {"filter": name, "created": registration.created, "config": config, "documents": [*map(asdict, found)]}
        )
        return
    for key, value in config.items():
        if value is not None:
            click.echo(f"{key:24}{value}")
    click.echo()
    head = ("kind", "shard", "epoch", "number", "time", "inserted", "size", "archived as", "")
    columns(head, map(_document, found))


def _document(each: Document) -> tuple[object, ...]:
    time = moment(each.time) if each.time else ""
    return (
        each.kind, each.shard, each.epoch, each.number or "", time, each.inserted, size_text(each.size),
        size_text(each.packed), each.problem or "",
    )  # fmt: skip


@archive.command()
@click.argument("name", type=filter_name, required=False)
@shared
@pass_shared
def verify(options: Shared, name: str | None) -> None:
    """Read a whole archive, or one filter in it, and check it. Exits with 1 if anything is damaged or missing.

    Missing closed slices and checkpoints count as damaged. It says how many checkpoints each shard can fall back to:
    two, as soon as two were written.

    \b
    Example:
      urifilter archive verify --archive file:///var/lib/urifilter/archive
    """
    with _backend(options) as run, bar(name or "archive") as report:
        found = run(lambda backend: verify_all(backend, name, report))
    options.tell(asdict(found), *found.problems)
    if not options.json:
        for each, numbers in found.checkpoints.items():
            say(f"{each}: {_whole(numbers)}")
        say(f"{counted(found.documents, 'document')}, {size_text(found.packed)}: {len(found.problems)} damaged")
    if not found.filters:
        say("urifilter: the archive has no filter: if it is on a disk of its own, is that mounted?")
    if found.problems or not found.filters:
        raise click.exceptions.Exit(1)


def _whole(numbers: Sequence[int]) -> str:
    """Say how many checkpoints each shard can be restored from, and of which shards there are fewer."""
    most = max(numbers)
    text = f"{counted(most, 'checkpoint')} of each shard can be restored"
    fewer = [f"{number} of shard {shard}" for shard, number in enumerate(numbers) if number < most]
    if not fewer:
        return text
    more = f" and {len(fewer) - SHARDS_TOLD} more shards" if len(fewer) > SHARDS_TOLD else ""
    return f"{text}, but {', '.join(fewer[:SHARDS_TOLD])}{more}"


@archive.command()
@click.argument("name", type=filter_name)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared
@pass_shared
def export(options: Shared, name: str, file: Path) -> None:
    """Write a filter's last checkpoint into one file. `urifilter check --archive-file` reads it without any server.

    \b
    Example:
      urifilter archive export news news.urifilter --archive file:///var/lib/urifilter/archive
    """
    with _backend(options) as run, bar(name) as report:
        found = run(lambda backend: export_filter(backend, name, file, report))
    begun = min(each.begun for each in found) / 1000
    size = file.stat().st_size
    about = {"filter": name, "file": str(file), "begun": begun, "size": size}
    options.tell(about, f"{file}: {name} as of {moment(begun)}, {size_text(size)}", write=say)


@archive.command(name="import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--shards", type=int, help="Give the filter so many shards. It is another filter then, with its own uid.")
@shared
@pass_shared
def import_(options: Shared, file: Path, shards: int | None) -> None:
    """Put an exported filter into an archive; newer checkpoints there stay. `urifilter restore` brings it into Redis.

    With --shards it moves to a server, or a cluster, of another size: docs/how-to/outgrow-a-server.md. The answers of
    calls that were lost are not known there, so no crawler may be waiting for one.

    \b
    Example:
      urifilter archive import news.urifilter --archive file:///var/lib/urifilter/archive
      urifilter archive import news.urifilter --archive file:///var/lib/urifilter/cluster --shards 6
    """
    with _backend(options) as run, bar(file.name) as report:
        name, config = run(lambda backend: import_filter(backend, file, report, shards))
    text = f"{name} is in the archive: urifilter restore {name} brings it into Redis"
    options.tell({"filter": name, "uid": config.uid, "shards": config.shards}, text, write=say)


@archive.command()
@click.argument("name", type=filter_name, required=False)
@click.option("--older-than", default="1h", show_default=True, metavar="TIME", help="Keep younger leftovers: 90m, 2h.")
@shared
@pass_shared
def prune(options: Shared, name: str | None, older_than: str) -> None:
    """Remove the leftovers of crashed uploads, and expired closed slices.

    Leftovers younger than --older-than stay, because they may belong to an upload under way. An upload gives up after
    half an hour.

    \b
    Example:
      urifilter archive prune --archive file:///var/lib/urifilter/archive --older-than 1d
    """
    age = 0.0 if older_than == "0s" else float(seconds_of(period_of(older_than)))
    with _backend(options) as run:
        done = run(lambda backend: prune_leftovers(backend, age, name))
    for problem in done.problems:
        say(f"urifilter: {problem}")
    expired = counted(done.documents, "expired document")
    text = f"removed {counted(done.blobs, 'leftover')}, {size_text(done.packed)}, and {expired}"
    options.tell(asdict(done), text, write=say)
    if done.problems:
        raise click.exceptions.Exit(1)
