"""The rights of this user: the commands of the scripts that the server refuses to run for them."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from urifilter_redis.engine.queries import ask
from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.protocol import calls, scripts
from urifilter_redis.protocol.acl import MEND, is_of_part
from urifilter_redis.protocol.outcomes import text_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = ["read_rights", "refused_scripts", "then_check_rights"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("urifilter_redis")


def read_rights(session: Session) -> Flow[tuple[str, ...]]:
    """Return the commands that the scripts call and that this user may not run.

    Raises:
        ServerUnavailable: the server is away, or this user may not run or load scripts.
    """
    (names,) = yield from ask(session, calls.probe(session.keys.shard(0)))
    return tuple(map(text_in, names))


def refused_scripts(config: Config, forbidden: tuple[str, ...]) -> list[str]:
    """Return the names of the scripts of a filter that call a forbidden command.

    A script that does so only in shards with claims is named so.
    """
    found = []
    for name, layouts in scripts.COMMANDS.items():
        if name == "probe" or (layouts and config.layout not in layouts):
            continue
        made_for = (config.layout, config.k) if layouts else ()
        if any(map(scripts.load(name, *made_for).calls, forbidden)):
            found.append(name)
        elif any(map(scripts.load(name, *made_for, claims=True).calls, forbidden)):
            found.append(f"{name} with claims")
    return found


def then_check_rights(flow: Callable[Concatenate[Session, P], Flow[T]]) -> Callable[Concatenate[Session, P], Flow[T]]:
    """Wrap a flow that opens a filter: afterwards it notes the forbidden commands and logs the scripts that need them.

    It is a warning, unless the user has just the rights of a reader or a crawler.

    The wrapped flow raises ServerUnavailable if the script ``contains`` needs a forbidden command.
    """

    @functools.wraps(flow)
    def checked(session: Session, /, *arguments: P.args, **named: P.kwargs) -> Flow[T]:
        found = yield from flow(session, *arguments, **named)
        session.forbidden = yield from read_rights(session)
        if session.forbidden:
            refused = refused_scripts(session.config, session.forbidden)
            text = f"this user may not run {', '.join(session.forbidden)}, so {', '.join(refused)} will be refused"
            if "contains" in refused:
                raise ServerUnavailable(f"{session.where}: {text}: {MEND}")
            level = logging.INFO if is_of_part(session.forbidden) else logging.WARNING
            log.log(level, "%s: %s: %s unless that is meant", session.where, text, MEND)
        return found

    return checked
