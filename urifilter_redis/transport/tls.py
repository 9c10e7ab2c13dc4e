"""TLS: the options of a ``rediss://`` address, and advice for failures of a connection."""

from __future__ import annotations

import inspect
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from redis.asyncio import SSLConnection
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError  # noqa: A004

#: The options of TLS that name a file or a folder.
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")

#: The values of ``ssl_min_version``: two names, and OpenSSL's numbers.
_VERSIONS = {str(int(each)): each for each in ssl.TLSVersion if each > 0}
_VERSIONS |= {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}

# The options that are read here, since not every release of redis-py reads them, or says so if they are wrong: the
# values of each, and a text that names them.
_READ: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "ssl_cert_reqs": ({each: each for each in ("required", "optional", "none")}, "required, optional or none"),
    "ssl_check_hostname": (
        dict.fromkeys(("true", "yes", "1"), True) | dict.fromkeys(("false", "no", "0"), False),
        "true or false",
    ),
    "ssl_min_version": (_VERSIONS, "TLSv1.2 or TLSv1.3"),
}

#: The options of TLS in an address. Others of redis-py's, such as those of OCSP, do nothing as text and are refused.
OPTIONS = (
    *_FILES,
    *_READ,
    "ssl_ca_data",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_password",
)

_VERIFY = "CERTIFICATE_VERIFY_FAILED"

# The texts of failures of TLS with the advice for each; after one of the first, another attempt would certainly fail,
# too. The first one that fits counts.
_CERTAIN = (
    ("KEY_VALUES_MISMATCH", "ssl_keyfile is not the key of ssl_certfile"),
    (
        "NO_CERTIFICATE_OR_CRL_FOUND|NO_START_LINE|PEM lib|(?i:bad.decrypt|bad.password)",
        "a file of the ssl_ options has no certificate or no key, or ssl_password is not the key's password",
    ),
    ("No cipher can be selected", "ssl_ciphers names no cipher that this OpenSSL knows"),
    (
        f"{_VERIFY}.*(Hostname|IP address) mismatch",
        "the server's certificate is for other hosts: use a name for which it was made",
    ),
    (
        f"{_VERIFY}.*(expired|not yet valid)",
        "the server's certificate is out of date: renew it, or set this machine's clock right",
    ),
    (_VERIFY, "this machine does not know the CA of the server's certificate: name its file by ssl_ca_certs="),
    ("ALERT_CERTIFICATE_EXPIRED", "the client's certificate (ssl_certfile) is out of date: renew it"),
    (
        "ALERT_CERTIFICATE_REQUIRED|ALERT_HANDSHAKE_FAILURE",
        "the server wants a client's certificate: give ssl_certfile= and ssl_keyfile=",
    ),
    (
        "ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_UNKNOWN|UNSUPPORTED_CERTIFICATE|DECRYPT_ERROR)",
        "the server does not accept the client's certificate (ssl_certfile): it wants one of a CA that it knows",
    ),
    (
        "UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION|NO_PROTOCOLS_AVAILABLE",
        "the server and this machine have no version of TLS in common: see ssl_min_version",
    ),
    (
        "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
        "the server does not speak TLS at this port: give the number of its tls-port",
    ),
)
_PASSING = (
    (
        "Timeout connecting|handshake operation timed out",
        "no TLS connection in time: does the server speak TLS at this port?",
    ),
    (
        "EOF occurred|Broken pipe|Connection reset|Connection lost|closed by server",
        "the server broke the connection off: it may want another client's certificate (ssl_certfile=, ssl_keyfile=)",
    ),
)
# redis-py 6 takes the password of a key for blocking connections only.
_TAKES_PASSWORD = "ssl_password" in inspect.signature(SSLConnection).parameters

# The texts of failures of a connection without TLS to a port that wants it.
_CLOSED = re.compile(r"Connection reset|Connection lost|Broken pipe|closed by server|Protocol error")
_PLAIN = "the server broke the connection off: if it wants TLS, the address begins with rediss://"
_SOURCE = re.compile(r" ?\(_ssl\.c:\d+\)")


def taken(url: str) -> tuple[str, dict[str, Any]]:
    """Take the options of TLS that need reading off an address; return the rest of it, and redis-py's arguments.

    Raises:
        ValueError: an option is unknown, has an impossible value, or stands in an address without TLS.

    Example:
        >>> taken("rediss://localhost/0?ssl_ca_certs=ca.pem&ssl_check_hostname=no")
        ('rediss://localhost/0?ssl_ca_certs=ca.pem', {'ssl_check_hostname': False})
    """
    address, _, query = url.partition("?")
    named = _options(query)
    if named and not address.startswith("rediss"):
        raise ValueError(f"{', '.join(named)}: options of TLS, for an address that begins with rediss://")
    unknown = [name for name in named if name not in OPTIONS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no option of rediss://, which has {', '.join(sorted(OPTIONS))}")
    if "ssl_keyfile" in named and "ssl_certfile" not in named:
        raise ValueError("ssl_keyfile is for a certificate: give ssl_certfile, too")
    read = {name: _read(name, text) for name, text in named.items() if name in _READ}
    # without a password OpenSSL would ask for that of an encrypted key, at the terminal
    more = {"ssl_password": ""} if _TAKES_PASSWORD and "ssl_certfile" in named and "ssl_password" not in named else {}
    kept = [each for each in query.split("&") if each and unquote_plus(each.partition("=")[0]) not in read]
    return address + "?" * bool(kept) + "&".join(kept), read | more


def explained(error: Exception, url: str, *, reached: bool) -> tuple[Exception, bool]:
    """Return the reason why there is no connection, with advice if there is any; and whether a retry must fail, too.

    ``reached`` says whether there was a connection to the server at ``url`` before.
    """
    if isinstance(error, AuthenticationError | ResponseError):
        return error, False
    text = _SOURCE.sub("", str(error)).rstrip(". ")
    if url.startswith("rediss"):
        advice, certain = _advice(error, text, url)
    else:
        advice, certain = _PLAIN if _CLOSED.search(text) and not reached else "", False
    if not advice:
        return error, False
    made = type(error) if isinstance(error, TimeoutError) else ConnectionError
    explained_error = made(f"{advice} ({text})")
    explained_error.__cause__ = error
    return explained_error, certain


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and the errors that it came of."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    return causes


def _advice(error: Exception, text: str, url: str) -> tuple[str, bool]:
    if any(isinstance(each, OSError) and not isinstance(each, ssl.SSLError) for each in causes_of(error)):
        given = _options(url.partition("?")[2]).items()
        unread = [f"{name}: {why}" for name, path in given if (why := _unread(path, name))]
        if unread:
            return f"a file of the address cannot be read: {'; '.join(unread)}", True
    for words in (_CERTAIN, _PASSING):
        for pattern, advice in words:
            if re.search(pattern, text, re.DOTALL):
                return advice, words is _CERTAIN
    return "", False


def _unread(path: str, name: str) -> str:
    """Return the reason why a file of an option cannot be read; empty if it can, or the option names no file."""
    if name not in _FILES:
        return ""
    try:
        if name == "ssl_ca_path":
            next(Path(path).iterdir(), None)
        else:
            Path(path).open("rb").close()
    except OSError as error:
        return f"{error.strerror} ({path})"
    return ""


def _options(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items() if name.startswith("ssl_")}


def _read(name: str, text: str) -> Any:
    values, possible = _READ[name]
    if text.lower() not in values:
        raise ValueError(f"{name} is {possible} and not {text!r:.40}")
    return values[text.lower()]
