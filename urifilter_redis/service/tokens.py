"""Access tokens: 256 random bits each. Only their SHA-256 is stored, which is enough for random texts."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

#: The access that a token may have to its filters; each includes those before it.
ACCESS = ("read", "write", "admin")

#: The beginning of each token that is made here.
TOKEN_BEGINS = "urifilter_"  # noqa: S105 - of no token in particular

_MARK = "sha256:"
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,64}")
_DIGEST = re.compile(_MARK + "[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """An access token, as the service knows it: by its digest.

    Attributes:
        name: the token's name in logs and metrics.
        digest: ``sha256:`` and 64 hex digits.
        filters: names of filters, or patterns with ``*`` and ``?``.
        access: ``read``, ``write`` or ``admin``.

    Raises:
        ValueError: the digest, the access or a filter's name has the wrong form.
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
            raise ValueError(f"access is {', '.join(ACCESS[:-1])} or {ACCESS[-1]} and not {self.access!r}")

    def toml(self) -> str:
        """Return the token's lines for the settings' file."""
        fields = {"name": self.name, "digest": self.digest, "filters": list(self.filters), "access": self.access}
        return "\n".join(["[[tokens]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())])

    def may_use(self, filter_name: str) -> bool:
        """Whether the token is for a filter."""
        return any(fnmatch.fnmatchcase(filter_name, pattern) for pattern in self.filters)

    @property
    def may_use_all(self) -> bool:
        """Whether the token is for all filters."""
        return "*" in self.filters

    @property
    def may_write(self) -> bool:
        """Whether the token may change filters."""
        return self.access != "read"

    @property
    def may_act(self) -> bool:
        """Whether the token may make, rotate and drop filters, and so on."""
        return self.access == "admin"


#: The token of every request to a service without tokens.
EVERYTHING = Token("", _MARK + "0" * 64, ("*",), "write")


def new() -> str:
    """Make a random access token."""
    return f"{TOKEN_BEGINS}{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the digest of a token, which is stored in its place."""
    return _MARK + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find(tokens: Sequence[Token], given: str) -> Token | None:
    """Return the token with this text, or None; each text takes the same time."""
    wanted, found = digest(given), None
    for token in tokens:
        if hmac.compare_digest(token.digest, wanted):
            found = token
    return found


def bound(token: Token, holder: str) -> str:
    """Return the holder that Redis knows for a caller's: nobody makes it with another token.

    All workers return the same one.

    Args:
        token: the caller's token.
        holder: the caller's 16 hex digits.
    """
    key = bytes.fromhex(token.digest.removeprefix(_MARK))
    made = hashlib.blake2b(bytes.fromhex(holder), key=key, digest_size=8).digest()
    return bytes([made[0] or 1, *made[1:]]).hex()
