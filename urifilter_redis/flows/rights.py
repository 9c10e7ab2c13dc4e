"""The rights of this user: the scripts that the server refuses to run for them."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.flows.probing import check_server
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.acl import MEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = ["on_a_checked_server", "refused_scripts"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("urifilter_redis")


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


def on_a_checked_server(flow: Callable[Concatenate[Session, P], Flow[T]]) -> Callable[Concatenate[Session, P], Flow[T]]:
    """Wrap a flow that opens a filter: before it, the server is checked; after it, this user's rights.

    The wrapped flow notes the forbidden commands, and logs the scripts that need them. It raises ServerUnavailable if
    the scripts do not run on the server, with nothing written, or if the script ``contains`` needs a forbidden command.
    """

    @functools.wraps(flow)
    def checked(session: Session, /, *arguments: P.args, **named: P.kwargs) -> Flow[T]:
        session.forbidden = yield from check_server(session)
        found = yield from flow(session, *arguments, **named)
        _check_rights(session)
        return found

    return checked


def _check_rights(session: Session) -> None:
    if not session.forbidden:
        return
    refused = refused_scripts(session.config, session.forbidden)
    text = f"this user may not run {', '.join(session.forbidden)}, so {', '.join(refused)} will be refused"
    if "contains" in refused:
        raise ServerUnavailable(f"{session.where}: {text}: {MEND}")
    log.debug("%s: %s: %s unless that is meant", session.where, text, MEND)  # no client knows whether it is
