"""Normalisation: which spellings of a URI are one item."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import can_ada

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NORMALIZATIONS", "TRACKING_PARAMETERS", "normalizer"]

NORMALIZATIONS = ("none", "whatwg", "sorted")

#: Query parameters that say where a visitor came from and not which page is meant.
TRACKING_PARAMETERS = frozenset({
    "_ga", "_gl", "_hsenc", "_hsmi", "_openstat", "dclid", "fbclid", "gbraid", "gclid", "gclsrc", "igshid", "li_fat_id",
    "mc_cid", "mc_eid", "mkt_tok", "msclkid", "oly_anon_id", "oly_enc_id", "rb_clickid", "s_cid", "srsltid", "ttclid",
    "twclid", "utm_campaign", "utm_content", "utm_creative_format", "utm_id", "utm_marketing_tactic", "utm_medium",
    "utm_name", "utm_source", "utm_source_platform", "utm_term", "vero_conv", "vero_id", "wbraid", "wickedid", "yclid",
})  # fmt: skip

# A host, perhaps a port, then nothing or a path, query or fragment: "www.example.com:8080/a". That the host has a dot
# is not for the pattern to say: two runs with a dot between them take quadratic time.
_BARE = re.compile(r"([^\s/?#:@\\]+)(:\d{1,5})?([/?#].*)?", re.DOTALL)

# What the standard takes off both ends of a URL, and out of it, before anything else.
_STRIPPED = "".join(map(chr, range(33)))
_REMOVED = dict.fromkeys(map(ord, "\t\n\r"))


def normalizer(name: str) -> Callable[[object], object] | None:
    """Return a function from an item to the item that stands for all its spellings; None for ``none``.

    ``whatwg``: parsed and serialised as browsers do (WHATWG URL standard), without the fragment. ``sorted``: also
    with the query's parameters sorted by name and ``TRACKING_PARAMETERS`` left out. For both, a bare
    ``www.example.com`` reads as ``https://www.example.com/``. What cannot be parsed, is no UTF-8, or is no text,
    stays as it is.

    Raises:
        ValueError: no such normalisation.
    """
    if name not in NORMALIZATIONS:
        raise ValueError(f"normalize is one of {', '.join(NORMALIZATIONS)} and not {name!r}")
    if name == "none":
        return None
    return lambda item: _normalize(item, sort=name == "sorted")


def _normalize(item: object, *, sort: bool) -> object:
    try:
        text = item.decode() if isinstance(item, bytes) else item
        if not isinstance(text, str):
            return item
        bare = text.strip(_STRIPPED).translate(_REMOVED)
        url = can_ada.parse(f"https://{bare}" if _is_bare(bare) else text)
    except (TypeError, UnicodeError, ValueError):  # TypeError: lone surrogates
        return item
    url.hash = ""
    if sort and url.search:
        query = _sorted_query(url.search[1:])
        url.search = f"?{query}" if query else ""  # the setter takes off one "?"
    made = str(url)
    # "example.com:80 #a" was read as a scheme, and became bare when the fragment took the space along.
    return _normalize(made, sort=sort) if _is_bare(made) else made


def _is_bare(text: str) -> bool:
    found = _BARE.fullmatch(text)
    return found is not None and "." in found[1][1:-1]


def _sorted_query(query: str) -> str:
    pairs = [(pair.partition("=")[0], pair) for pair in query.split("&") if pair]
    kept = [pair for pair in pairs if pair[0] not in TRACKING_PARAMETERS]
    return "&".join(pair for _, pair in sorted(kept, key=lambda pair: pair[0]))
