"""Logs: text, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JsonFormatter", "Seldom", "configuration", "reopen", "reopen_on_hangup"]

log = logging.getLogger("urifilter_redis.service")

#: Seconds after which the same is said again, doubled each time, up to the longest; after so long that nobody wanted to
#: say it, it begins anew.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Seldom:
    """Says whether something is to be said again: at once if it is new, and after pauses that grow if it is not.

    Attributes:
        has_passed: something was to be said.
    """

    def __init__(self) -> None:
        self.has_passed = False
        self._text, self._pause, self._next, self._asked = "", FIRST_PAUSE, 0.0, -LONGEST_PAUSE

    def passes(self, text: str = "") -> bool:
        """Whether this is to be said now."""
        now = time.monotonic()
        is_new = text != self._text or now >= self._asked + LONGEST_PAUSE
        self._asked = now
        if not is_new and now < self._next:
            return False
        self._pause = FIRST_PAUSE if is_new else min(2 * self._pause, LONGEST_PAUSE)
        self._text, self._next, self.has_passed = text, now + self._pause, True
        return True


class JsonFormatter(logging.Formatter):
    """Makes a line of JSON of a record: time (UTC), level, logger, process, message, and what else it carries."""

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
    """Return what ``logging.config.dictConfig`` takes, for ``text`` or ``json`` to a file or stderr.

    A file that was renamed or removed is made anew with the next line.
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


def reopen_on_hangup(file: Path, whole: bool) -> None:  # noqa: FBT001 - as reopen
    """Let SIGHUP do ``reopen``; in a thread, for whoever it interrupts may hold the log's lock."""
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reopen, args=(file, whole)).start())


def reopen(file: Path, whole: bool) -> None:  # noqa: FBT001 - passed on as a partial
    """Make a log file anew that was renamed, as logrotate wants it.

    Args:
        file: that logs go to.
        whole: stdout and stderr go there, too.
    """
    log.info("SIGHUP: the log goes on in %s", file)  # which makes it
    if whole:
        with file.open("a") as anew:
            for stream in (1, 2):
                os.dup2(anew.fileno(), stream)
