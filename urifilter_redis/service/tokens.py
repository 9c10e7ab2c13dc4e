"""Access tokens: 256 random bits each; only their SHA-256 is stored, which for random tokens is enough."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ACCESS", "EVERYTHING", "Token", "digest", "find", "new"]

#: What a token may do with its filters; write includes read.
ACCESS = ("read", "write")

_MARK = "sha256:"
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,64}")
_DIGEST = re.compile(_MARK + "[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """What the service knows of a token.

    Attributes:
        name: for logs and metrics.
        digest: ``sha256:`` and 64 hex digits.
        filters: names, or patterns with ``*`` and ``?``.
        access: ``read`` or ``write``.

    Raises:
        ValueError: the digest, access, or a filter's name is none.
    """

    name: str
    digest: str
    filters: tuple[str, ...] = ("*",)
    access: str = "read"

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise ValueError("digest is sha256: and 64 hex digits, as `urifilter token new` prints it")
        wrong = [pattern for pattern in self.filters if not _PATTERN.fullmatch(pattern)]
        if wrong or not self.filters:
            raise ValueError(f"filters are names, or patterns with * and ?, and not {wrong or 'none'}")
        if self.access not in ACCESS:
            raise ValueError(f"access is {' or '.join(ACCESS)} and not {self.access!r}")

    def toml(self) -> str:
        """Return the lines for the settings' file."""
        fields = {"name": self.name, "digest": self.digest, "filters": list(self.filters), "access": self.access}
        return "\n".join(["[[tokens]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())])

    def may_use(self, filter_name: str) -> bool:
        """Whether it is for a filter."""
        return any(fnmatch.fnmatchcase(filter_name, pattern) for pattern in self.filters)

    @property
    def may_use_all(self) -> bool:
        """Whether it is for all filters, whatever they are called."""
        return "*" in self.filters

    @property
    def may_write(self) -> bool:
        """Whether it may do more than look."""
        return self.access == "write"


#: What a service without tokens takes every request for.
EVERYTHING = Token("", _MARK + "0" * 64, ("*",), "write")


def new() -> str:
    """Make a token."""
    return f"urifilter_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return what is stored of a token."""
    return _MARK + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find(tokens: Sequence[Token], given: str) -> Token | None:
    """Return the token that was given, or None; takes the same time whichever it is."""
    wanted, found = digest(given), None
    for token in tokens:
        if hmac.compare_digest(token.digest, wanted):
            found = token
    return found
