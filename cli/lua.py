"""``lua list|show|load|export``: the Lua scripts, for use by hand and from other languages."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shlex
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from urifilter_redis import UriFilter
from urifilter_redis.base_blocking import run
from urifilter_redis.bloom.digest import make_digester, shard_of
from urifilter_redis.bloom.sizing import BLOCKED_K, LAYOUTS
from urifilter_redis.engine.queries import ask, ask_masters
from urifilter_redis.engine.topology import GIVEN
from urifilter_redis.protocol import calls, claims
from urifilter_redis.protocol.claims import NO_HOLDER, Holding, new_delay_holder, new_holder
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.protocol.scripts import COMMANDS, INDEX, exported_files, files_in, load, variants
from urifilter_redis.transport.url import redis_cli

from .claims import holder_option, lease_option
from .common import Group, Shared, counted, filter_name, packed, pass_shared, say, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from urifilter_redis.protocol.keys import ShardKeys
    from urifilter_redis.protocol.scripts import Script

#: The commands of which ``show`` prints the call for items. reclaim and beat are about the shards of the items.
ABOUT_ITEMS = ("insert", "contains", "forget", "remove", "claim", "commit", "release", "reclaim", "beat")


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
    about = [{"name": name, "sha1": sha1, "purpose": purpose} for name, sha1, purpose in rows]
    options.tell_rows(about, ("name", "SHA1", "purpose"), rows)


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
    _load(options, scripts)
    found = {each.name: each.sha1 for each in scripts}
    options.tell(found, *map(" ".join, found.items()))


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

    _write_files(folder, files, is_ours)
    scripts = counted(sum(name.endswith(".lua") for name in files), "script")
    text = f"wrote {scripts}, {', '.join(name for name in files if not name.endswith('.lua'))} into {folder}"
    options.tell({"folder": str(folder), "files": list(files)}, text, write=say)


def _write_files(folder: Path, files: Mapping[str, bytes], may_replace: Callable[[Path], bool]) -> None:
    """Write files, given by their names, into a folder, which is made if it is missing.

    All files are written under temporary names first. So a full disk leaves the folder as it was. ``may_replace`` says
    whether an existing file, whose content differs, may be overwritten.

    Raises:
        ValueError: the folder has files that may not be overwritten; the message names some.
        OSError: the folder cannot be made or written to; the message has the reason.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder")
    mark = f".{secrets.token_hex(4)}.part"
    try:
        _check(folder, files, may_replace)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with (folder / (name + mark)).open("xb") as file:
                file.write(data)
        for name in files:
            (folder / (name + mark)).replace(folder / name)
    except OSError as error:
        raise OSError(f"{folder}: nothing was written: {error.strerror or error}") from error
    finally:
        for name in files:
            with contextlib.suppress(OSError):
                (folder / (name + mark)).unlink(missing_ok=True)


def _check(folder: Path, files: Mapping[str, bytes], may_replace: Callable[[Path], bool]) -> None:
    for name in files:
        if (folder / name).is_dir():
            raise ValueError(f"{folder / name} is a folder: remove it, or name another folder")
    kept = [
        name
        for name, data in files.items()
        if (path := folder / name).exists() and path.read_bytes() != data and not may_replace(path)
    ]
    if kept:
        more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""  # noqa: PLR2004 - names enough to find the cause
        advice = "name another folder, or overwrite them with --force"
        raise ValueError(f"{folder} has files of others: {', '.join(kept[:3])}{more}: {advice}")


