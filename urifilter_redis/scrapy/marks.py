"""Marks: the entry of a request's ``meta`` that says what is known about it.

Scrapy copies ``meta`` for redirects and retries, and spiders copy it for other requests. So a mark names the
fingerprint that it is for. A mark is never changed, because copies of ``meta`` share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

if TYPE_CHECKING:
    from scrapy import Request

__all__ = ["AGAIN", "META", "Mark", "asks_again", "belongs", "is_redirect", "items_of", "mark_in", "mark_of", "settled"]

#: The key of ``meta``.
META = "urifilter"

#: The value of this key by which a spider has a page fetched although it was seen.
AGAIN = "again"


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
        again: the page is fetched, and what it redirects to, whatever the filter says.
    """

    of: str
    url: str
    items: list[str | bytes]
    ticket: NotRequired[int]
    later: NotRequired[str]
    link: NotRequired[str]
    again: NotRequired[bool]


def mark_in(request: Request) -> Mark | None:
    """Return the mark in a request's meta, its own or a copy; None if there is none."""
    found = request.meta.get(META)
    return cast("Mark", found) if isinstance(found, dict) else None


def asks_again(request: Request) -> bool:
    """Whether the spider wants a page although it was seen."""
    return bool(request.meta.get(META) == AGAIN)


def mark_of(request: Request, fingerprint: str) -> Mark | None:
    """Return the request's own mark; None if it has none, or a copy of another request's."""
    mark = mark_in(request)
    return mark if mark is not None and mark["of"] == fingerprint else None


def is_redirect(request: Request, mark: Mark) -> bool:
    """Whether the address of a mark redirected to a request."""
    return mark["url"] in request.meta.get("redirect_urls", ())


def settled(mark: Mark) -> Mark:
    """Return a mark of a request that waits for no more: neither for the scheduler nor for an answer."""
    kept = Mark(of=mark["of"], url=mark["url"], items=mark["items"])
    return kept | {"again": True} if "again" in mark else kept


def belongs(request: Request, fingerprint: str) -> bool:
    """Whether a request's mark is its own, or that of an address that redirected to it."""
    mark = mark_in(request)
    return mark is not None and (is_redirect(request, mark) or mark["of"] == fingerprint)


def items_of(request: Request, fingerprint: str) -> list[str | bytes]:
    """Return the items that became "seen" for the page of a request or of those that redirected to it."""
    mark = mark_in(request)
    return mark["items"] if mark is not None and belongs(request, fingerprint) else []
