"""The agreement between the HTTP service and its SDK: operations, error codes, and the form of JSON."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import quote

from urifilter_redis.bloom.encoding import number_in_json

DEFAULT_PORT = 8000

#: The path of the older interface: it inserts URIs and answers the new ones.
DEFAULT_PATH = "/cr-clawr/uri_filter/api/uri_filter"

#: Filters that one answer lists at most.
MOST_LISTED = 1000

#: The header that names a request, so that it may be repeated; see ``call_ids.CallKey``.
KEY_HEADER = "Idempotency-Key"

#: The header that names one attempt at a request. The response repeats it, so that no attempt gets another's answer.
#: It is nobody else's, because gateways replace those that many use.
ATTEMPT_HEADER = "Urifilter-Attempt"

#: The error codes of answers to bytes that are no whole request: they repeat no attempt.
OF_NO_ATTEMPT = {"bad_http", "head_too_large", "too_slow"}

#: The path of the list of filters. Each filter is below it, and each command is below its filter.
FILTERS_PATH = "/v1/filters"
_FILTER = FILTERS_PATH + "/{filter}"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the service.

    Attributes:
        tag: the group that it belongs to.
        method: the method of its requests.
        path: the path of its requests; ``{filter}`` stands for the name of a filter.
        keyed: whether a request may have a key, because it changes which items are seen or in flight.
        field: the field of the answer that has a value for each item.
        count: the field of the answer that counts items: ``unique`` (the new ones), ``seen`` or ``offered``.
        new: the field of the answer that says whether each age is 0; empty if there is none.
    """

    tag: str
    method: str
    path: str
    keyed: bool = False
    field: str = ""
    count: str = ""
    new: str = ""

    def path_of(self, filter_name: str) -> str:
        """Return the path for a filter."""
        return self.path.replace("{filter}", quote(filter_name.encode("utf-8", "surrogatepass"), safe=""))


