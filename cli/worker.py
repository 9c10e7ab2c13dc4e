"""``worker``, and ``checkpoint`` and ``restore``, which do its work for one filter by hand."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from dataclasses import asdict
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING

import click

from urifilter_redis import UriFilter
from urifilter_redis.base_blocking import connect, list_filters
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.bloom.retention import period_of, seconds_of
from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows.lifecycle import restore_by_hand
from urifilter_redis.service.logs import on_hangup, reopen
from urifilter_redis.storage.backends import ARCHIVE_VARIABLE, named_backend
from urifilter_redis.worker import Worker

from .common import Shared, counted, filter_name, moment, pass_shared, print_json, quiet_option, say, shared
from .daemon import add_stop_and_status, background, daemon_options
from .progress import steps
from .signals import Interrupted, Signals

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("urifilter_redis.worker")


@click.command()
@click.argument("name", type=filter_name)
@click.option("--full", is_flag=True, help="Write all shards, also those that have not changed.")
@quiet_option
@shared
@pass_shared
def checkpoint(options: Shared, name: str, *, full: bool, quiet: bool) -> None:
    """Write the changed shards of a filter to its archive. Inserts go on meanwhile.

    \b
    Example:
      urifilter checkpoint news --archive file:///var/lib/urifilter/archive
    """
    with UriFilter.open(name, **options.filter()) as opened, steps(opened, name, quiet=quiet):
        done = opened.checkpoint(full=full)
        shards = opened.config.shards
    text = f"{name}: checkpoint {done.number}: {done.shards} of {shards} shards, {size_text(done.size)}"
    options.tell({"filter": name, **asdict(done)}, text, quiet=quiet)


@click.command()
@click.argument("name", type=filter_name)
@quiet_option
@shared
@pass_shared
def restore(options: Shared, name: str, *, quiet: bool) -> None:
    """Restore a filter from its archive: shards that Redis has lost, or has in an older state.

    What was inserted after the checkpoint may be answered new once more. As you know that, it acknowledges, too.

    \b
    Example:
      urifilter restore news --archive file:///var/lib/urifilter/archive
    """
    wanted = ClientOptions(name, options.archive, **options.where())
    connector, session = connect(wanted)
    with UriFilter(wanted, connector, session) as opened:
        drive(restore_by_hand(session), connector, session.check)
        done = opened.restored
        if not opened.config.has_backend:
            raise click.UsageError(f"{name} was made without an archive")
        if named_backend(options.archive) is None:
            raise click.UsageError("from where? Say --archive or set URIFILTER_ARCHIVE")
    for problem in done.problems if done else ():
        say(f"urifilter: {problem}; something older was used")
    text = "nothing to restore: Redis has what the archive has"
    if done:
        since = f" of {moment(done.begun)}" if done.begun else ""
        text = f"restored {counted(done.shards, 'shard')} to checkpoint {done.checkpoint}{since}"
    options.tell({"filter": name, **(asdict(done) if done else {"shards": 0})}, f"{name}: {text}", quiet=quiet)


@click.command()
@click.argument("name", type=filter_name)
@quiet_option
@shared
@pass_shared
def acknowledge(options: Shared, name: str, *, quiet: bool) -> None:
    """Note that you know of what restores of a filter may have lost.

    A restore that nobody asked for stays an error in doctor, info, the page and the metrics until then.

    \b
    Example:
      urifilter acknowledge news
    """
    with UriFilter.open(name, archive="", **options.where()) as opened:
        shards = opened.acknowledge()
    done = f"restores of {counted(shards, 'shard')} acknowledged" if shards else "nothing to acknowledge"
    options.tell({"filter": name, "shards": shards}, f"{name}: {done}", quiet=quiet)


class _Stop:
    """Ends the work between two steps, or a sleep, when a signal asks to stop."""

    def __init__(self, signals: Signals) -> None:
        self._signals, self._raised = signals, False

    def check(self) -> None:
        """Raise Interrupted once, so that a second signal does not interrupt the cleaning up."""
        if not self._raised:
            try:
                with self._signals.allowed():
                    pass
            except Interrupted:
                self._raised = True
                raise

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Interrupted."""
        with self._signals.allowed():
            self._signals.wait(seconds=seconds)


def _log_to(path: Path | None) -> None:
    handler = WatchedFileHandler(path) if path else logging.StreamHandler()  # which finds that a file was renamed
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    top = logging.getLogger("urifilter_redis")
    top.addHandler(handler)
    top.setLevel(logging.INFO)


@click.group(invoke_without_command=True)
@click.option(
    "--filter",
    "names",
    type=filter_name,
    multiple=True,
    metavar="NAME",
    help="Look after this filter only; may be given several times.",
)
@click.option("--checkpoint-every", default="5m", show_default=True, metavar="TIME", help="45s, 10m, 6h, 1d.")
@click.option("--once", is_flag=True, help="Do one round, with a checkpoint of each filter, and end. For timers.")
@daemon_options
@shared
@pass_shared
@click.pass_context
def worker(
    context: click.Context,
    options: Shared,
    /,
    names: tuple[str, ...],
    checkpoint_every: str,
    *,
    once: bool,
    daemon: bool,
    pidfile: Path | None,
    log_file: Path | None,
) -> None:
    """Write filters to their archive, rotate them on time, and restore those that are lost.

    Looks after all filters, also those that only the archive has. Any number of workers may run; one at a time looks
    after a filter. SIGTERM ends a worker between two steps.

    \b
    Example:
      urifilter worker --archive file:///var/lib/urifilter/archive --checkpoint-every 5m
    """
    if context.invoked_subcommand is not None:
        return
    if once and daemon:
        raise click.UsageError("--once ends by itself, and --daemon would hide its exit code: leave one of them out")
    every = float(seconds_of(period_of(checkpoint_every)))
    archive = options.archive or os.environ.get(ARCHIVE_VARIABLE)
    backend = named_backend(archive)
    list_filters(**options.where())  # a wrong address is reported before the worker goes into the background
    if backend is not None:
        drive(backend.filters())
        drive(backend.close())
    with background(daemon=daemon, pidfile=pidfile, log_file=log_file), contextlib.ExitStack() as stack:
        _log_to(log_file)
        if log_file is not None:
            on_hangup(functools.partial(reopen, log_file, daemon))  # so it does not end then
        signals = stack.enter_context(Signals())
        stop = _Stop(signals)
        where = options.redis, options.prefix, archive, named_backend(archive)
        work = Worker(*where, every, names, stop.check, timeouts=options.where()["timeouts"])
        try:
            if once:
                done = work.once(force=True)
                if options.json:
                    print_json([asdict(each) for each in done])
                if any(each.error for each in done):
                    sys.exit(2)
            else:
                which = f"filter {', '.join(names)}" if names else "all filters"
                log.info("begun: looks after %s, a checkpoint every %s", which, checkpoint_every)
                work.run(stop.sleep)
        except Interrupted:
            if once:
                raise
            log.info("stopped")


add_stop_and_status(worker, "worker")
