"""The group of all commands."""

from __future__ import annotations

import sys
from typing import Any

import click

from urifilter_redis._starting import started
from urifilter_redis._version import __version__

from .archive import archive
from .common import Group, say, shared
from .doctor import doctor
from .filters import create, drop, info, list_
from .items import add, check, dedupe, forget, remove
from .lua import lua
from .moving import import_
from .plan import digest, plan
from .rotation import rotate, union
from .serve import serve
from .streams import drop_unwritten, explained, take_closed
from .token import token
from .upgrade import upgrade
from .worker import checkpoint, restore, worker

__all__ = ["main"]


class Program(Group):
    """The group of all commands, as a process runs it."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command, also with standard streams that are closed or broken."""
        take_closed()
        try:
            started()
            return super().main(*args, **more)
        except OSError as error:  # --help and --version print before there is a command
            say(f"urifilter: {explained(error)}")
            sys.exit(2)
        finally:
            drop_unwritten()


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="urifilter")
@shared
def main() -> None:
    """Has anybody seen this URI? A shared answer for many crawlers, inside Redis or Valkey.

    Without --redis and URIFILTER_REDIS_URL an embedded server is used, whose data is in the user's data folder.

    \b
    Example:
      urifilter dedupe urls.txt > new.txt
    """


for command in (
    create, list_, info, drop, rotate, union, checkpoint, restore, archive, worker, add, check, dedupe, forget, remove,
    import_, serve, token, plan, digest, lua, doctor, upgrade,
):  # fmt: skip
    main.add_command(command)