#: All operations by their names. The service describes and answers each of them: see ``service.descriptions``.
OPERATIONS: Mapping[str, Operation] = {
    "unique": Operation("older interface", "POST", DEFAULT_PATH, keyed=True),
    "insert": Operation("items", "POST", f"{_FILTER}/insert", keyed=True, field="ages", count="unique", new="new"),
    "contains": Operation("items", "POST", f"{_FILTER}/contains", field="ages", count="seen"),
    "forget": Operation("items", "POST", f"{_FILTER}/forget", keyed=True, field="was_there", count="seen"),
    "remove": Operation("items", "POST", f"{_FILTER}/remove", keyed=True, field="was_there", count="seen"),
    "claim": Operation("claims", "POST", f"{_FILTER}/claim", keyed=True, field="ages", count="unique", new="claimed"),
    "commit": Operation(
        "claims", "POST", f"{_FILTER}/commit", keyed=True, field="ages", count="unique", new="committed"
    ),
    "release": Operation("claims", "POST", f"{_FILTER}/release", keyed=True, field="was_there", count="seen"),
    "reclaim": Operation("claims", "POST", f"{_FILTER}/reclaim", keyed=True),
    "beat": Operation("claims", "POST", f"{_FILTER}/beat"),
    "retry_dead_letters": Operation(
        "claims", "POST", f"{_FILTER}/retry_dead_letters", keyed=True, field="was_there", count="offered"
    ),
    "in_flight": Operation("claims", "GET", f"{_FILTER}/in_flight"),
    "dead_letters": Operation("claims", "GET", f"{_FILTER}/dead_letters"),
    "create": Operation("admin", "POST", f"{_FILTER}/create"),
    "rotate": Operation("admin", "POST", f"{_FILTER}/rotate"),
    "checkpoint": Operation("admin", "POST", f"{_FILTER}/checkpoint"),
    "restore": Operation("admin", "POST", f"{_FILTER}/restore"),
    "acknowledge": Operation("admin", "POST", f"{_FILTER}/acknowledge"),
    "union": Operation("admin", "POST", f"{_FILTER}/union"),
    "drop": Operation("admin", "POST", f"{_FILTER}/drop"),
    "put_filter": Operation("admin", "PUT", _FILTER),
    "delete_filter": Operation("admin", "DELETE", _FILTER),
    "list": Operation("filters", "GET", FILTERS_PATH),
    "info": Operation("filters", "GET", _FILTER),
    "detail": Operation("filters", "GET", f"{_FILTER}/detail"),
    "overview": Operation("filters", "GET", "/v1/overview"),
    "healthz": Operation("service", "GET", "/healthz"),
    "readyz": Operation("service", "GET", "/readyz"),
    "metrics": Operation("service", "GET", "/metrics"),
    "access": Operation("service", "GET", "/v1/access"),
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an error code.

    Attributes:
        status: the HTTP status of the response.
        when: the condition that the code reports.
    """

    status: HTTPStatus
    when: str


ERROR_CODES: Mapping[str, Meaning] = {
    "bad_json": Meaning(
        HTTPStatus.BAD_REQUEST, "the body is not JSON, is nested too deeply, or has NaN or a number of too many digits"
    ),
    "bad_http": Meaning(
        HTTPStatus.BAD_REQUEST,
        "the bytes on the connection are not HTTP/1.1, or the head does not name one Host, or has a Transfer-Encoding "
        "beside chunked; the connection is closed",
    ),
    "bad_host": Meaning(
        HTTPStatus.BAD_REQUEST, "the service has no tokens, and the request names another host than this machine"
    ),
    "unauthorized": Meaning(HTTPStatus.UNAUTHORIZED, "the request has no token, or a wrong one"),
    "forbidden": Meaning(HTTPStatus.FORBIDDEN, "the token is not for this filter, or not for this request"),
    "foreign_origin": Meaning(
        HTTPStatus.FORBIDDEN, "the service has no tokens, and the request comes from a page of another site"
    ),
    "behind_proxy": Meaning(
        HTTPStatus.FORBIDDEN, "the service has no tokens, and the request comes through a proxy that it does not trust"
    ),
    "not_found": Meaning(HTTPStatus.NOT_FOUND, "there is no such path"),
    "filter_not_found": Meaning(HTTPStatus.NOT_FOUND, "there is no such filter"),
    "method_not_allowed": Meaning(HTTPStatus.METHOD_NOT_ALLOWED, "the path does not take this method"),
    "too_slow": Meaning(HTTPStatus.REQUEST_TIMEOUT, "the head or the body did not arrive in time"),
    "config_mismatch": Meaning(HTTPStatus.CONFLICT, "the filter has other settings than the service"),
    "refused": Meaning(
        HTTPStatus.CONFLICT,
        "the key has served other items, a later request of its slot has run, or the filter cannot do this",
    ),
    "over_capacity": Meaning(
        HTTPStatus.CONFLICT, "the filter would be over its capacity, and the request does not say `over_capacity`"
    ),
    "body_too_large": Meaning(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body has more bytes than the limit"),
    "unsupported_encoding": Meaning(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is compressed"),
    "head_too_large": Meaning(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request has more than 64 KiB"
    ),
    "bad_request": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "a field is missing, unknown or of the wrong type"),
    "bad_item": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "`indices` names items that cannot be filtered"),
    "item_too_long": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "`indices` names items of more bytes than the limit"),
    "too_many_items": Meaning(HTTPStatus.UNPROCESSABLE_ENTITY, "the request has more items than the limit"),
    "not_for_this_filter": Meaning(HTTPStatus.CONFLICT, "the filter cannot `remove`, or has no slices for `max_age`"),
    "too_many_requests": Meaning(
        HTTPStatus.TOO_MANY_REQUESTS, "the request has waited too long for others of the same token"
    ),
    "too_many_wrong_tokens": Meaning(
        HTTPStatus.TOO_MANY_REQUESTS, "the token is wrong, and the address has sent too many wrong ones"
    ),
    "internal_error": Meaning(HTTPStatus.INTERNAL_SERVER_ERROR, "the service has a bug: its log has the details"),
    "unsupported": Meaning(
        HTTPStatus.NOT_IMPLEMENTED, "this Redis will never do this, because it lacks commands: asking again is useless"
    ),
    "server_unavailable": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "Redis is away, or refuses; nothing was changed"),
    "answer_lost": Meaning(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the request ended half-way, and some items may be inserted: repeat it under its key",
    ),
    "restoring": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "the filter is being restored from its archive"),
    "slice_lost": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "Redis has lost a bitmap of the filter"),
    "archive_unavailable": Meaning(
        HTTPStatus.SERVICE_UNAVAILABLE, "the filter needs its archive, which is away or damaged"
    ),
    "not_ready": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "`/readyz`: a filter of the settings does not answer"),
    "server_full": Meaning(
        HTTPStatus.INSUFFICIENT_STORAGE, "Redis's memory is full, or has no room for the filter; nothing was changed"
    ),
    "filter_full": Meaning(HTTPStatus.INSUFFICIENT_STORAGE, "a growing filter reached its last possible slice"),
}

_WRITE = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=number_in_json)


def write_json(value: object) -> bytes:
    r"""Return a value as JSON in ASCII; lone surrogates survive, too (as ``\ud800``).

    Raises:
        ValueError: a number is NaN or an infinity.
        TypeError: the value has no form in JSON.
    """
    return _WRITE.encode(value).encode()


def read_json(data: bytes) -> Any:
    """Read JSON: UTF-8, with or without a byte order mark.

    Raises:
        ValueError: the bytes are not such JSON, or have NaN or an infinity; the message says why.
    """
    try:
        return _READ.decode(data.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except (json.JSONDecodeError, _NotJson):
        raise
    except ValueError:  # int() refuses very long numbers
        raise ValueError("a number has too many digits") from None


class _NotJson(ValueError):
    """NaN or an infinity: Python's JSON has them, and JSON does not."""


def _refuse(constant: str) -> NoReturn:
    raise _NotJson(f"{constant} is not JSON")


_READ = json.JSONDecoder(parse_constant=_refuse)  # once: making one takes longer than reading one item
