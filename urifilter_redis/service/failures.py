"""What goes wrong, as the service tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from urifilter_redis.errors import (
    AnswerLost,
    ArchiveError,
    BadItem,
    ConfigMismatch,
    FilterFull,
    FilterNotFound,
    Restoring,
    ServerUnavailable,
    SliceLost,
    TooLarge,
    UriFilterError,
)
from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.protocol.outcomes import SCRIPT_ERRORS

__all__ = ["ANSWER_HEADERS", "LATER", "RETRY_AFTER", "Refusal", "refusal_of"]

#: Seconds after which to ask again, as a 429 or 503 says.
RETRY_AFTER = 1

#: The first that an error is one of is its code.
_CODES: tuple[tuple[type[UriFilterError], str], ...] = (
    (AnswerLost, "answer_lost"),
    (ServerUnavailable, "server_unavailable"),
    (TooLarge, "server_unavailable"),
    (Restoring, "restoring"),
    (FilterNotFound, "filter_not_found"),
    (ConfigMismatch, "config_mismatch"),
    (SliceLost, "slice_lost"),
    (FilterFull, "filter_full"),
    (BadItem, "bad_item"),
    (ArchiveError, "archive_unavailable"),
    (UriFilterError, "refused"),
)

#: What is told of servers whose addresses are nobody's business; the log has what they said.
_TEXTS = {
    "answer_lost": "it ended half-way, and some may have been inserted: repeat the request under its Idempotency-Key",
    "archive_unavailable": "the filter's archive is away, or damaged",
    "server_unavailable": "Redis is away, or refuses; nothing was inserted",
}

#: What is told of a bitmap, and not which key it was.
_LOST = "Redis has lost a bitmap of the filter: restore it from its archive, or drop it and create it anew"

#: Of every answer: it is for who asked, once, and it is what it says it is.
ANSWER_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: The scripts' words for what went wrong, which are for the library.
_WORDS = re.compile(rf"\b(?:{'|'.join(SCRIPT_ERRORS)}) ")

#: Statuses of HTTP that say when to ask again.
LATER = {429, 503}


class Refusal(Exception):
    """A request that is answered with an error.

    Attributes:
        code: one of ``http_api.ERROR_CODES``.
        more: fields of the answer beside ``error_code`` and ``error``.
        headers: of the answer.
        detail: for the log alone.
    """

    detail = ""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.more = dict(more or {})
        self.headers = dict(headers or {})
        if self.status in LATER:
            self.headers["Retry-After"] = str(RETRY_AFTER)

    @property
    def status(self) -> HTTPStatus:
        """Of HTTP."""
        return ERROR_CODES[self.code].status

    @property
    def content(self) -> dict[str, Any]:
        """The answer."""
        return {"error_code": self.code, "error": str(self), **self.more}


def refusal_of(error: UriFilterError, field: str | None = None) -> Refusal:
    """Say what the library raised.

    Args:
        error: what it raised.
        field: of the answer that tells what did arrive, None for each item without an answer; None for a question
            that inserts nothing.
    """
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    more: dict[str, Any] = {"indices": error.indices} if isinstance(error, BadItem) else {}
    if field and error.answers is not None and any(answer is not None for answer in error.answers):
        more[field] = (
            error.answers if field == "ages" else [None if each is None else each == 1 for each in error.answers]
        )
        code = "answer_lost"  # something was done: whoever asks again must do so under the same key
    away = isinstance(error, ServerUnavailable | ArchiveError)
    told = _LOST if isinstance(error, SliceLost) else _WORDS.sub("", str(error))
    text = told if code not in _TEXTS else _TEXTS[code] if away else f"{_TEXTS[code]} ({told})"
    refusal = Refusal(code, text, more=more)
    refusal.detail = str(error) if away or told is _LOST else ""
    return refusal
