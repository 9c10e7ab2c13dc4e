"""Rules: what is a page on some sites, beyond what ``normalize`` says of all."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import can_ada

from urifilter_redis.bloom.url_parts import (
    BY_PARTS,
    TRACKING_PARAMETERS,
    plain_escapes,
    plain_host,
    trimmed,
    without_slashes,
)

#: The most bytes of rules as they are kept.
LONGEST = 8192

#: The most characters of a host, as DNS has them. A longer one has no rule of its own.
_LONGEST_HOST = 253

#: Rules as a caller gives them: a list of dictionaries, the JSON text of one, or the path of a TOML file.
RulesGiven = Sequence[Mapping[str, Any]] | str | Path

#: The fields of a rule.
_FIELDS = ("host", "domain", "drop", "keep", "drop_all", "lower_path", "cut_prefix", "cut_suffix")

#: Fields of which a rule has one at most.
_APART = (("host", "domain"), ("drop", "keep"), ("drop", "drop_all"), ("keep", "drop_all"))

#: An escape, or a letter that is in none.
_LETTER = re.compile(r"%[0-9A-F]{2}|[A-Z]")

_ESCAPE = re.compile(r"%[0-9A-F]{2}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What the URLs of a host have that does not tell pages apart.

    Attributes:
        names: the parameters that go, or with ``keeps`` those that stay; decoded, as ``name_of`` writes them.
        starts: the beginnings of such names.
        keeps: whether all parameters but these go.
        drops_all: whether the whole query goes.
        lowers: whether the case of a path's letters tells nothing.
        prefix: the beginning of paths that goes; empty: none.
        suffix: the end of a path's last segment that goes; empty: none.
        open: whether all that follows ``suffix`` goes with it.
    """

    names: frozenset[str] = TRACKING_PARAMETERS
    starts: tuple[str, ...] = ()
    keeps: bool = False
    drops_all: bool = False
    lowers: bool = False
    prefix: str = ""
    suffix: str = ""
    open: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Rule:
        """Make one of a canonical rule's fields."""
        # as ``name_of`` writes names
        patterns = [each.encode().decode("latin-1") for each in fields.get("keep", fields.get("drop", ()))]
        names = frozenset(each for each in patterns if not each.endswith("*"))
        suffix = fields.get("cut_suffix", "")
        return cls(
            names=names if "keep" in fields else names | TRACKING_PARAMETERS,
            starts=tuple(each[:-1] for each in patterns if each.endswith("*")),
            keeps="keep" in fields,
            drops_all="drop_all" in fields,
            lowers="lower_path" in fields,
            prefix=fields.get("cut_prefix", ""),
            suffix=suffix.removesuffix("*"),
            open=suffix.endswith("*"),
        )

    def stays(self, name: str) -> bool:
        """Whether a parameter of this decoded name tells pages apart."""
        return (name in self.names or name.startswith(self.starts)) is self.keeps

    def path(self, path: str, *, loose: bool) -> str:
        """Return the path of a page; under ``loose`` without last slashes and index pages, too.

        The time grows with the length of the path and not with its square.
        """
        if self.lowers:
            path = _LETTER.sub(_lower, path)
        start, end = self._begin(path, 0, len(path)), len(path)
        while True:
            before = end
            end = without_slashes(path, end) if loose else end
            end = self._end(path, max(start, path.rfind("/", start, end) + 1), end)
            end = trimmed(path, end) if loose else end
            if end == before:
                break
        return path[self._begin(path, start, end) : end] or "/"

    def _begin(self, path: str, start: int, end: int) -> int:
        """Return where the path begins behind the prefix, however often that stands there."""
        if self.prefix:
            size = len(self.prefix)
            while path.startswith(self.prefix, start, end) and (start + size == end or path[start + size] == "/"):
                start += size
        return start

    def _end(self, path: str, start: int, end: int) -> int:
        """Return where the last segment, which begins at ``start``, ends before the suffix.

        No escape is cut, and no segment of dots comes of it: that would be another path.
        """
        if not self.suffix:
            return end
        size, cut = len(self.suffix), end
        if self.open:
            at = path.find(self.suffix, start, end)
            while at >= 0 and not _may_end(path, start, at):
                at = path.find(self.suffix, at + 1, end)
            return end if at < 0 else at
        while cut - size >= start and path.endswith(self.suffix, start, cut) and _may_end(path, start, cut - size):
            cut -= size
        return cut


