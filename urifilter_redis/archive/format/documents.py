"""Read and write the documents of an archive: JSON with its own SHA-256. ``load`` checks each value and its type.

A note, a number, may stand beside the document in the same text. The SHA-256 does not cover it. It says something
about other documents: that all shards have a checkpoint, or the number of the next checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.protocol.config import FORMAT, other_format

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["dump", "load", "note_of"]

#: The largest number in a document: Lua and JSON hold all integers up to it exactly.
MOST = 2**53

D = TypeVar("D", bound="DataclassInstance")


def dump(document: DataclassInstance, note: int = 0) -> bytes:
    """Return a document as JSON text with its SHA-256 and with the note, unless that is 0."""
    values = dataclasses.asdict(document)
    beside = {"note": note} if note else {}
    return json.dumps({"sha256": _sha256(values), "document": values} | beside).encode()


def note_of(text: bytes | None) -> int:
    """Return the note in the text of a document; 0 if it has none."""
    try:
        note = json.loads(text or b"{}")["note"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return note if type(note) is int and 0 < note <= MOST else 0


def load(kind: type[D], text: bytes, what: str) -> D:
    """Read a document.

    Args:
        kind: the dataclass of the document.
        text: the JSON text that ``dump`` returned.
        what: the name of the document in errors.

    Raises:
        ArchiveCorrupt: the text is damaged, or holds another kind of document, or one of another format.
    """
    try:
        found = json.loads(text, parse_constant=_refuse)
        values = found["document"]
        if found["sha256"] != _sha256(values):
            raise ArchiveCorrupt(f"{what} is damaged: its SHA-256 does not match")
        return _build(kind, values, what)  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ArchiveCorrupt(f"{what} cannot be read: {error!r}"[:300]) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _sha256(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _build(kind: Any, value: Any, what: str) -> Any:
    """Convert a JSON value to a type: a dataclass, a list, a dictionary with string keys, or a plain type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if type(value) is not dict:
            raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
        if "format" in hints and type(found := value.get("format")) is int and found != FORMAT:
            raise ArchiveCorrupt(f"{what} is {other_format(found)}")  # before its fields, which may be others
        if set(value) - set(hints):
            raise TypeError(f"{kind.__name__} has no {', '.join(sorted(set(value) - set(hints)))}")
        return kind(**{name: _build(hints[name], each, what) for name, each in value.items()})
    if origin is list and type(value) is list:
        return [_build(arguments[0], each, what) for each in value]
    if origin is dict and type(value) is dict:
        return {_build(arguments[0], name, what): _build(arguments[1], each, what) for name, each in value.items()}
    if origin is types.UnionType:
        return None if value is None else _build(arguments[0], value, what)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is int and abs(value) > MOST):
        raise TypeError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
