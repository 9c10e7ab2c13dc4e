"""Normalisation: several spellings of a URI become one item."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import can_ada

from urifilter_redis.bloom.rules import Rules
from urifilter_redis.bloom.url_parts import TRACKING_PARAMETERS, name_of, plain_escapes, plain_host, trimmed

if TYPE_CHECKING:
    from urifilter_redis.bloom.rules import Rule

__all__ = ["NORMALIZATIONS", "explain", "normalizer"]

NORMALIZATIONS = ("none", "whatwg", "sorted", "loose")

#: The schemes whose hosts and paths have further normal forms, and rules.
_WEB = frozenset({"http:", "https:"})

# A host, perhaps a port, then nothing or a path, query or fragment: "www.example.com:8080/a". The pattern does not ask
# for a dot in the host, because two repeated groups with a dot between them take quadratic time.
_BARE = re.compile(r"([^\s/?#:@\\]+)(:\d{1,5})?([/?#].*)?", re.DOTALL)

# First of all, the standard strips these characters from both ends of a URL, and removes those anywhere in it.
_STRIPPED = "".join(map(chr, range(33)))
_REMOVED = dict.fromkeys(map(ord, "\t\n\r"))


def normalizer(name: str, rules: str | None = None) -> Callable[[object], object] | None:
    """Return a function that takes an item and returns its normalised spelling; None for ``none``.

    ``whatwg`` parses and serialises a URL as browsers do (WHATWG URL standard), and drops the fragment. ``sorted`` also
    writes escapes in their normal form (RFC 3986), leaves a dot at the end of the host and ``TRACKING_PARAMETERS``
    out, and sorts the query's parameters by name. ``loose`` also reads http as https, and leaves out a leading
    ``www.``, slashes at the end of the path, and ``INDEX_PAGES``. All three read a bare ``www.example.com`` as
    ``https://www.example.com/``. An item that is no text, no UTF-8 or no URL stays as it is.

    Args:
        name: one of ``NORMALIZATIONS``.
        rules: canonical rules, for ``sorted`` and ``loose``; None: there are none.

    Raises:
        ValueError: there is no normalisation of this name.

    Example:
        >>> normalizer("sorted")("HTTPS://Example.com/%7Ea?b=1&a=2&utm_source=x#top")
        'https://example.com/~a?a=2&b=1'
        >>> normalizer("loose")("http://www.example.com/news/index.html?b=1&a=2")
        'https://example.com/news?a=2&b=1'
        >>> normalizer("loose", '[{"domain":"example.com","keep":["id"]}]')("http://m.example.com/news?b=1&id=2")
        'https://m.example.com/news?id=2'
    """
    if name not in NORMALIZATIONS:
        raise ValueError(f"normalize is one of {', '.join(NORMALIZATIONS)} and not {name!r}")
    if name == "none":
        return None
    steps = _steps(name, rules)
    return lambda item: _normalize(item, steps)


def explain(item: object, name: str, rules: str | None = None) -> list[tuple[str, object]]:
    """Return each step of a normalisation that changes an item, and the spelling after it.

    Example:
        >>> explain("http://example.com/%7Ea?gclid=1", "loose")
        [('escapes', 'http://example.com/~a?gclid=1'), ('host', 'https://example.com/~a?gclid=1'), ('parameters', 'https://example.com/~a')]
    """
    if name == "none":
        return []
    told: list[tuple[str, object]] = []
    _normalize(item, _steps(name, rules), lambda step, spelling: told.append((step, spelling)))
    before = item.decode(errors="surrogateescape") if isinstance(item, bytes) else item
    found = []
    for step, spelling in told:
        if spelling != before:
            found.append((step, spelling))
        before = spelling
    return found


_Step = Callable[[can_ada.URL], "can_ada.URL | None"]


def _normalize(
    item: object, steps: Sequence[tuple[str, _Step]], tell: Callable[[str, object], None] | None = None
) -> object:
    try:
        text = item.decode() if isinstance(item, bytes) else item
        if not isinstance(text, str):
            return item
        bare = text.strip(_STRIPPED).translate(_REMOVED)
        url = can_ada.parse(f"https://{bare}" if _is_bare(bare) else text)
        url.hash = ""
        if tell is not None:
            tell("parse", str(url))
        for name, step in steps:
            url = step(url) or url
            if tell is not None:
                tell(name, str(url))
    except (TypeError, UnicodeError, ValueError):  # TypeError: lone surrogates
        return item
    made = str(url)
    # "example.com:80 #a" parses as a URL of the scheme "example.com". Without its fragment and space it is bare.
    return _normalize(made, steps, tell) if _is_bare(made) else made


def _is_bare(text: str) -> bool:
    found = _BARE.fullmatch(text)
    return found is not None and "." in found[1][1:-1]


def _steps(name: str, rules: str | None) -> list[tuple[str, _Step]]:
    """Return the steps after the parser's: each takes a URL, and changes it or returns another."""
    if name == "whatwg":
        return []
    rule_of = Rules(rules).of if rules else None
    loose = name == "loose"
    steps: list[tuple[str, _Step]] = [("escapes", _unescape), ("host", _loose_host if loose else _sorted_host)]
    if rule_of is None:
        return [*steps, *([("path", _loose_path)] if loose else []), ("parameters", _loose_query if loose else _sort)]

    def path(url: can_ada.URL) -> None:
        if url.protocol in _WEB:
            rule = rule_of(url.hostname)
            before = url.pathname
            made = _without_index(before) if loose else before
            if rule is not None:
                made = rule.path(before, loose=loose)
            if made != before:
                url.pathname = made

    def query(url: can_ada.URL) -> None:
        rule = rule_of(url.hostname) if url.protocol in _WEB else None
        if rule is not None and rule.drops_all:
            url.search = ""
        else:
            _sort(url, rule)
        if loose and url.protocol in _WEB and not url.search:
            url.search = ""

    return [*steps, ("path", path), ("parameters", query)]


def _unescape(url: can_ada.URL) -> can_ada.URL | None:
    """Write escapes in their normal form, and parse again what has changed."""
    text = str(url)
    made = plain_escapes(text)
    return None if made is text else can_ada.parse(made)


def _sorted_host(url: can_ada.URL) -> None:
    if url.protocol in _WEB and (host := url.hostname).endswith("."):
        url.hostname = plain_host(host, loose=False)


def _loose_host(url: can_ada.URL) -> None:
    if url.protocol in _WEB:
        url.protocol = "https:"
        host = url.hostname
        if (made := plain_host(host, loose=True)) != host:
            url.hostname = made


def _loose_path(url: can_ada.URL) -> None:
    if url.protocol in _WEB and (made := _without_index(path := url.pathname)) != path:
        url.pathname = made


def _without_index(path: str) -> str:
    return path[: trimmed(path, len(path))] or "/"


def _sort(url: can_ada.URL, rule: Rule | None = None) -> None:
    """Sort the parameters by name, without those that do not tell pages apart."""
    if url.search:
        stays = _is_of_page if rule is None else rule.stays
        pairs = [(name_of(pair), pair) for pair in url.search[1:].split("&") if pair]
        kept = sorted((pair for pair in pairs if stays(pair[0])), key=itemgetter(0))
        url.search = f"?{'&'.join(pair for _, pair in kept)}" if kept else ""  # the setter strips one "?"


def _is_of_page(name: str) -> bool:
    return name not in TRACKING_PARAMETERS


def _loose_query(url: can_ada.URL) -> None:
    _sort(url)
    if url.protocol in _WEB and not url.search:
        url.search = ""  # takes a "?" away that nothing follows
