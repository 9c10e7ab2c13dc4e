"""``doctor``."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from urifilter_redis import UriFilter, UriFilterError, list_filters
from urifilter_redis.client import run
from urifilter_redis.engine.queries import server_time
from urifilter_redis.flows.doctor import (
    Finding,
    examine,
    examine_claims,
    examine_clock,
    examine_filter,
    examine_format,
    gather,
)

from .common import Shared, columns, pass_shared, print_json, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["doctor"]


@click.command()
@shared
@pass_shared
def doctor(options: Shared) -> None:
    """Check whether this server keeps the filters' promises, and say what to change.

    Exits with 0 if all promises hold, with 1 if one does not, with 2 on errors.

    \b
    Example:
      urifilter doctor --redis redis://localhost:6379/0
    """
    findings = list(examine(run(gather, **options.where())))
    for name in list_filters(**options.where()):
        findings += _filter(options, name)
    if options.json:
        print_json([asdict(finding) for finding in findings])
    else:
        columns(("level", "subject", "finding"), ((f.level, f.subject, f.text) for f in findings))
    if any(finding.level == "danger" for finding in findings):
        raise click.exceptions.Exit(1)


def _filter(options: Shared, name: str) -> Iterator[Finding]:
    try:
        with UriFilter.open(name, archive="", **options.where()) as opened:
            found = opened.info()
            yield examine_filter(found, run(server_time, **options.where()) / 1000)
            yield from examine_claims(found)
            yield from examine_format(found)
    except UriFilterError as error:
        yield Finding("danger", f"filter {name}", str(error))
    with contextlib.suppress(UriFilterError):  # opening the filter has failed, too, and is a finding already
        clock = run(examine_clock, name, **options.where())
        if clock is not None:
            yield clock
