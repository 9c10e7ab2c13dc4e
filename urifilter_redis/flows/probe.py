"""The probe of a server: what the scripts need and do not have, and which scripts it refuses to run for this user."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.engine.queries import ask, masters_without
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ServerUnavailable, Unsupported
from urifilter_redis.protocol import calls, scripts
from urifilter_redis.protocol.acl import MEND
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.outcomes import nonsense, text_in, to_fields

log = logging.getLogger("urifilter_redis")

#: The oldest server whose scripting and commands suffice (HRANDFIELD, script effects replication).
OLDEST = (6, 2)

#: The servers on which the scripts run.
SUPPORTED = "use Redis 6.2 or newer, or Valkey"

#: The advice for a supported server that does not know a command.
RENAMED = "take rename-command for them out of its configuration, or use a server that has all commands"

#: The fields of INFO with a server's version, and the server's name. All servers also have ``redis_version``: that of
#: the Redis that they resemble.
_VERSIONS = {
    "valkey_version": "Valkey",
    "dragonfly_version": "Dragonfly",
    "kvrocks_version": "Kvrocks",
    "garnet_version": "Garnet",
    "redis_version": "Redis",
}

_UNKNOWN = re.compile(r"unknown command\W+(\w+)", re.IGNORECASE)


def check_server(session: Session) -> Flow[None]:
    """Check, before a filter is opened, that the server has all that the scripts need.

    Note their commands that this user may not run, for ``check_rights``.

    Raises:
        Unsupported: the scripts do not run on the server; nothing was written.
    """
    found = yield from probe(session)
    if found.lacks:
        info = yield from _info(session)
        text = f"the scripts do not run on {name_of(info)}: {found.lacks}: {remedy(found, info)}"
        raise Unsupported(f"{session.where}: {text}")
    session.forbidden = found.forbidden


def check_module(session: Session, layout: str) -> Flow[None]:
    """Check that the server has the commands BF.* if the layout needs them; note those that this user may not run.

    An old module that does not know all of their arguments does not do.

    Raises:
        Unsupported: the server does not have them.
    """
    if layout != REDISBLOOM:
        return
    found = yield from probe(session, layout)
    if found.lacks:
        advice = "use Redis 8, or load RedisBloom (2.8 was tried), or take layout blocked, which needs no module"
        raise Unsupported(f"{session.where}: layout redisbloom needs {', '.join(found.unknown)}: {advice}")
    if lacking := (yield from masters_without(session, "BF.MADD")):  # one of them has been probed
        which = "one of them" if session.discreet else ", ".join(lacking)
        text = f"layout redisbloom needs BF.* on each master, and {which} does not know them"
        raise Unsupported(f"{session.where}: {text}: load RedisBloom there, or take layout blocked")
    if "valkey_version" in (yield from _info(session)):  # the commands of valkey-bloom were not tried
        raise Unsupported(f"{session.where}: layout redisbloom is not for Valkey: take layout blocked")
    session.forbidden = (*session.forbidden, *found.forbidden)


def has_module(session: Session) -> Flow[bool]:
    """Whether a filter of layout redisbloom can be made here, as far as this user may know."""
    try:
        found = yield from probe(session, REDISBLOOM)
        if found.lacks or found.forbidden or "valkey_version" in (yield from _info(session)):
            return False
        return not (yield from masters_without(session, "BF.MADD"))
    except ServerUnavailable:
        return False


def _info(session: Session) -> Flow[dict[str, str]]:
    """Return the fields of INFO about the server; none if this user may not ask, it does not know INFO, or is away."""
    try:
        (reply,) = yield from ask(session, ("INFO", "server"))
    except ServerUnavailable:
        return {}
    return to_fields(reply)


def check_rights(session: Session) -> None:
    """Check this user's rights once a filter is open; log the scripts, other than ``contains``, that are refused.

    Raises:
        ServerUnavailable: this user may not run ``contains``.
    """
    if not session.forbidden:
        return
    refused = refused_scripts(session.config, session.forbidden)
    text = f"this user may not run {', '.join(session.forbidden)}, so {', '.join(refused)} will be refused"
    if "contains" in refused:
        raise ServerUnavailable(f"{session.where}: {text}: {MEND}")
    log.debug("%s: %s: %s unless that is meant", session.where, text, MEND)  # no client knows whether it is


def refused_scripts(config: Config, forbidden: tuple[str, ...]) -> list[str]:
    """Return the names of the scripts of a filter that call a forbidden command.

    A script that does so only in shards with claims is named so.
    """
    found = []
    for name, layouts in scripts.COMMANDS.items():
        if name == "probe" or (layouts and config.layout not in layouts):
            continue
        made_for = (config.layout, config.k)
        if any(map(scripts.load(name, *made_for).calls, forbidden)):
            found.append(name)
        elif any(map(scripts.load(name, *made_for, claims=True).calls, forbidden)):
            found.append(f"{name} with claims")
    return found


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of the script ``probe``.

    Attributes:
        forbidden: the commands that the scripts call and that this user may not run.
        unknown: the commands that the scripts call and that the server does not know.
        missing: the functions that the scripts call and that the server's Lua does not have.
    """

    forbidden: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def lacks(self) -> str:
        """A text about the needs of the scripts that the server does not meet; empty if it meets all."""
        texts = [f"it does not know {', '.join(self.unknown)}"] if self.unknown else []
        texts += [f"its Lua does not have {', '.join(self.missing)}"] if self.missing else []
        return " and ".join(texts)


def probe(session: Session, layout: str = "", keys: FilterKeys | None = None) -> Flow[Probed]:
    """Return the commands and functions that the scripts need and do not have; for redisbloom those of the module.

    ``keys`` are those at which commands are tried; None: the session's.

    Raises:
        ServerUnavailable: the server is away, or refuses scripts: this user may not run or load them, say.
    """
    try:
        (reply,) = yield from ask(session, calls.probe((keys or session.keys).shard(0), layout))
    except ServerUnavailable as error:
        if command := _UNKNOWN.search(str(error)):  # a server without scripts
            return Probed(unknown=(command[1].upper(),))
        raise
    try:
        forbidden, unknown, missing = (tuple(map(text_in, names)) for names in reply)
    except (TypeError, ValueError) as error:
        raise nonsense(reply) from error
    return Probed(forbidden, unknown, missing)


def remedy(found: Probed, info: Mapping[str, str]) -> str:
    """Return the advice for a server that lacks something; ``info`` has its fields of INFO, or none."""
    others = _VERSIONS.keys() - {"valkey_version", "redis_version"}
    return SUPPORTED if found.missing or is_old(info) or others & info.keys() else RENAMED


def is_old(info: Mapping[str, str]) -> bool:
    """Whether a server is older than the oldest one that suffices, or its fields of INFO do not tell its version."""
    version = info.get("redis_version", "0")
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST


def name_of(info: Mapping[str, str]) -> str:
    """Return the name and version of a server from the fields of INFO; ``this server`` if they do not tell."""
    names = (f"{name} {info[field]}" for field, name in _VERSIONS.items() if info.get(field))
    return next(names, "this server")
