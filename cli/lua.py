"""``lua list|show|load|export``: the Lua scripts, for use by hand and from other languages."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import click

from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher, shard_of
from urifilter_redis.bloom.sizing import BLOCKED_K, LAYOUTS
from urifilter_redis.client import run
from urifilter_redis.engine.batch import Digester
from urifilter_redis.engine.queries import ask
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.exported import INDEX, exported_files, files_in
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.scripts import COMMANDS, load, variants
from urifilter_redis.transport.addresses import redis_cli

from .common import Group, Shared, columns, counted, filter_name, pass_shared, print_json, say, shared
from .folders import write_files

__all__ = ["lua"]

ABOUT_ITEMS = ("insert", "contains", "forget", "remove")


@click.group(cls=Group)
@shared
def lua() -> None:
    """Show, load and export the Lua scripts.

    \b
    Example:
      urifilter lua show insert news https://www.baidu.com/
    """


@lua.command(name="list")
@shared
@pass_shared
def list_(options: Shared) -> None:
    """List the scripts with the SHA1 and the purpose of each.

    \b
    Example:
      urifilter lua list
    """
    rows = [
        (script.name, script.sha1, script.source.split("\n")[0].split(": ", 1)[1]) for script in variants(BLOCKED_K)
    ]
    if options.json:
        print_json([{"name": name, "sha1": sha1, "purpose": purpose} for name, sha1, purpose in rows])
    else:
        columns(("name", "SHA1", "purpose"), rows)


@lua.command(name="load")
@shared
@pass_shared
def load_(options: Shared) -> None:
    """Load all scripts into the server; print the name and SHA1 of each.

    \b
    Example:
      urifilter lua load --redis redis://localhost:6379/0
    """
    scripts = variants(BLOCKED_K)
    run(lambda session: ask(session, *(("SCRIPT", "LOAD", each.source) for each in scripts)), **options.where())
    if options.json:
        print_json({each.name: each.sha1 for each in scripts})
        return
    for each in scripts:
        click.echo(f"{each.name} {each.sha1}")


@lua.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Overwrite files in DIR that no earlier export wrote, or that were changed."
)
@shared
@pass_shared
def export(options: Shared, folder: Path, force: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Write all scripts into a folder, with an index and known answers, for programs in other languages.

    The index, scripts.json, has each script's file, SHA1, KEYS, ARGV, reply and error words. vectors.json has known
    digests, shards and tags. The page docs/reference/protocol.md describes their use.

    \b
    Example:
      urifilter lua export ./scripts
    """
    files, index = exported_files(), folder / INDEX
    written = files_in(index.read_bytes()) if index.is_file() else {}

    def is_ours(path: Path) -> bool:
        sha1 = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
        return force or (path == index and bool(written)) or written.get(path.name) == sha1

    write_files(folder, files, is_ours)
    if options.json:
        print_json({"folder": str(folder), "files": list(files)})
    else:
        scripts = counted(sum(name.endswith(".lua") for name in files), "script")
        say(f"wrote {scripts}, {', '.join(name for name in files if not name.endswith('.lua'))} into {folder}")


@lua.command()
@click.argument("command", type=click.Choice(list(COMMANDS)))
@click.argument("name", type=filter_name, required=False)
@click.argument("item", required=False)
@click.option("--layout", type=click.Choice(LAYOUTS), help="By default the first layout that has this script.")
@click.option(
    "--k",
    type=click.Choice([str(k) for k in BLOCKED_K]),
    default="12",
    show_default=True,
    help="Bits an item, in layout blocked.",
)
@shared
@pass_shared
def show(options: Shared, command: str, name: str | None, item: str | None, layout: str | None, k: str) -> None:
    """Print the source of a script, or the redis-cli line that calls it for an item of a filter.

    With NAME prints the source that this filter uses.

    \b
    Example:
      urifilter lua show insert news https://www.baidu.com/
    """  # fmt: skip
    if name is None:
        layout = layout or next(iter(COMMANDS[command]), "")
        click.echo(load(command, layout, int(k)).source, nl=False)
        return
    with UriFilter.open(name, **options.filter()) as opened:
        script = load(command, opened.config.layout, opened.config.k)
        if item is None:
            click.echo(script.source, nl=False)
            return
        if command not in ABOUT_ITEMS:
            raise click.UsageError(f"{command} is not about items; with an item: {', '.join(ABOUT_ITEMS)}")
        click.echo(_line(opened, options.prefix, command, item))
        run(lambda session: ask(session, ("SCRIPT", "LOAD", script.source)), **options.where())
    if options.redis is None:
        say("urifilter: the embedded server runs only while a process uses it; for work by hand use --redis")


def _line(opened: UriFilter, prefix: str, command: str, item: str) -> str:
    config = opened.config
    (digest,) = Digester(config.normalize, hasher(config.hash, config.seed))([item.encode("utf-8", "surrogateescape")])
    shard = shard_of(digest, config.shards)
    keys = FilterKeys(prefix, opened.name, config.shards, config.tags).shard(shard)
    call = calls.items(command, config, keys, opened.view(shard), calls.NO_CALL_ID, [digest])
    if "@" in opened.server:
        say("urifilter: this server wants a password: set REDISCLI_AUTH")
    return shlex.join([*redis_cli(opened.server), *(str(word) for word in call.command())])
