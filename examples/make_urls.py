"""Make ``urls.txt``, some thousand invented URIs as a crawler finds them: ``python make_urls.py > urls.txt``.

Hosts are reserved names (RFC 2606). Many URIs come again, unchanged or in another spelling: the case of scheme and
host, default ports, fragments, the order of parameters, tracking parameters, hosts without a scheme.
"""

from __future__ import annotations

import random
import sys

LINES = 5000
#: The share of lines that repeat an earlier URI, in some spelling.
AGAIN = 0.4

SITES = ("www.example.com", "news.example.com", "shop.example.org", "example.org", "blog.example.net", "wiki.example")
SECTIONS = ("news", "products", "2026/11", "a", "archive", "en/docs", "tag", "users")
WORDS = (
    "crawler", "filter", "bloom", "shared", "memory", "page", "link", "queue", "seen", "again", "archive", "slice",
    "epoch", "shard", "digest", "layout", "offset", "redis", "valkey", "script", "atomic", "promise",
)  # fmt: skip
PARAMETERS = ("id", "page", "q", "sort", "lang", "ref", "view")
TRACKING = ("utm_source=feed", "utm_medium=mail", "fbclid=IwAR0example", "gclid=Cj0example")


def new_uri(dice: random.Random) -> str:
    """Return a random URI."""
    path = "/".join([dice.choice(SECTIONS), *("-".join(dice.sample(WORDS, 3)) for _ in range(dice.randint(0, 2)))])
    pairs = [f"{name}={dice.randint(1, 500)}" for name in dice.sample(PARAMETERS, dice.choice((0, 0, 1, 2, 3)))]
    ending = dice.choice(("", "", ".html", "/"))
    return f"https://{dice.choice(SITES)}/{path}{ending}{'?' if pairs else ''}{'&'.join(pairs)}"


def respell(uri: str, dice: random.Random) -> str:
    """Return another spelling of a URI that leads to the same page, or the URI itself."""
    base, _, query = uri.partition("?")
    site = base.split("/")[2]
    pairs = query.split("&") if query else []
    ways = (
        uri,
        uri,
        uri.replace(site, site.upper()),
        uri.replace("https://", "HTTPS://"),
        uri.replace(site, f"{site}:443"),
        f"{uri}#{dice.choice(WORDS)}",
        uri.removeprefix("https://"),
        f"{base}?{'&'.join(dice.sample(pairs, len(pairs)))}" if pairs else uri,
        f"{base}?{'&'.join([*pairs, dice.choice(TRACKING)])}",
    )
    return dice.choice(ways)


def make(lines: int = LINES, seed: int = 1) -> list[str]:
    """Return the lines of the file; the same arguments give the same lines."""
    dice = random.Random(seed)
    known: list[str] = []
    made = []
    for _ in range(lines):
        if known and dice.random() < AGAIN:
            made.append(respell(dice.choice(known), dice))
        else:
            known.append(new_uri(dice))
            made.append(known[-1])
    return made


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in make())
