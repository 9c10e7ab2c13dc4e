"""Normalisation: several spellings of a URI become one item."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import can_ada

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INDEX_PAGES", "NORMALIZATIONS", "TRACKING_PARAMETERS", "normalizer"]

NORMALIZATIONS = ("none", "whatwg", "sorted", "loose")

# Both lists, and the release of the parser, are part of the format: decision 022 says how another is taken in.

#: Query parameters that tell where a visitor came from; the page is the same without them.
TRACKING_PARAMETERS = frozenset({
    "_ga", "_gl", "_hsenc", "_hsmi", "_openstat", "dclid", "fbclid", "gbraid", "gclid", "gclsrc", "igshid", "li_fat_id",
    "mc_cid", "mc_eid", "mkt_tok", "msclkid", "oly_anon_id", "oly_enc_id", "rb_clickid", "s_cid", "srsltid", "ttclid",
    "twclid", "utm_campaign", "utm_content", "utm_creative_format", "utm_id", "utm_marketing_tactic", "utm_medium",
    "utm_name", "utm_source", "utm_source_platform", "utm_term", "vero_conv", "vero_id", "wbraid", "wickedid", "yclid",
})  # fmt: skip

#: Files that a server sends for a folder as it comes: those of Apache (Debian's dir.conf), nginx, IIS, Tomcat and
#: ColdFusion. Case does not matter, because it does not for IIS, whose pages are called ``Default.aspx``.
INDEX_PAGES = frozenset({
    "default.asp", "default.aspx", "default.htm", "default.html", "index.asp", "index.aspx", "index.cfm", "index.cgi",
    "index.htm", "index.html", "index.jsp", "index.php", "index.pl", "index.shtml", "index.xhtml",
})  # fmt: skip

#: A leading ``www.`` counts for nothing if a dot remains between two labels: ``www.com`` is a domain itself. (An
#: address cannot remain, because the standard does not read a host as ``www.1.2.3.4``.)
_WWW = re.compile(r"(?:www\.)+(?=[^.]+\.[^.])")

# A host, perhaps a port, then nothing or a path, query or fragment: "www.example.com:8080/a". The pattern does not ask
# for a dot in the host, because two repeated groups with a dot between them take quadratic time.
_BARE = re.compile(r"([^\s/?#:@\\]+)(:\d{1,5})?([/?#].*)?", re.DOTALL)

# First of all, the standard strips these characters from both ends of a URL, and removes those anywhere in it.
_STRIPPED = "".join(map(chr, range(33)))
_REMOVED = dict.fromkeys(map(ord, "\t\n\r"))


def normalizer(name: str) -> Callable[[object], object] | None:
    """Return a function that takes an item and returns its normalised spelling; None for ``none``.

    ``whatwg`` parses and serialises a URL as browsers do (WHATWG URL standard), and drops the fragment. ``sorted``
    also sorts the query's parameters by name and leaves out ``TRACKING_PARAMETERS``. ``loose`` also reads http as
    https, and leaves out a leading ``www.``, slashes at the end of the path, and ``INDEX_PAGES``. All three read a bare
    ``www.example.com`` as ``https://www.example.com/``. An item that is no text, no UTF-8 or no URL stays as it is.

    Raises:
        ValueError: there is no normalisation of this name.

    Example:
        >>> normalizer("sorted")("HTTPS://Example.com/?b=1&a=2&utm_source=x#top")
        'https://example.com/?a=2&b=1'
        >>> normalizer("loose")("http://www.example.com/news/index.html?b=1&a=2")
        'https://example.com/news?a=2&b=1'
    """
    if name not in NORMALIZATIONS:
        raise ValueError(f"normalize is one of {', '.join(NORMALIZATIONS)} and not {name!r}")
    if name == "none":
        return None
    change = _CHANGES[name]
    return lambda item: _normalize(item, change)


def _normalize(item: object, change: Callable[[can_ada.URL], None]) -> object:
    try:
        text = item.decode() if isinstance(item, bytes) else item
        if not isinstance(text, str):
            return item
        bare = text.strip(_STRIPPED).translate(_REMOVED)
        url = can_ada.parse(f"https://{bare}" if _is_bare(bare) else text)
    except (TypeError, UnicodeError, ValueError):  # TypeError: lone surrogates
        return item
    url.hash = ""
    change(url)
    made = str(url)
    # "example.com:80 #a" parses as a URL of the scheme "example.com". Without its fragment and space it is bare.
    return _normalize(made, change) if _is_bare(made) else made


def _is_bare(text: str) -> bool:
    found = _BARE.fullmatch(text)
    return found is not None and "." in found[1][1:-1]


def _keep(_: can_ada.URL) -> None:
    """Change nothing."""


def _sort(url: can_ada.URL) -> None:
    if url.search:
        query = _sorted_query(url.search[1:])
        url.search = f"?{query}" if query else ""  # the setter strips one "?"


def _loosen(url: can_ada.URL) -> None:
    _sort(url)
    if url.protocol not in {"http:", "https:"}:
        return
    url.protocol = "https:"
    host, path = url.hostname, url.pathname
    if www := _WWW.match(host):
        url.hostname = host[www.end() :]
    if (page := _without_index(path)) != path:
        url.pathname = page
    if not url.search:
        url.search = ""  # takes a "?" away that nothing follows


_CHANGES = {"whatwg": _keep, "sorted": _sort, "loose": _loosen}


def _without_index(path: str) -> str:
    """Return a path without its last slashes and index pages: such as follow each other all go, as twice is once.

    The time grows with the length of the path and not with its square.
    """
    end = len(path)
    while True:
        while end and path[end - 1] == "/":
            end -= 1
        start = path.rfind("/", 0, end) + 1
        if path[start:end].lower() not in INDEX_PAGES:
            return path[:end] or "/"
        end = start


def _sorted_query(query: str) -> str:
    pairs = [(pair.partition("=")[0], pair) for pair in query.split("&") if pair]
    kept = [pair for pair in pairs if pair[0] not in TRACKING_PARAMETERS]
    return "&".join(pair for _, pair in sorted(kept, key=lambda pair: pair[0]))