@lua.command()
@click.argument("command", type=click.Choice(list(COMMANDS)))
@click.argument("name", type=filter_name, required=False)
@click.argument("items", metavar="[ITEM]...", nargs=-1)
@holder_option("A holder that has been drawn before, 16 hex digits.")
@lease_option("The time for which the holder lives.", default="60s")
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
def show(
    options: Shared,
    command: str,
    name: str | None,
    items: tuple[str, ...],
    holder: str | None,
    lease: float,
    layout: str | None,
    k: str,
) -> None:
    """Print the source of a script, or the redis-cli line that calls it for items of a filter.

    With NAME prints the source that this filter uses. Of several shards prints a line for each. claim, commit, release,
    reclaim and beat name a holder: without --holder, claim and reclaim draw one, and commit and release name none.

    \b
    Example:
      urifilter lua show insert news https://www.baidu.com/
    """  # fmt: skip
    if name is None:
        layout = layout or next(iter(COMMANDS[command]), "")
        click.echo(load(command, layout, int(k)).source, nl=False)
        return
    with UriFilter.open(name, **options.filter()) as opened:
        info = opened.info()  # it reads the live slices of all shards, for ``view``
        if not items:
            config, twin = opened.config, info.claims is not None
            click.echo(load(command, config.layout, config.k, claims=twin).source, nl=False)
            return
        if command not in ABOUT_ITEMS:
            raise click.UsageError(f"{command} is not about items; with an item: {', '.join(ABOUT_ITEMS)}")
        made = list(_calls(opened, options, command, items, _holding(command, holder, lease)))
        if "@" in opened.server:
            say("urifilter: this server wants a password: set REDISCLI_AUTH")
        nodes = _load(options, [call.script for call in made])
        for call in made:
            program = redis_cli(opened.server, follows=nodes != [GIVEN])
            click.echo(shlex.join([*program, *map(_word, call.command())]))
    if options.redis is None:
        say("urifilter: the embedded server runs only while a process uses it; for work by hand use --redis")


def _load(options: Shared, scripts: Sequence[Script]) -> list[str]:
    """Load scripts into each master; return the names of the masters."""
    loads = [("SCRIPT", "LOAD", each.source) for each in scripts]
    return list(run(lambda session: ask_masters(session, *loads), **options.where()))


def _holding(command: str, holder: str | None, lease: float) -> Holding:
    """Return the holder of the lines; claim and reclaim draw one, which is told on stderr."""
    if holder is None and command in {"claim", "reclaim"}:
        holder = new_holder()
        say(f"urifilter: the holder is {holder}")
    if holder is None and command == "beat":
        raise click.UsageError("beat takes the --holder that claim has drawn")
    return NO_HOLDER if holder is None else Holding(holder, round(lease * 1000))


def _calls(
    opened: UriFilter, options: Shared, command: str, items: tuple[str, ...], holding: Holding
) -> Iterator[calls.Call]:
    """Yield the call of each shard to which items belong."""
    config = opened.config
    given = [item.encode("utf-8", "surrogateescape") for item in items]
    by_shard: defaultdict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for digest, item in zip(
        make_digester(config.normalize, config.hash, config.seed, config.rules)(given), given, strict=True
    ):
        by_shard[shard_of(digest, config.shards)].append((digest, item))
    for shard, pairs in sorted(by_shard.items()):
        keys = FilterKeys(options.prefix, opened.name, config.shards).shard(shard)
        yield _call(command, opened, keys, _view(keys, opened.name, options), pairs, holding)


def _view(keys: ShardKeys, name: str, options: Shared) -> View:
    """Read the live slices of a shard, and whether it has claims: the script depends on that."""
    (meta,) = run(lambda session: ask(session, keys.read_meta), **options.where())
    return View.from_meta(to_mapping(meta), name)


def _word(word: str | bytes | float) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)


def _call(
    command: str, opened: UriFilter, keys: ShardKeys, view: View, pairs: list[tuple[bytes, bytes]], holding: Holding
) -> calls.Call:
    """Make the call to a shard, given the digest and the bytes of each item."""
    config, no_id, digests = opened.config, calls.NO_CALL_ID, [digest for digest, _ in pairs]
    if command == "claim":
        return claims.claim(config, keys, view, no_id, digests, [packed(item) for _, item in pairs], holding)
    if command == "commit":
        return claims.commit(config, keys, view, no_id, digests, holding)
    if command == "release":
        return claims.release(config.uid, keys, no_id, digests, holding, delay_holder=new_delay_holder())
    if command == "reclaim":
        return claims.reclaim(config.uid, keys, no_id, holding, claims.RECLAIMED_A_CALL)
    if command == "beat":
        return claims.beat(config.uid, keys, holding)
    return calls.items(command, config, keys, view, no_id, digests)
