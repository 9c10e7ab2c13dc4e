"""The Lua scripts: this module reads their sources, adds their includes, and specialises them for a layout.

The sources in ``lua/`` have five directives, each on a line of its own, and a few placeholders:

- ``-- @include "_name.lua" one two`` is replaced by these sections of that file, in this order. A section begins after
  a line ``-- @section one``, and ends before the next; what stands above the first is for readers of the file. An
  included file includes no other, and each section is included once.
- ``-- @unroll`` … ``-- @end`` repeats the lines between them for i = 1 … k.
- ``$layout``, ``$k``, ``$words`` (w1, w2 … wk) and ``$I4s`` (I4, k times) are replaced everywhere.
- ``-- @if claims`` … ``-- @end if``: the lines between them are only in the script for shards with claims; those after
  ``-- @if no claims`` are only in the other. Likewise ``-- @if redisbloom`` for that layout. One may stand in another.
- ``$claims`` is 1 in the script for shards with claims, else 0.
- ``$i`` and ``$d`` are replaced within an unrolled part. ``$d`` is the number of the digest's word that gives the bit
  positions; a word gives six groups of five bits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from urifilter_redis._version import __version__
from urifilter_redis.bloom.sizing import BLOCKED_K, LAYOUTS, REDISBLOOM

#: Every command, and the layouts for which its script is made; no layouts: the script is the same for all.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "create": (),
    "insert": LAYOUTS,
    "contains": LAYOUTS,
    "forget": LAYOUTS,
    "remove": ("counting",),
    "claim": LAYOUTS,
    "commit": LAYOUTS,
    "release": (),
    "reclaim": (),
    "beat": (),
    "turn": (),
    "build": (),
    "store": (),
    "expire": (),
    "reopen": (),
    "merge": ("blocked", "classic"),
    "drop": (),
    "checkpoint": (),
    "restore": (),
    "refill": (),
    "tend": (),
    "probe": (),
}

#: The commands that have a script of their own for shards with claims, which reads leases first. So a filter without
#: claims pays nothing for them.
TWOFOLD = ("insert", "contains", "forget", "remove")

#: The commands whose script is the same for all layouts but redisbloom, which has one of its own.
MODULE_VARIANTS = ("create", "turn", "probe")

_GROUPS_A_WORD = 6
# The first word of a call, or of a list of arguments; not the error word of a reply.
_CALLED = re.compile(r"(?<!error_reply)[({] ?'((?:BF\.)?[A-Z]+(?:_RO)?)'")
_INCLUDE = re.compile(r'^-- @include "(?P<name>[^"]*)"(?P<sections>(?: \w+)*)$', re.MULTILINE)
_SECTION = re.compile(r"^-- @section (\w+)\n", re.MULTILINE)
# One that has no other in it.
_IF = re.compile(r"^-- @if (?P<no>no )?(?P<what>\w+)\n(?P<lines>(?:(?!-- @if ).*\n)*?)-- @end if\n", re.MULTILINE)
_UNROLL = re.compile(r"^ *-- @unroll\n(?P<lines>.*?)^ *-- @end\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script as it is sent to the server.

    Attributes:
        name: the command, and after a colon the layout that the script is made for: ``insert:blocked-12``; then
            ``:claims``, if it is the script of two that is for shards with claims.
        source: the composed source.
        sha1: the SHA-1 of the source, 40 hex digits, for EVALSHA.
    """

    name: str
    source: str
    sha1: str

    def calls(self, command: str) -> bool:
        """Whether the script calls the server's command ``command``."""
        return command in self.commands

    @property
    def commands(self) -> frozenset[str]:
        """The server's commands that the script calls."""
        return frozenset(_CALLED.findall(self.source))


#: The commands of the scripts that were loaded, by the SHA-1 that EVALSHA names.
commands_by_sha1: dict[str | bytes, str] = {}


