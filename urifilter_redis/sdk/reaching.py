"""How the SDK reaches the service: how long it waits, whose certificates it trusts, through which proxy."""

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
        reply: for an answer; the service's own patience with Redis, and time for the body, are shorter.
        total: after this long nothing is sent again, and the call fails.
        restoring: while the filter is being restored; after that the call fails.
        first: in place of ``total``, if that is longer, until the service has answered once: its address may be wrong.
    """

    connect: float = 3.0
    reply: float = 20.0
    total: float = 60.0
    restoring: float = 0.0
    first: float = 5.0


TIMEOUTS = Timeouts()


def first_of(timeouts: steps.Timeouts) -> steps.Timeouts:
    """Return how long to wait until the service has answered once."""
    first = timeouts.first if isinstance(timeouts, Timeouts) else timeouts.total
    return replace(timeouts, total=min(first, timeouts.total))


def trusted(verify: Verify) -> ssl.SSLContext | bool:
    """Return what httpx takes to verify certificates.

    Raises:
        ValueError: there are no certificates.
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
    """Return a proxy.

    Raises:
        ValueError: it is no URL of one.
    """
    try:
        return httpx.Proxy(proxy)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"proxy is a URL such as http://127.0.0.1:3128: {error}") from None
