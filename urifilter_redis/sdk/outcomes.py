"""What the service answers, as the exchange understands it, and what the SDK raises."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx

from urifilter_redis.errors import AnswerLost, FilterAPIError, UriFilterError
from urifilter_redis.replies import Judged, Verdict
from urifilter_redis.steps import Unanswered, Unsent
from urifilter_redis.wire import KEY_HEADER, read_json

if TYPE_CHECKING:
    from urifilter_redis.session import Session

__all__ = ["failed", "judged", "told"]

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

#: HTTP statuses of whoever stands between: what was asked may have reached the service.
_BETWEEN = {500, 502, 503, 504}


def told(error: UriFilterError) -> FilterAPIError:
    """Make what the SDK raises of what the exchange ended with."""
    if isinstance(error, FilterAPIError):
        return error
    cause = error.__cause__
    status, code = None, "unreachable"
    if isinstance(cause, FilterAPIError):
        status, code = cause.status, cause.error_code
    return FilterAPIError(
        str(error), error_code="answer_lost" if isinstance(error, AnswerLost) else code, status=status
    )


def judged(session: Session, key: object, response: httpx.Response) -> Any:
    """Make an outcome of a response: its content, or what to do about an error."""
    code, text, seconds = "bad_response", f"HTTP {response.status_code}", 0.0
    try:
        content = read_json(response.content)
    except ValueError:
        content = None
    if response.is_success and isinstance(content, dict) and key in {"", response.headers.get(KEY_HEADER)}:
        return content
    indices: list[int] = []
    if isinstance(content, dict) and isinstance(content.get("error_code"), str):
        code, text = content["error_code"], str(content.get("error"))
        indices = [index for index in content.get("indices", ()) if isinstance(index, int)]
    verdict = Verdict.IN_DOUBT if response.status_code in _BETWEEN or response.is_success else Verdict.REFUSED
    verdict = _VERDICTS.get(code, verdict if code == "bad_response" else Verdict.REFUSED)
    try:
        seconds = float(response.headers.get("Retry-After", 0))
    except ValueError:  # a date
        seconds = 1.0
    seconds = seconds if math.isfinite(seconds) and seconds > 0 else 0.0
    error = FilterAPIError(
        f"{session.where}: {text} ({code})",
        error_code=code,
        status=response.status_code,
        retry_after=seconds,
        indices=indices,
    )
    return Judged(error, verdict, min(seconds, session.timeouts.total))


def failed(error: httpx.HTTPError) -> Unsent | Unanswered:
    """Make an outcome of an exception of httpx."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    unsent = isinstance(
        error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol
    )
    return (Unsent if unsent else Unanswered)(ConnectionError(text))
