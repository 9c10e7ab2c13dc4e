"""The headers of a request, looked up once for all who ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

__all__ = ["header", "headers_of"]

#: The key of a request's scope under which its headers are kept.
_HEADERS = "urifilter.headers"


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the headers of a request by their names in lower case; of several with one name the first counts."""
    found: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return found


def header(scope: Scope, name: str, default: str = "") -> str:
    """Return the text of a header; ``default`` if the request does not have it."""
    found = headers_of(scope).get(name.lower().encode())
    return default if found is None else found.decode("latin-1")
