"""``doctor``: whether a server keeps the filters' promises."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from urifilter_redis import UriFilter, UriFilterError, list_filters
from urifilter_redis.archive.maintenance import examine_archive, examine_kept
from urifilter_redis.base_blocking import run
from urifilter_redis.bloom.sizing import LAYOUTS
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.queries import server_time
from urifilter_redis.flows.doctor import (
    Finding,
    examine_claims,
    examine_clock,
    examine_copies,
    examine_filter,
    examine_masters,
)
from urifilter_redis.protocol import acl
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.transport.url import database_of

from .common import Shared, filter_name, pass_shared, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from urifilter_redis.engine.backend import Backend
    from urifilter_redis.engine.steps import Flow

T = TypeVar("T")


@click.command()
@click.option("--acl", "part", type=click.Choice(list(acl.PARTS)), help="Print the smallest ACL of a user; ask nobody.")
@click.option("--filter", "name", type=filter_name, metavar="NAME", help="With --acl: the keys of this filter only.")
@click.option("--layout", type=click.Choice(LAYOUTS), help="With --acl: redisbloom needs more commands.")
@shared
@pass_shared
def doctor(options: Shared, part: str | None, name: str | None, layout: str | None) -> None:
    """Check whether this server keeps the filters' promises, and say what to change.

    With --archive, or URIFILTER_ARCHIVE, it also looks whether this user can read and write the archive, has room, and
    whether each filter is kept there.
    Exits with 0 if all promises hold, with 1 if one does not, with 2 on errors.

    With --acl it prints an ACL SETUSER command instead, for redis-cli: a reader asks, a crawler also inserts and
    claims, and writes the samples that the service plots (PREFIX:{NAME:0}:rates), an operator may do everything. Write
    a password for PASSWORD.

    \b
    Example:
      urifilter doctor --redis redis://localhost:6379/0
      urifilter doctor --acl crawler --filter news
    """
    if part is not None:
        _print_acl(options, part, name, layout or "")
        return
    if name is not None or layout is not None:
        raise click.UsageError(f"--{'layout' if name is None else 'filter'} is for --acl")
    findings = run(examine_masters, **options.where())
    for each in list_filters(**options.where()):
        findings += _filter(options, each)
    findings += _of_archive(options, examine_archive) or ()
    rows = ((finding.level, finding.subject, finding.text) for finding in findings)
    options.tell_rows([asdict(finding) for finding in findings], ("level", "subject", "finding"), rows)
    if any(finding.level == "danger" for finding in findings):
        raise click.exceptions.Exit(1)


def _print_acl(options: Shared, part: str, name: str | None, layout: str) -> None:
    database = database_of(options.redis) if options.redis else 0
    line = acl.line(part, options.prefix, name, database=database, layout=layout)
    needed = acl.commands(part, database=database, layout=layout)
    keys = acl.patterns(options.prefix, name)
    options.tell({"part": part, "line": line, "commands": needed, "keys": keys}, line)


def _of_archive(options: Shared, flow: Callable[[Backend], Flow[T]]) -> T | None:
    """Run a flow about the archive that was named; None: none was."""
    backend = named_backend(options.archive)
    if backend is None:
        return None
    try:
        return drive(flow(backend))
    finally:
        drive(backend.close())


def _filter(options: Shared, name: str) -> Iterator[Finding]:
    try:
        with UriFilter.open(name, archive="", **options.where()) as opened:
            found = opened.info()
            yield examine_filter(found, run(server_time, **options.where()) / 1000)
            yield from examine_claims(found)
            yield from examine_copies(found)
            kept = _of_archive(options, lambda backend: examine_kept(backend, found.name, found.uid, found.archive))
            if kept is not None:
                yield kept
    except UriFilterError as error:
        yield Finding("danger", f"filter {name}", str(error))
    with contextlib.suppress(UriFilterError):  # opening the filter has failed, too, and is a finding already
        clock = run(examine_clock, name, **options.where())
        if clock is not None:
            yield clock
