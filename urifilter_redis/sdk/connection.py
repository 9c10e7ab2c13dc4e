"""Timeouts, certificates and proxies of the SDK; its responses as outcomes of the exchange, and as errors."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from urifilter_redis.engine import steps
from urifilter_redis.engine.session import Session
from urifilter_redis.errors import AnswerLost, FilterAPIError, UriFilterError
from urifilter_redis.http_api import ATTEMPT_HEADER, OF_NO_ATTEMPT, read_json
from urifilter_redis.protocol.outcomes import Decided, Decision, Unanswered, Unsent

#: Where the environment says which certificates are trusted, as OpenSSL has it.
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

#: A file or folder of CA certificates, or a context; None: those of the environment, else of ``certifi``.
Verify: TypeAlias = ssl.SSLContext | str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Timeouts(steps.Timeouts):
    """How long to wait for the service, in seconds.

    Attributes:
        connect: for a connection.
        reply: for an answer on one. The service gives up on Redis, and on a slow body, before that.
        total: for a whole request. After so long the client does not repeat it, and the call fails.
        restoring: for a filter that is being restored from its archive; after that the call fails.
        first: for a service that has not answered yet, if ``total`` is longer: its address may be wrong.

    Example:
        >>> Timeouts(total=10).first
        5.0
    """

    connect: float = 3.0
    reply: float = 25.0
    total: float = 60.0
    restoring: float = 0.0
    first: float = 5.0


TIMEOUTS = Timeouts()


def first_timeouts(timeouts: steps.Timeouts) -> steps.Timeouts:
    """Return the timeouts that hold until the service has answered once."""
    total = TIMEOUTS.total if timeouts.total is None else timeouts.total
    first = timeouts.first if isinstance(timeouts, Timeouts) else total
    return replace(timeouts, total=min(first, total))


def ssl_verify(verify: Verify) -> ssl.SSLContext | bool:
    """Return httpx's ``verify`` for the certificates to trust.

    Raises:
        ValueError: the file or folder has no certificates.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    path = verify or next(filter(None, map(os.environ.get, CERTIFICATES)), None)
    if path is None:
        return True
    try:
        if Path(path).is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, TypeError) as error:
        raise ValueError(f"verify is a file or folder of CA certificates, and not {path!r}: {error}") from None


def proxy_of(proxy: str) -> httpx.Proxy:
    """Return a proxy in httpx's form.

    Raises:
        ValueError: the text is not the URL of a proxy.
    """
    try:
        return httpx.Proxy(proxy)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"proxy is a URL such as http://127.0.0.1:3128: {error}") from None


#: The error codes after which the request is repeated; any other is final.
_DECISIONS = {
    "answer_lost": Decision.IN_DOUBT,
    "archive_unavailable": Decision.WAIT,
    "internal_error": Decision.IN_DOUBT,
    "restoring": Decision.RESTORING,
    "server_unavailable": Decision.WAIT,
    "too_many_requests": Decision.WAIT,
    "too_slow": Decision.WAIT,
}

#: The error code of a response from a program other than the service, which may have passed the request on.
BAD_RESPONSE = "bad_response"

#: HTTP statuses of other programs (at a wrong address, for example) after which a repeated request is useless.
_ELSEWHERE = set(range(300, 500)) - {408, 425, 429, 499}

#: Exceptions of httpx after which the service has certainly not seen the request.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


def as_api_error(error: UriFilterError) -> FilterAPIError:
    """Return the SDK's error for an error of the exchange."""
    if isinstance(error, FilterAPIError):
        return error
    made = FilterAPIError(str(error), error_code="unreachable")
    if isinstance(error.__cause__, FilterAPIError):
        last = error.__cause__
        made.status, made.error_code, made.content = last.status, last.error_code, last.content
    if isinstance(error, AnswerLost):
        made.error_code = "answer_lost"
    return made


def outcome_of(session: Session, attempt: str, response: httpx.Response) -> Any:
    """Return the outcome of a response: its content, or a decision about its error.

    A response to another attempt is ``Unanswered``: the connection is out of step and must be closed. One that names no
    attempt proves nothing either, and no repeat would get another.
    """
    content = _content(response)
    known = isinstance(content.get("error_code"), str)
    answered = response.headers.get(ATTEMPT_HEADER)
    if answered != attempt and (answered or (known and content["error_code"] in OF_NO_ATTEMPT)):
        return Unanswered(ConnectionError("the answer on this connection was another request's"))
    if not answered and (known or (response.is_success and content)):
        text = f"{session.where}: the answer has no header {ATTEMPT_HEADER}, so it may be another request's: let the "
        text += f"gateways before the service pass it on in both directions (HTTP {response.status_code})"
        error = FilterAPIError(text, error_code=BAD_RESPONSE, status=response.status_code)
        return Decided(error, Decision.REFUSED)
    if response.is_success and content:
        return content
    if known:
        code, text = content["error_code"], f"{session.where}: {content.get('error')} ({content['error_code']})"
        decision = _DECISIONS.get(code, Decision.REFUSED)
    else:
        code, text = BAD_RESPONSE, f"{session.where}: HTTP {response.status_code} of somebody else than the service"
        decision = Decision.REFUSED if response.status_code in _ELSEWHERE else Decision.IN_DOUBT
    indices = content.get("indices")
    error = FilterAPIError(
        text,
        error_code=code,
        status=response.status_code,
        retry_after=_seconds(response),
        indices=[index for index in indices if isinstance(index, int)] if isinstance(indices, list) else (),
    )
    error.content = content
    return Decided(error, decision, min(error.retry_after, session.total))


def _content(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; empty if there is none."""
    try:
        content = read_json(response.content)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _seconds(response: httpx.Response) -> float:
    """Return the seconds of the header Retry-After; 1 if it has a date."""
    text = response.headers.get("Retry-After", "0")
    return float(text) if text.isdecimal() else 1.0


def outcome_of_failure(session: Session, error: httpx.HTTPError) -> Decided | Unsent | Unanswered:
    """Return the outcome of an exception of httpx."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:  # a repeated request would fail, too
        advice = "its certificate is not trusted; verify= or SSL_CERT_FILE names the CA that it is of"
        refused = FilterAPIError(f"{session.where}: {advice} ({text})", error_code="unreachable")
        return Decided(refused, Decision.REFUSED)
    return (Unsent if isinstance(error, _UNSENT) else Unanswered)(ConnectionError(text))