class Rules:
    """Rules by host.

    Args:
        text: canonical rules, as ``canonical_rules`` returns them.
    """

    def __init__(self, text: str) -> None:
        self._hosts: dict[str, Rule] = {}
        self._domains: dict[str, Rule] = {}
        self._other: Rule | None = None
        for fields in json.loads(text):
            rule = Rule.of(fields)
            if "host" in fields:
                self._hosts[fields["host"]] = rule
            elif "domain" in fields:
                self._domains[fields["domain"]] = rule
            else:
                self._other = rule

    def of(self, host: str) -> Rule | None:
        """Return the rule of a host: its own, else that of the longest domain it is in, else the one for all."""
        if (rule := self._hosts.get(host)) is not None:
            return rule
        if not self._domains:
            return self._other
        if len(host) > _LONGEST_HOST:  # no longer domain has a rule, and a host may have any length
            host = host[-_LONGEST_HOST - 1 :].partition(".")[2]
        while host:
            if (rule := self._domains.get(host)) is not None:
                return rule
            host = host.partition(".")[2]
        return self._other


def read_rules(given: RulesGiven) -> Sequence[Mapping[str, Any]]:
    """Return rules as a list, from whatever form they were given in.

    Raises:
        ValueError: the file or text cannot be read; the message says where.
    """
    if isinstance(given, Path):
        return load_rules(given)
    if not isinstance(given, str):
        return given
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"rules are no JSON text: {error} (a file is given as a Path)") from error
    return found


def load_rules(path: Path) -> list[dict[str, Any]]:
    """Return the rules of a TOML file, each a table ``[[rule]]``.

    Raises:
        ValueError: the file cannot be read, or has something else; the message says where.
    """
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: it is no UTF-8, or no TOML
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"rules: {path}: {why}") from error
    if others := sorted(found.keys() - {"rule"}):
        raise ValueError(f"rules: {path}: {others[0]!r} is not known: each rule is a table [[rule]]")
    rules: list[dict[str, Any]] = found.get("rule", [])
    return rules


def canonical_rules(given: RulesGiven, normalize: str) -> str:
    """Return rules as the JSON text that a filter keeps: equal rules are equal texts, whatever their order.

    Args:
        given: the rules.
        normalize: the filter's normalisation, in which hosts and paths are written.

    Raises:
        ValueError: a rule is wrong; the message has its place.

    Example:
        >>> canonical_rules([{"domain": "Shop.example.", "drop": ["sid", "s*"]}], "sorted")
        '[{"domain":"shop.example","drop":["s*","sid"]}]'
    """
    rules = read_rules(given)
    if not isinstance(rules, list | tuple):
        raise ValueError(f"rules are a list and not {rules!r:.80}")  # noqa: TRY004 - as for every other setting
    if rules and normalize not in BY_PARTS:
        raise ValueError(f"rules are for normalize sorted or loose, and not {normalize}")
    made: list[str] = []
    places: dict[tuple[str, str], int] = {}
    for number, rule in enumerate(rules, 1):
        place = f"rules: rule {number}"
        fields = _checked(rule, place, loose=normalize == "loose")
        of = next(((kind, fields[kind]) for kind in ("host", "domain") if kind in fields), ("all", ""))
        if (other := places.setdefault(of, number)) != number:
            what = " ".join(of) if of[1] else "all hosts"
            raise ValueError(f"{place} is for {what}, and so is rule {other}: make one of them")
        made.append(json.dumps(fields, sort_keys=True, separators=(",", ":")))
    text = f"[{','.join(sorted(made))}]"
    if len(text) > LONGEST:
        raise ValueError(f"rules take {len(text):,} bytes, and {LONGEST:,} at most are kept with a filter")
    return text


