"""The normal forms of the parts of a URL, as the parser wrote it, from ``sorted`` on."""

from __future__ import annotations

import re
import string
from urllib.parse import unquote

#: The normalisations that write the parts of URLs in their normal forms, and so can have rules.
BY_PARTS = ("sorted", "loose")

# Both lists, and the release of the parser, are part of the format: decision 022 says how another is taken in.

#: Query parameters that tell where a visitor came from; the page is the same without them.
TRACKING_PARAMETERS = frozenset({
    "_ga", "_gl", "_hsenc", "_hsmi", "_openstat", "dclid", "fbclid", "gbraid", "gclid", "gclsrc", "igshid", "li_fat_id",
    "mc_cid", "mc_eid", "mkt_tok", "msclkid", "oly_anon_id", "oly_enc_id", "rb_clickid", "s_cid", "srsltid", "ttclid",
    "twclid", "utm_campaign", "utm_content", "utm_creative_format", "utm_id", "utm_marketing_tactic", "utm_medium",
    "utm_name", "utm_source", "utm_source_platform", "utm_term", "vero_conv", "vero_id", "wbraid", "wickedid", "yclid",
})  # fmt: skip

#: The number of this content of ``TRACKING_PARAMETERS``: it is frozen with each filter that leaves them out.
PARAMETER_LIST = 1

#: Files that a server sends for a folder as it comes: those of Apache (Debian's dir.conf), nginx, IIS, Tomcat and
#: ColdFusion. Case does not matter, because it does not for IIS, whose pages are called ``Default.aspx``.
INDEX_PAGES = frozenset({
    "default.asp", "default.aspx", "default.htm", "default.html", "index.asp", "index.aspx", "index.cfm", "index.cgi",
    "index.htm", "index.html", "index.jsp", "index.php", "index.pl", "index.shtml", "index.xhtml",
})  # fmt: skip

#: A leading ``www.`` counts for nothing if a dot remains between two labels: ``www.com`` is a domain itself. (An
#: address cannot remain, because the standard does not read a host as ``www.1.2.3.4``.)
_WWW = re.compile(r"(?:www\.)+(?=[^.]+\.[^.])")

#: What RFC 3986 calls unreserved: escaped or not, it means the same.
_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")

_HEX = frozenset(string.hexdigits)

_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")

#: The escapes that have another normal form, in groups of two digits.
_CHANGING = re.compile(
    r"%(?:2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]|[0-9A-F][a-f]|[a-f][0-9A-Fa-f])"
)

#: The characters of an escape.
_LENGTH = 3


def plain_escapes(text: str) -> str:
    """Return text without escapes of unreserved characters, and with other escapes in capitals.

    What comes of one escape may complete another (``%%37E``). Escapes cannot overlap, so there is one result whatever
    the order. The time grows with the length and not with its square.

    Example:
        >>> plain_escapes("/%7Ea%2fb%%37E")
        '/~a%2Fb~'
    """
    if not _CHANGING.search(text):
        return text
    made = _ESCAPE.sub(_plain, text)
    return _completed(made) if _CHANGING.search(made) else made


def _plain(found: re.Match[str]) -> str:
    char = chr(int(found[0][1:], 16))
    return char if char in _UNRESERVED else found[0].upper()


def _completed(text: str) -> str:
    """Replace escapes a character at a time, so that each one is found as soon as its last character is there."""
    made: list[str] = []
    for each in text:
        made.append(each)
        while len(made) >= _LENGTH and made[-_LENGTH] == "%" and made[-2] in _HEX and made[-1] in _HEX:
            char = chr(int(made[-2] + made[-1], 16))
            if char not in _UNRESERVED:
                made[-2:] = [made[-2].upper(), made[-1].upper()]
                break
            made[-_LENGTH:] = char
    return "".join(made)


def plain_host(host: str, *, loose: bool) -> str:
    """Return a host without one dot at its end; under ``loose`` without a leading ``www.``, too.

    Example:
        >>> plain_host("www.example.com.", loose=True)
        'example.com'
    """
    if host.endswith(".") and not host.endswith("..") and host != ".":
        host = host[:-1]
    return host[found.end() :] if loose and (found := _WWW.match(host)) else host


def name_of(parameter: str) -> str:
    """Return a parameter's name with each decoded byte as the character of its number: such names sort as bytes.

    Example:
        >>> name_of("a%5B%5D=1")
        'a[]'
    """
    name = parameter.partition("=")[0]
    return unquote(name, "latin-1") if "%" in name else name


def trimmed(path: str, end: int) -> int:
    """Return the end of a path, up to ``end``, without last slashes and index pages, such as follow each other all.

    The time grows with the length of the path and not with its square.
    """
    while True:
        end = without_slashes(path, end)
        start = path.rfind("/", 0, end) + 1
        if path[start:end].lower() not in INDEX_PAGES:
            return end
        end = start


def without_slashes(path: str, end: int) -> int:
    """Return the end of a path, up to ``end``, without its last slashes."""
    while end and path[end - 1] == "/":
        end -= 1
    return end
