"""Settings that are read again on SIGHUP, while the service runs.

With several workers the parent reads them, and tells its workers by a file and a SIGHUP. Every process takes a wrong
file for none, and keeps the settings that it has.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter

from urifilter_redis.errors import UriFilterError
from urifilter_redis.service import FOLDER_VARIABLE
from urifilter_redis.service.settings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIVE", "merged", "on_hangup", "publish", "published", "read_again"]

log = logging.getLogger("urifilter_redis.service")

#: The settings that change while the service runs; all others wait for a restart.
LIVE = ("log_requests", "tokens", "trusted_proxies")

#: The errors of settings that are wrong, or cannot be read.
_WRONG = (ValueError, OSError, UriFilterError)

_FILE = "settings.json"

#: The form of each of them.
_KINDS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(get_type_hints(ServiceSettings)[name]) for name in LIVE}


def on_hangup(act: Callable[[], object]) -> None:
    """Call a function after each SIGHUP, in a thread of its own: the code that a signal interrupts may hold any lock.

    SIGHUP is let through from now on.
    """
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def answer() -> None:
        while True:
            asked.get()
            try:
                act()
            except Exception:
                log.exception("SIGHUP: the service has a bug, and goes on as it was")

    threading.Thread(target=answer, daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: asked.put(None))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def read_again(old: ServiceSettings, read: Callable[[], ServiceSettings]) -> ServiceSettings | None:
    """Read the settings again, and log the outcome.

    Args:
        old: the settings that the service has.
        read: reads those of flags, environment and file.

    Returns:
        The settings that the service is to have; None: those that it has stay.
    """
    try:
        new = read()
        found = merged(old, new)
    except _WRONG as error:
        text = "; ".join(line.strip() for line in str(error).splitlines())
        log.error("SIGHUP: the old settings stay: %s", text)  # noqa: TRY400 - the text says it all
        return None
    changed = [name for name in LIVE if getattr(found, name) != getattr(old, name)]
    log.info("SIGHUP: the settings were read again; changed: %s", ", ".join(changed) or "nothing")
    waiting = [name for name in sorted(ServiceSettings.model_fields) if getattr(new, name) != getattr(found, name)]
    if waiting:
        log.warning("SIGHUP: these settings change only with a restart: %s", ", ".join(waiting))
    return found


def merged(old: ServiceSettings, new: ServiceSettings) -> ServiceSettings:
    """Return the settings of a running service with those that may change taken from others.

    Raises:
        ValueError: the first token would come, or the last one go, and with it the rules about who may ask.
    """
    if bool(old.tokens) != bool(new.tokens):
        text = "has no tokens, so the first one" if new.tokens else "has tokens, so going without any"
        raise ValueError(f"tokens: the service {text} needs a restart")
    return old.model_copy(update={name: getattr(new, name) for name in LIVE})


def publish(settings: ServiceSettings) -> bool:
    """Write the settings that may change down for the workers, and log it if that fails.

    Returns:
        Whether they are there.
    """
    file = _published_file()
    part = file.with_suffix(".part")
    try:
        part.write_text(settings.model_dump_json(include=set(LIVE)))
        part.replace(file)
    except OSError as error:
        log.error("SIGHUP: the old settings stay: %s", error)  # noqa: TRY400 - likewise
        return False
    return True


def published(old: ServiceSettings) -> ServiceSettings | None:
    """Return the settings that the parent has written down; None: those that the worker has stay."""
    try:
        found = json.loads(_published_file().read_bytes())
    except FileNotFoundError:  # nothing was read again, and SIGHUP came for the log
        return None
    new = old.model_copy(update={name: kind.validate_python(found[name]) for name, kind in _KINDS.items()})
    if new == old:
        return None
    log.info("SIGHUP: the new settings are in use")
    return new


def _published_file() -> Path:
    return Path(os.environ[FOLDER_VARIABLE]) / _FILE
