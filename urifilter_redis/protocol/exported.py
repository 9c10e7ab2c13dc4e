"""The scripts as files for other languages: each composed script, an index of them, and known answers."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from urifilter_redis._version import __version__
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.protocol.scripts import TWOFOLD, variants

if TYPE_CHECKING:
    from urifilter_redis.protocol.scripts import Script

__all__ = ["INDEX", "VECTORS", "Header", "Part", "exported_files", "files_in", "vectors"]

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
        many: whether it stands for all keys or arguments from its place on.
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
