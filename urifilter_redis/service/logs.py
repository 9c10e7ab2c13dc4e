"""Logs: lines of text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from urifilter_redis.service.tokens import TOKEN_BEGINS

log = logging.getLogger("urifilter_redis.service")

#: Seconds until a message may be repeated. They double with each repeat, up to the longest pause. After a
#: silence of the longest pause a message counts as new.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


def shape_of(text: str) -> str:
    """Return what a log may tell of a text that may be a secret: its length, and whether it begins as a token does."""
    kind = ", like a token" if text.startswith(TOKEN_BEGINS) else ""
    return f"<{len(text)} characters{kind}>"


def without(text: str, secret: str) -> str:
    """Return a text with the shape of what may be a secret in its place."""
    ends = "[A-Za-z0-9]"  # a token may end with a hyphen, and then there is no end of a word behind it
    return re.sub(rf"(?<!{ends}){re.escape(secret)}(?!{ends})", shape_of(secret), text)


class Seldom:
    """Decides whether a message is logged: a new one at once, a repeated one after pauses that grow."""

    def __init__(self) -> None:
        self.has_passed = False
        self._text, self._pause, self._next, self._asked = "", FIRST_PAUSE, 0.0, -LONGEST_PAUSE

    def passes(self, text: str = "") -> bool:
        """Whether this message is to be logged now."""
        now = time.monotonic()
        is_new = text != self._text or now >= self._asked + LONGEST_PAUSE
        self._asked = now
        if not is_new and now < self._next:
            return False
        self._pause = FIRST_PAUSE if is_new else min(2 * self._pause, LONGEST_PAUSE)
        self._text, self._next, self.has_passed = text, now + self._pause, True
        return True


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON; the fields that it carries stand in place of its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
        }
        more = getattr(record, "fields", None)
        fields |= more if isinstance(more, dict) else {"message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def configuration(kind: str, file: Path | None = None) -> dict[str, Any]:
    """Return a configuration for ``logging.config.dictConfig``: ``text`` or ``json``, on stderr or into a file.

    The file is made anew with the next line if it was renamed or removed.
    """
    stream: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": kind}
    if file is not None:
        stream |= {"class": "logging.handlers.WatchedFileHandler", "filename": str(file)}
    text = {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"text": text, "json": {"()": "urifilter_redis.service.logs.JsonFormatter"}},
        "handlers": {"stream": stream},
        "loggers": {
            name: {"handlers": ["stream"], "level": "INFO", "propagate": False}
            for name in ("uvicorn", "urifilter_redis")
        },
    }


def reopen(file: Path, whole: bool) -> None:  # noqa: FBT001 - passed on as a partial
    """Make a renamed log file anew, as logrotate expects it; ``whole``: stdout and stderr go there, too."""
    log.info("SIGHUP: the log goes on in %s", file)  # this line makes the file
    if whole:
        with file.open("a") as anew:
            for stream in (1, 2):
                os.dup2(anew.fileno(), stream)


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
                log.exception("SIGHUP: this is a bug; all goes on as it was")

    threading.Thread(target=answer, daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: asked.put(None))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
