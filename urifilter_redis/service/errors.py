"""The errors of the library, as the service answers them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from urifilter_redis import errors
from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.protocol.outcomes import SCRIPT_ERRORS, TO_DO_IF_LOST

#: Seconds after which a client should ask again: the Retry-After of a 429 or 503.
RETRY_AFTER = 1

#: The first class that an error belongs to decides its code.
_CODES: tuple[tuple[type[errors.UriFilterError], str], ...] = (
    (errors.AnswerLost, "answer_lost"),
    (errors.ServerFull, "server_full"),
    (errors.TooLarge, "server_full"),
    (errors.ServerUnavailable, "server_unavailable"),
    (errors.Unsupported, "unsupported"),
    (errors.Restoring, "restoring"),
    (errors.FilterNotFound, "filter_not_found"),
    (errors.ConfigMismatch, "config_mismatch"),
    (errors.SliceLost, "slice_lost"),
    (errors.FilterFull, "filter_full"),
    (errors.OverCapacity, "over_capacity"),
    (errors.BadItem, "bad_item"),
    (errors.ArchiveError, "archive_unavailable"),
    (errors.UriFilterError, "refused"),
)

#: The texts for errors of servers, whose addresses and words are for the log alone.
_TEXTS = {
    "answer_lost": "the request ended half-way, and some items may be inserted: repeat it under its Idempotency-Key",
    "archive_unavailable": "the filter needs its archive, which is away or damaged",
    "server_full": "Redis's memory is full: {done}; raise maxmemory, or drop a filter, then repeat the request",
    "server_unavailable": "Redis is away, or refuses: {done}; repeat the request later",
}

#: The text for a lost bitmap; its key is for the log alone.
_LOST = f"Redis has lost a bitmap of the filter: {TO_DO_IF_LOST}"

#: Headers of every answer: no cache keeps it, and no browser guesses another type.
ANSWER_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: The scripts' error words, which are for the library.
_WORDS = re.compile(rf"\b(?:{'|'.join(SCRIPT_ERRORS)}) ")

#: HTTP statuses whose answers say when to ask again.
LATER = {429, 503}


class Refusal(Exception):
    """A request that is answered with an error.

    Attributes:
        code: the error code, one of ``http_api.ERROR_CODES``.
        more: the fields of the answer beside ``error_code`` and ``error``.
        headers: the headers of the answer.
        detail: the text for the log alone; empty if there is none.
        hold: the seconds to wait before it is answered.
    """

    detail = ""
    hold = 0.0

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
            self.headers.setdefault("Retry-After", str(RETRY_AFTER))

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status of the answer."""
        return ERROR_CODES[self.code].status

    @property
    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error_code": self.code, "error": str(self), **self.more}


def refusal_of(error: errors.UriFilterError, field: str | None = None) -> Refusal:
    """Turn an error of the library into the service's answer.

    ``field`` of the answer gets the answers that arrived, with None for each item without one; it is None for a request
    that changes nothing.
    """
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    more: dict[str, Any] = {"indices": error.indices} if isinstance(error, errors.BadItem) else {}
    if field and error.answers is not None and any(answer is not None for answer in error.answers):
        more[field] = (
            error.answers if field == "ages" else [None if each is None else each == 1 for each in error.answers]
        )
        if code not in {"refused", "filter_full"}:  # of these no repeat gets the rest
            code = "answer_lost"  # a part was done, so a repeat must have the same key
    away = isinstance(error, errors.ServerUnavailable | errors.ArchiveError)
    told = _LOST if isinstance(error, errors.SliceLost) else _WORDS.sub("", str(error))
    text = told
    if code in _TEXTS and not isinstance(error, errors.TooLarge):
        text = _TEXTS[code].format(done="nothing was changed" if field else "the request was not finished")
        why = "Redis's memory is full" if code == "answer_lost" and isinstance(error, errors.ServerFull) else ""
        why = why if away else told
        text += f" ({why})" if why else ""
    refusal = Refusal(code, text, more=more)
    refusal.detail = str(error) if away or told is _LOST else ""
    return refusal
