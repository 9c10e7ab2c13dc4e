"""Logs: text, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JsonFormatter", "configuration"]


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
    """Return what ``logging.config.dictConfig`` takes, for ``text`` or ``json`` to a file or stderr."""
    stream: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": kind}
    if file is not None:
        stream |= {"class": "logging.FileHandler", "filename": str(file)}
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
