"""Normalisation: several spellings of a URI become one item."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter

import can_ada

from urifilter_redis.bloom.rules import Rule, Rules
from urifilter_redis.bloom.url_parts import TRACKING_PARAMETERS, name_of, plain_escapes, plain_host, trimmed
from urifilter_redis.checks import check_among

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
    check_among("normalize", name, NORMALIZATIONS)
    if name == "none":
        return None
    change = _change_of(name, rules)
    return lambda item: _normalize(item, change)


def explain(item: object, name: str, rules: str | None = None) -> list[tuple[str, object]]:
    """Return each step of a normalisation that changes an item, and the spelling after it.

    Example:
        >>> explain("http://example.com/%7Ea?gclid=1", "loose")
        [('escapes', 'http://example.com/~a?gclid=1'), ('host', 'https://example.com/~a?gclid=1'), ('parameters', 'https://example.com/~a')]
    """
    if name == "none":
        return []
    told: list[tuple[str, object]] = [("", item.decode(errors="surrogateescape") if isinstance(item, bytes) else item)]
    _normalize(item, _change_of(name, rules), lambda step, url: told.append((step, str(url))))
    return [each for before, each in pairwise(told) if each[1] != before[1]]


#: Is told the name of a step, and the URL after it.
_Tell = Callable[[str, can_ada.URL], None]

#: Changes a parsed URL, or returns another; the text is that which was parsed.
_Change = Callable[[can_ada.URL, str, "_Tell | None"], can_ada.URL]


def _normalize(item: object, change: _Change | None, tell: _Tell | None = None) -> object:
    try:
        text = item.decode() if isinstance(item, bytes) else item
        if not isinstance(text, str):
            return item
        bare = text.strip(_STRIPPED).translate(_REMOVED)
        url = can_ada.parse(f"https://{bare}" if _is_bare(bare) else text)
        url.hash = ""
        if tell is not None:
            tell("parse", url)
        if change is not None:
            url = change(url, text, tell)
    except (TypeError, UnicodeError, ValueError):  # TypeError: lone surrogates
        return item
    made = str(url)
    # "example.com:80 #a" parses as a URL of the scheme "example.com". Without its fragment and space it is bare.
    return _normalize(made, change, tell) if _is_bare(made) else made


def _is_bare(text: str) -> bool:
    found = _BARE.fullmatch(text)
    return found is not None and "." in found[1][1:-1]


def _change_of(name: str, rules: str | None) -> _Change | None:
    """Return what a normalisation does to a parsed URL; None: nothing more."""
    if name == "whatwg":
        return None
    return functools.partial(_change, name == "loose", Rules(rules).of if rules else None)


def _change(
    loose: bool,  # noqa: FBT001 - bound by place, as the rest is given
    rule_of: Callable[[str], Rule | None] | None,
    url: can_ada.URL,
    text: str,
    tell: _Tell | None,
) -> can_ada.URL:
    """Write the parts of a URL in their normal forms, each by one step."""
    if "%" in text:  # the parser's own escapes are in their normal form
        found = str(url)
        if (made := plain_escapes(found)) is not found:
            url = can_ada.parse(made)
        if tell is not None:
            tell("escapes", url)
    rule = None
    if is_web := url.protocol in _WEB:
        host = _write_host(url, loose=loose)
        if tell is not None:
            tell("host", url)
        rule = None if rule_of is None else rule_of(host)
        if loose or rule is not None:
            _write_path(url, rule, loose=loose)
            if tell is not None:
                tell("path", url)
    _write_query(url, rule)
    if loose and is_web and not url.search:
        url.search = ""  # takes a "?" away that nothing follows
    if tell is not None:
        tell("parameters", url)
    return url


def _write_host(url: can_ada.URL, *, loose: bool) -> str:
    if loose:
        url.protocol = "https:"
    host = url.hostname
    if host.endswith(".") or (loose and host.startswith("www.")):
        url.hostname = host = plain_host(host, loose=loose)
    return host


def _write_path(url: can_ada.URL, rule: Rule | None, *, loose: bool) -> None:
    path = url.pathname
    made = (path[: trimmed(path, len(path))] or "/") if rule is None else rule.path(path, loose=loose)
    if made != path:
        url.pathname = made


def _write_query(url: can_ada.URL, rule: Rule | None) -> None:
    """Sort the parameters by name, without those that do not tell pages apart."""
    if rule is not None and rule.drops_all:
        url.search = ""
    elif search := url.search:
        pairs = [(name_of(pair), pair) for pair in search[1:].split("&") if pair]
        kept = (
            [pair for pair in pairs if pair[0] not in TRACKING_PARAMETERS]
            if rule is None
            else [pair for pair in pairs if rule.stays(pair[0])]
        )
        kept.sort(key=itemgetter(0))
        if (made := f"?{'&'.join([pair for _, pair in kept])}" if kept else "") != search:
            url.search = made  # the setter strips one "?"