@cache
def load(command: str, layout: str = "", k: int = 0, *, claims: bool = False) -> Script:
    """Compose the script of a command.

    Args:
        command: one of ``COMMANDS``.
        layout: the layout; it counts for the commands that are made for one; redisbloom for ``MODULE_VARIANTS``, too.
        k: the number of offsets of an item, for blocked only (the other scripts read it from ``meta``).
        claims: of the commands in ``TWOFOLD`` the script for shards with claims.

    Raises:
        ValueError: there is no such command, or none for this layout, or an included file or section is missing, or
            repeated, or the file includes another.

    Example:
        >>> load("insert", "blocked", 12).name
        'insert:blocked-12'
    """
    if command not in COMMANDS:
        raise ValueError(f"no script is called {command!r}; there are {', '.join(COMMANDS)}")
    claims = claims and command in TWOFOLD
    if not COMMANDS[command]:
        own = layout == REDISBLOOM and command in MODULE_VARIANTS
        source = _composed(command, {}, _conditions(REDISBLOOM if own else "", claims=True))
        return _script(f"{command}:{layout}" if own else command, source)
    if layout not in COMMANDS[command]:
        raise ValueError(f"{command} is for layout {' or '.join(COMMANDS[command])} and not {layout!r}")
    if layout != "blocked":
        k = 0
    variant = f"{layout}-{k}" if k else layout
    words = {"layout": layout, "k": str(k or ""), "claims": str(int(claims))}
    source = _composed(command, words, _conditions(layout, claims=claims or command not in TWOFOLD))
    return _script(f"{command}:{variant}" + ":claims" * claims, _specialise(source, words, k))


def variants(blocked_k: tuple[int, ...]) -> list[Script]:
    """Return all scripts, with those of layout ``blocked`` made for each k of ``blocked_k``."""
    scripts: list[Script] = []
    for command, layouts in COMMANDS.items():
        made_for = [(layout, k) for layout in layouts for k in (blocked_k if layout == "blocked" else (0,))]
        if not layouts:
            made_for = [("", 0), (REDISBLOOM, 0)] if command in MODULE_VARIANTS else [("", 0)]
        for twin in (False, True) if command in TWOFOLD else (False,):
            scripts += [load(command, *each, claims=twin) for each in made_for]
    return scripts


def _script(name: str, source: str) -> Script:
    made = Script(name, source, _sha1(source.encode()))
    commands_by_sha1[made.sha1] = name.partition(":")[0]
    return made


def _conditions(layout: str, *, claims: bool) -> dict[str, bool]:
    return {"claims": claims, REDISBLOOM: layout == REDISBLOOM}


def _composed(command: str, words: dict[str, str], conditions: Mapping[str, bool]) -> str:
    """Return the source of a command with its includes, and without the lines for others."""
    source = _include(_choose(_substitute(_read(f"{command}.lua"), words), conditions), _read)
    return _choose(source, conditions)


def _choose(source: str, conditions: Mapping[str, bool]) -> str:
    def chosen(match: re.Match[str]) -> str:
        return match["lines"] if conditions[match["what"]] == (match["no"] is None) else ""

    found = 1
    while found:
        source, found = _IF.subn(chosen, source)
    return source


def _read(name: str) -> str:
    file = resources.files("urifilter_redis.lua") / name
    if not file.is_file():
        raise ValueError(f"there is no Lua file {name}")
    return file.read_text("utf-8")


def _include(source: str, read: Callable[[str], str]) -> str:
    seen: set[tuple[str, str]] = set()

    def body(match: re.Match[str]) -> str:
        name, chosen = match["name"], match["sections"].split()
        _, *parts = _SECTION.split(read(name))
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        if not chosen or not sections.keys() >= set(chosen):
            have, want = (", ".join(names) or "none" for names in (sections, chosen))
            raise ValueError(f"the sections of {name} are {have}; an include names {want}")
        for each in chosen:
            if (name, each) in seen:
                raise ValueError(f"section {each} of {name} is included twice")
            seen.add((name, each))
            if _INCLUDE.search(sections[each]):
                raise ValueError(f"{name} is included and includes another file; one level only")
        return "\n".join(sections[each].rstrip("\n") for each in chosen)

    return _INCLUDE.sub(body, source)


