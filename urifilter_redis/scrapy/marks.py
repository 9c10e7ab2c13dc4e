"""Marks: the entry of a request's ``meta`` that says what is known about it.

Scrapy copies ``meta`` for redirects and retries, and spiders copy it for other requests. So a mark names the
fingerprint that it is for. A mark is never changed, because copies of ``meta`` share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

if TYPE_CHECKING:
    from scrapy import Request

__all__ = ["META", "Mark", "is_redirect", "items_of", "mark_of"]

#: The key of ``meta``.
META = "urifilter"


class Mark(TypedDict):
    """The entry; schedulers can write it as JSON or by pickle.

    Attributes:
        of: the fingerprint, as hex text, of the request that the mark is for.
        url: the request's address.
        items: the items that became "seen", or were claimed, for this page: those of the addresses that redirected to
            it, and its own.
        ticket: the request's number in the ledger, until it reaches the scheduler.
        later: the answer with which the request went on, if it has to be asked about before the download.
        link: the link that has this answer.
    """

    of: str
    url: str
    items: list[str | bytes]
    ticket: NotRequired[int]
    later: NotRequired[str]
    link: NotRequired[str]


def mark_of(request: Request, fingerprint: str) -> Mark | None:
    """Return the request's own mark; None if it has none, or a copy of another request's."""
    mark = cast("Mark | None", request.meta.get(META))
    return mark if mark is not None and mark["of"] == fingerprint else None


def is_redirect(request: Request, mark: Mark) -> bool:
    """Whether the address of a mark redirected to a request."""
    return mark["url"] in request.meta.get("redirect_urls", ())


def items_of(request: Request, fingerprint: str) -> list[str | bytes]:
    """Return the items that became "seen" for the page of a request or of those that redirected to it."""
    mark = cast("Mark | None", request.meta.get(META))
    if mark is None:
        return []
    return mark["items"] if is_redirect(request, mark) or mark["of"] == fingerprint else []
