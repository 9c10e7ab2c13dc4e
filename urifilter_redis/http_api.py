"""What the HTTP service and its SDK agree on: paths, field names, error codes, and how JSON is read and written."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ATTEMPT_HEADER",
    "COMMANDS",
    "DEFAULT_PATH",
    "DEFAULT_PORT",
    "ERROR_CODES",
    "FILTERS_PATH",
    "KEY_HEADER",
    "Command",
    "Meaning",
    "read_json",
    "write_json",
]

DEFAULT_PORT = 8000

#: Where the service answers which URIs are new.
DEFAULT_PATH = "/cr-clawr/uri_filter/api/uri_filter"

#: Where everything else about filters is: a list, and below it each filter and its commands.
FILTERS_PATH = "/v1/filters"

#: What names a request, so that it may be repeated; see ``callid.CallKey``.
KEY_HEADER = "Idempotency-Key"

#: What names one attempt; its answer repeats it, whatever it is, so that no other is taken for it.
ATTEMPT_HEADER = "X-Request-Id"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as an HTTP endpoint.

    Attributes:
        field: of the answer: one value an item.
        count: of the answer: how many of the items are new (``unique``) or ``seen``.
        writes: it wants a token that may write.
    """

    field: str
    count: str
    writes: bool = True


COMMANDS: Mapping[str, Command] = {
    "insert": Command("ages", "unique"),
    "contains": Command("ages", "seen", writes=False),
    "forget": Command("was_there", "seen"),
    "remove": Command("was_there", "seen"),
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """An error code: the HTTP status it comes with, and when."""

    status: HTTPStatus
    when: str


ERROR_CODES: Mapping[str, Meaning] = {
    "bad_json": Meaning(HTTPStatus.BAD_REQUEST, "the body is no JSON, nested too deeply, or has NaN or absurd numbers"),
    "bad_http": Meaning(HTTPStatus.BAD_REQUEST, "what came is no HTTP/1.1; the connection is closed"),
    "bad_host": Meaning(
        HTTPStatus.BAD_REQUEST, "the service has no tokens, and was asked under another machine's name"
    ),
    "unauthorized": Meaning(HTTPStatus.UNAUTHORIZED, "no token, or a wrong one"),
    "forbidden": Meaning(HTTPStatus.FORBIDDEN, "the token is not for this filter, or only for reading"),
    "foreign_origin": Meaning(HTTPStatus.FORBIDDEN, "the service has no tokens, and a page of another site asks"),
    "behind_proxy": Meaning(
        HTTPStatus.FORBIDDEN, "the service has no tokens, and a proxy that it does not trust passes on what others ask"
    ),
    "not_found": Meaning(HTTPStatus.NOT_FOUND, "there is no such path"),
    "filter_not_found": Meaning(HTTPStatus.NOT_FOUND, "there is no such filter"),
    "method_not_allowed": Meaning(HTTPStatus.METHOD_NOT_ALLOWED, "the path is there, for another method"),
    "too_slow": Meaning(HTTPStatus.REQUEST_TIMEOUT, "the head or the body did not arrive in time"),
    "config_mismatch": Meaning(HTTPStatus.CONFLICT, "the filter has other settings than the service"),
    "refused": Meaning(HTTPStatus.CONFLICT, "the key was used for other items, or a later request of its slot has run"),
    "body_too_large": Meaning(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "more bytes than the limit"),
    "unsupported_encoding": Meaning(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is compressed"),
    "head_too_large": Meaning(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "more than 64 KiB of head"),
    "bad_request": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "a field is missing, unknown or of the wrong type"),
    "bad_item": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "items that cannot be filtered, see `indices`"),
    "item_too_long": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "items of more bytes than the limit, see `indices`"),
    "too_many_items": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "more items than the limit"),
    "not_for_this_filter": Meaning(HTTPStatus.CONFLICT, "`remove` or `max_age`, and the filter has no such"),
    "too_many_requests": Meaning(HTTPStatus.TOO_MANY_REQUESTS, "it has waited too long for others under its token"),
    "internal_error": Meaning(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the log has it"),
    "server_unavailable": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "Redis is away or refuses; nothing was inserted"),
    "answer_lost": Meaning(
        HTTPStatus.SERVICE_UNAVAILABLE, "it ended half-way, and some may have been inserted: repeat it under its key"
    ),
    "restoring": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "the filter is being brought back from its archive"),
    "slice_lost": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "Redis has lost a bitmap of the filter"),
    "archive_unavailable": Meaning(
        HTTPStatus.SERVICE_UNAVAILABLE, "the filter is to be restored, and its archive fails"
    ),
    "not_ready": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "`/readyz`: a filter of the settings cannot be had"),
    "filter_full": Meaning(HTTPStatus.INSUFFICIENT_STORAGE, "a growing filter reached its last possible slice"),
}

_WRITE = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def write_json(value: object) -> bytes:
    r"""Return JSON in ASCII, so that whatever text there is arrives, lone surrogates too (as ``\ud800``).

    Raises:
        ValueError: NaN or an infinity.
        TypeError: no JSON value.
    """
    return _WRITE.encode(value).encode()


def read_json(data: bytes) -> Any:
    """Read JSON: UTF-8, with or without a byte order mark, with no NaN or infinity.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        return json.loads(data.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except (json.JSONDecodeError, _NotJson):
        raise
    except ValueError:  # int() refuses what takes it too long
        raise ValueError("a number has too many digits") from None


class _NotJson(ValueError):
    """A constant that Python's JSON has, and JSON has not."""


def _refuse(constant: str) -> NoReturn:
    raise _NotJson(f"{constant} is not JSON")
