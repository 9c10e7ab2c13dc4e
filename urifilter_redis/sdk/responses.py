"""The service's responses, translated: into outcomes for the exchange, and into the errors that the SDK raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from urifilter_redis.errors import AnswerLost, FilterAPIError, UriFilterError
from urifilter_redis.http_api import ATTEMPT_HEADER, read_json
from urifilter_redis.protocol.outcomes import Judged, Unanswered, Unsent, Verdict

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

__all__ = ["BAD_RESPONSE", "failed", "judged", "told"]

#: What to do about an error code; any other is the answer.
_VERDICTS = {
    "answer_lost": Verdict.IN_DOUBT,
    "archive_unavailable": Verdict.WAIT,
    "internal_error": Verdict.IN_DOUBT,
    "restoring": Verdict.RESTORING,
    "server_unavailable": Verdict.WAIT,
    "too_many_requests": Verdict.WAIT,
    "too_slow": Verdict.WAIT,
}

#: The error code of what the service did not answer; so whoever did may have passed the request on.
BAD_RESPONSE = "bad_response"

#: HTTP statuses of whoever else answers, a wrong address for example, that asking again would not mend.
_ELSEWHERE = set(range(300, 500)) - {408, 425, 429, 499}

#: Exceptions of httpx after which the service has certainly not seen the request.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


def told(error: UriFilterError) -> FilterAPIError:
    """Turn the error that ended an exchange into the error that the SDK raises."""
    if isinstance(error, FilterAPIError):
        return error
    cause = error.__cause__
    status, code = None, "unreachable"
    if isinstance(cause, FilterAPIError):
        status, code = cause.status, cause.error_code
    return FilterAPIError(
        str(error), error_code="answer_lost" if isinstance(error, AnswerLost) else code, status=status
    )


def judged(session: Session, attempt: str, response: httpx.Response) -> Any:
    """Turn the response to an attempt into an outcome: its content, or a verdict about its error.

    The outcome is ``Unanswered`` if the response belongs to another attempt. The connection is out of step then, and
    must not be used again.
    """
    content = _content(response)
    known = isinstance(content.get("error_code"), str)
    answered = response.headers.get(ATTEMPT_HEADER)
    if answered != attempt and (answered or known or response.is_success):
        return Unanswered(ConnectionError("the answer on this connection was another request's"))
    if response.is_success and content:
        return content
    if known:
        code, text = content["error_code"], f"{session.where}: {content.get('error')} ({content['error_code']})"
        verdict = _VERDICTS.get(code, Verdict.REFUSED)
    else:
        code, text = BAD_RESPONSE, f"{session.where}: HTTP {response.status_code} of somebody else than the service"
        verdict = Verdict.REFUSED if response.status_code in _ELSEWHERE else Verdict.IN_DOUBT
    indices = content.get("indices")
    error = FilterAPIError(
        text,
        error_code=code,
        status=response.status_code,
        retry_after=_seconds(response),
        indices=[index for index in indices if isinstance(index, int)] if isinstance(indices, list) else (),
    )
    return Judged(error, verdict, min(error.retry_after, session.total))


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


def failed(session: Session, error: httpx.HTTPError) -> Judged | Unsent | Unanswered:
    """Turn an exception of httpx into an outcome."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:  # asking again would not help
        advice = "its certificate is not trusted; verify= or SSL_CERT_FILE names the CA that it is of"
        refused = FilterAPIError(f"{session.where}: {advice} ({text})", error_code="unreachable")
        return Judged(refused, Verdict.REFUSED)
    return (Unsent if isinstance(error, _UNSENT) else Unanswered)(ConnectionError(text))