def _specialise(source: str, words: dict[str, str], k: int) -> str:
    def repeat(match: re.Match[str]) -> str:
        lines = match["lines"]
        digest_word = [1 + i // _GROUPS_A_WORD for i in range(k)]
        return "".join(_substitute(lines, {"i": str(i + 1), "d": str(d)}) for i, d in enumerate(digest_word))

    source = _UNROLL.sub(repeat, source)
    lists = {"words": ", ".join(f"w{i + 1}" for i in range(k)), "I4s": "I4" * k}
    return _substitute(source, words | lists)


def _substitute(source: str, words: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: words.get(match[1], match[0]), source)


#: The file that lists the others.
INDEX = "scripts.json"

#: The file of known answers.
VECTORS = "vectors.json"

_PART = re.compile(r"(KEYS|ARGV)\[\d+(?P<many>…?)\] (?P<name>[^:]+)(?:: (?P<text>.*))?")


@dataclass(frozen=True, slots=True)
class Part:
    """One of a script's KEYS or ARGV.

    Attributes:
        name: the name that the script's header gives it.
        text: its description; empty if the name says all.
        many: whether it stands for all keys or arguments from its position on.
    """

    name: str
    text: str
    many: bool


@dataclass(frozen=True, slots=True)
class Header:
    """The comment at the top of a script.

    Attributes:
        purpose: the task of the script.
        keys: its KEYS, in order.
        args: its ARGV, in order.
        reply: its reply.
        errors: the error words with which it may refuse.

    Example:
        >>> Header.of(load("expire")).errors
        ('NOFILTER', 'MISMATCH', 'FORMAT', 'BADARG')
    """

    purpose: str
    keys: tuple[Part, ...]
    args: tuple[Part, ...]
    reply: str
    errors: tuple[str, ...]

    @classmethod
    def of(cls, script: Script) -> Header:
        """Read the header of a script."""
        paragraphs = re.split(r"\n--\n", script.source.split("\n\n")[0])
        lines = [line for each in paragraphs[1:] for line in _unbroken(each)]
        parts = {
            kind: [found for each in lines if (found := _PART.fullmatch(each)) and found[1] == kind] for kind in _KINDS
        }
        keys, args = (
            tuple(Part(found["name"], found["text"] or "", bool(found["many"])) for found in parts[kind])
            for kind in _KINDS
        )
        (reply,) = (line.removeprefix("Reply: ") for line in lines if line.startswith("Reply: "))
        (errors,) = (line.removeprefix("Errors: ") for line in lines if line.startswith("Errors: "))
        purpose = " ".join(line.removeprefix("-- ") for line in paragraphs[0].splitlines())
        return cls(purpose.split(": ", 1)[1], keys, args, reply, tuple(errors.split(", ")))


_KINDS = ("KEYS", "ARGV")


def _unbroken(paragraph: str) -> list[str]:
    """Return the entries of a paragraph, each on one line."""
    entries: list[str] = []
    for line in paragraph.splitlines():
        text = line.removeprefix("--").strip()
        if re.match(r"(KEYS|ARGV)\[|Reply: |Errors: ", text) or not entries:
            entries.append(text)
        else:
            entries[-1] += f" {text}"
    return entries


def vectors() -> bytes:
    """Return the known answers, as JSON: digests, shards, tags, offsets and whole slices."""
    return (resources.files("urifilter_redis.lua") / VECTORS).read_bytes()


def exported_files() -> dict[str, bytes]:
    """Return the content of each file by its name; the index comes last.

    Example:
        >>> list(exported_files())[-2:]
        ['vectors.json', 'scripts.json']
    """
    scripts = variants(BLOCKED_K)
    files = {_file_of(each): each.source.encode() for each in scripts} | {VECTORS: vectors()}
    index = {
        "urifilter-redis": __version__,
        "vectors": {"file": VECTORS, "sha1": _sha1(files[VECTORS])},
        "scripts": {each.name: _entry(each) for each in scripts},
    }
    return files | {INDEX: json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n"}


def files_in(index: bytes) -> dict[str, str]:
    """Return the SHA-1 of each file that an index lists, by the file's name; empty if it is no index."""
    try:
        read = json.loads(index)
        return {each["file"]: each["sha1"] for each in (read["vectors"], *read["scripts"].values())}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _file_of(script: Script) -> str:
    return script.name.replace(":", "-") + ".lua"


def _entry(script: Script) -> dict[str, Any]:
    command, variant, twin = [*script.name.split(":"), "", ""][:3]
    layout, _, k = variant.partition("-")
    claims = bool(twin) if command in TWOFOLD else None  # whether it is for shards with claims; None: for all
    made_for = {"command": command, "layout": layout or None, "k": int(k) if k else None, "claims": claims}
    return {"file": _file_of(script), "sha1": script.sha1} | made_for | asdict(Header.of(script))


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