def sha256_of(text: str | None) -> str:
    """Return the SHA-256 of canonical rules as hex text; empty without rules."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _checked(rule: Any, place: str, *, loose: bool) -> dict[str, Any]:
    """Return the canonical fields of a rule."""
    if not isinstance(rule, Mapping):
        raise ValueError(f"{place} is a table of fields and not {rule!r:.80}")  # noqa: TRY004 - likewise
    if unknown := [each for each in rule if each not in _FIELDS]:
        raise ValueError(f"{place}: {unknown[0]!r:.80} is no field: {', '.join(_FIELDS)} are")
    flags = {"drop_all", "lower_path"}
    given = {
        field: value for field, value in rule.items() if value is not None and not (value is False and field in flags)
    }
    for one, other in _APART:
        if one in given and other in given:
            raise ValueError(f"{place}: it has {one} and {other}: leave one out")
    made: dict[str, Any] = {field: _CHECKS[field](value, f"{place}, {field}", loose) for field, value in given.items()}
    if "lower_path" in made:
        made |= {field: _LETTER.sub(_lower, made[field]) for field in ("cut_prefix", "cut_suffix") if field in made}
    return made


def _flag(value: Any, place: str, _: object) -> bool:
    if value is not True:
        raise ValueError(f"{place}: it is true or false and not {value!r:.80}")
    return True


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place}: {value!r:.80} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: {value!r:.80} is no text") from error
    return value


def _host(value: Any, place: str, loose: bool) -> str:  # noqa: FBT001 - called by table
    """Return a host as the filter's normalisation writes it."""
    text = _text(value, place)
    try:
        url = None if re.search(r"[\x00-\x20/?#@\\*]|:\d*$|^\.", text) else can_ada.parse(f"https://{text}/")
    except ValueError:
        url = None
    if url is None or not url.hostname:
        raise ValueError(f"{place}: {text!r:.80} is no host, without scheme, port and path")
    host = plain_host(url.hostname, loose=loose)
    if len(host) > _LONGEST_HOST:
        raise ValueError(f"{place}: a host has {_LONGEST_HOST} characters at most, and this one has {len(host)}")
    return host


def _names(value: Any, place: str, _: object) -> list[str]:
    """Return patterns of parameters' names, sorted."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{place}: it is a list of names and not {value!r:.80}")  # noqa: TRY004 - likewise
    for number, each in enumerate(value, 1):
        text = _text(each, f"{place}, name {number}")
        if "*" in text[:-1]:
            raise ValueError(f"{place}, name {number}: {text!r:.80} has a * that is not at its end")
        if "&" in text or "=" in text:
            raise ValueError(f"{place}, name {number}: {text!r:.80} is no name of a parameter, without value")
    return sorted(set(value))


def _path(value: Any, place: str, before: str) -> str:
    """Return a part of a path, which stands behind ``before``, as the filter's normalisation writes it."""
    text = _text(value, place)
    url = can_ada.parse(f"https://a{before}x")
    url.pathname = before + text
    made = plain_escapes(url.pathname)
    if re.search(r"[\x00-\x20?#\\]", text) or made.endswith("/") or made.count("/") != (before + text).count("/"):
        raise ValueError(f"{place}: {text!r:.80} is no part of a path")
    return made.removeprefix(before)


def _prefix(value: Any, place: str, _: object) -> str:
    """Return a beginning of paths that ends before a slash."""
    text = _text(value, place)
    if not text.startswith("/") or text.endswith("/"):
        raise ValueError(
            f'{place}: {text!r:.80} is no beginning of a path, such as "/amp": a / first, and none at its end'
        )
    return _path(text, place, "")


def _suffix(value: Any, place: str, _: object) -> str:
    """Return an end of a segment."""
    text = _text(value, place)
    if "/" in text or "*" in text[:-1] or text == "*":
        about = "it has no / and no * but at its end"
        raise ValueError(f'{place}: {text!r:.80} is no end of a path, such as ".html" or ";jsessionid=*": {about}')
    return _path(text, place, "/x")


_CHECKS = {
    "host": _host,
    "domain": _host,
    "drop": _names,
    "keep": _names,
    "drop_all": _flag,
    "lower_path": _flag,
    "cut_prefix": _prefix,
    "cut_suffix": _suffix,
}


def _lower(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("%") else found[0].lower()


def _may_end(path: str, start: int, at: int) -> bool:
    """Whether a segment that begins at ``start`` may end at ``at``."""
    if any(at - back >= start and _ESCAPE.match(path, at - back) for back in (1, 2)):
        return False
    return at - start > len("..") or path[start:at] not in {".", ".."}
