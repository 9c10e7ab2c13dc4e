"""The SDK's way to the service: how long to wait, which certificates to trust, and which proxy to use."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import httpx

from urifilter_redis.engine import steps

__all__ = ["TIMEOUTS", "Timeouts", "Verify", "checked", "first_of", "trusted"]

#: Where the environment says which certificates are trusted, as OpenSSL has it.
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

#: A file or folder of CA certificates, or a context; None: those of the environment, else of ``certifi``.
Verify: TypeAlias = ssl.SSLContext | str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Timeouts(steps.Timeouts):
    """How long to wait for the service, in seconds.

    Attributes:
        connect: for a connection.
        reply: for an answer on one. The service gives up on Redis, and on a slow body, before that.
        total: for a whole request. After so long the client does not repeat it, and the call fails.
        restoring: for a filter that is being restored from its archive; after that the call fails.
        first: for a service that has not answered yet, if ``total`` is longer: its address may be wrong.

    Example:
        >>> Timeouts(total=10).first
        5.0
    """

    connect: float = 3.0
    reply: float = 25.0
    total: float = 60.0
    restoring: float = 0.0
    first: float = 5.0


TIMEOUTS = Timeouts()


def first_of(timeouts: steps.Timeouts) -> steps.Timeouts:
    """Return the timeouts that hold until the service has answered once."""
    total = TIMEOUTS.total if timeouts.total is None else timeouts.total
    first = timeouts.first if isinstance(timeouts, Timeouts) else total
    return replace(timeouts, total=min(first, total))


def trusted(verify: Verify) -> ssl.SSLContext | bool:
    """Return httpx's ``verify`` for the certificates to trust.

    Raises:
        ValueError: the file or folder has no certificates.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    place = verify or next(filter(None, map(os.environ.get, CERTIFICATES)), None)
    if place is None:
        return True
    try:
        if Path(place).is_dir():
            return ssl.create_default_context(capath=place)
        return ssl.create_default_context(cafile=place)
    except (OSError, TypeError) as error:
        raise ValueError(f"verify is a file or folder of CA certificates, and not {place!r}: {error}") from None


def checked(proxy: str) -> httpx.Proxy:
    """Return a proxy in httpx's form.

    Raises:
        ValueError: the text is not the URL of a proxy.
    """
    try:
        return httpx.Proxy(proxy)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"proxy is a URL such as http://127.0.0.1:3128: {error}") from None
