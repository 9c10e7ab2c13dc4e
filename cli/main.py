"""The group of all commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

import click

from urifilter_redis._starting import started
from urifilter_redis._version import __version__

from .common import Group, say, shared
from .streams import drop_unwritten, explained, take_closed

#: The module of each command, and the first sentence of its help. So --help loads no command, and a command loads no
#: other.
_COMMANDS: dict[str, tuple[str, str]] = {
    "acknowledge": ("worker", "Note that you know of what restores of a filter may have lost."),
    "add": ("items", "Insert the lines of files, or of stdin."),
    "archive": ("archive", "Look at an archive, verify it, and clean it up."),
    "beat": (
        "claims",
        "Give a sign of life for HOLDER, which `urifilter claim` has told, and print how much it has in flight.",
    ),
    "check": ("items", 'Print "seen" or "new" and a tab before each line, without inserting it.'),
    "checkpoint": ("worker", "Write the changed shards of a filter to its archive."),
    "claim": ("claims", "Print the lines of files, or of stdin, that are neither seen nor in flight, and claim them."),
    "claims": (
        "claims",
        "List what is in flight in a filter: the item, its holder, failures, lapses, and the seconds of its lease.",
    ),
    "commit": (
        "claims",
        "Make the lines of files, or of stdin, final, whoever has them in flight: they are seen from now on.",
    ),
    "create": ("filters", "Make a filter; if it exists with these settings, do nothing."),
    "dedupe": ("items", "Print the lines of files, or of stdin, that have not been seen before, in their order."),
    "digest": ("plan", "Print the digest of each item, a tab, and the item."),
    "doctor": ("doctor", "Check whether this server keeps the filters' promises, and say what to change."),
    "drop": ("filters", "Remove a filter, its items, and its copies in the archive."),
    "fingerprint": ("plan", "Print Scrapy's fingerprint of each URL: the item of a crawl that shares a filter."),
    "forget": ("items", "Make the lines of files, or of stdin, new again."),
    "dead-letters": (
        "claims",
        "List the dead letters in a filter, the latest first: the time, the item, failures, lapses and the reason.",
    ),
    "import": ("importing", "Insert the members of a Redis set, or the lines of files or of stdin, into a filter."),
    "info": ("filters", "Show a filter's configuration and state, and each live slice, newest first."),
    "list": ("filters", "List the filters."),
    "lua": ("lua", "Show, load and export the Lua scripts."),
    "plan": ("plan", "Show the cost of a filter, for every layout and several error rates."),
    "reclaim": ("claims", "Print lines whose lease is over, or that were released and are due, and claim them."),
    "release": (
        "claims",
        "Give back the lines of files, or of stdin, that are in flight: `urifilter reclaim` offers them again.",
    ),
    "remove": ("items", "Remove the lines of files, or of stdin, from a filter of layout counting."),
    "restore": ("worker", "Restore a filter from its archive: shards that Redis has lost, or has in an older state."),
    "rotate": ("rotation", "Close today's slice of ring and rolling filters, begin the next, let the oldest expire."),
    "serve": ("serve", "Answer crawlers over HTTP: POST a list of URIs, get back those that nobody has seen."),
    "token": ("token", "Access tokens for `urifilter serve`."),
    "union": ("rotation", "Insert all items of the SOURCES into TARGET."),
    "worker": ("worker", "Write filters to their archive, rotate them on time, and restore those that are lost."),
}


class _Commands(Mapping[str, click.Command]):
    """The commands by their names; a command is loaded when it is asked for, and until then Ctrl-C ends the process."""

    def __getitem__(self, name: str) -> click.Command:
        module = importlib.import_module(f".{_COMMANDS[name][0]}", __package__)
        started()
        attribute = name.replace("-", "_")
        return cast("click.Command", getattr(module, attribute if hasattr(module, attribute) else f"{attribute}_"))

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class Program(Group):
    """The group of all commands, as a process runs it."""

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command, also with standard streams that are closed or broken."""
        take_closed()
        try:
            return super().main(*args, **more)
        except OSError as error:  # --help and --version print before there is a command
            say(f"urifilter: {explained(error)}")
            sys.exit(2)
        finally:
            drop_unwritten()


@click.group(
    cls=Program,
    commands=cast("dict[str, click.Command]", _Commands()),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="urifilter")
@shared
def main() -> None:
    """Has anybody seen this URI? A shared answer for many crawlers, inside Redis or Valkey.

    Without --redis and URIFILTER_REDIS_URL an embedded server is used, whose data is in the user's data folder.

    \b
    Example:
      urifilter dedupe urls.txt > new.txt
    """
