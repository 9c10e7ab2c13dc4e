"""What a reply means: the one place that reads what servers answer, and what redis-py makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from redis import exceptions
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from urifilter_redis.errors import (
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    RotationConflict,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)

__all__ = [
    "SCRIPT_ERRORS",
    "Judged",
    "Unanswered",
    "Unsent",
    "Verdict",
    "error_of",
    "judge",
    "late_at",
    "nonsense",
    "text_in",
    "text_of",
    "to_fields",
    "to_mapping",
]


class Verdict(Enum):
    """What to do about an outcome."""

    ANSWERED = auto()
    WAIT = auto()  # not run; the same again after a pause
    IN_DOUBT = auto()  # may have run; the same again, under the same call id, after a pause
    LOAD_SCRIPT = auto()  # not run; the server does not have the script
    REFRESH = auto()  # not run; the list of slices is out of date
    FULL = auto()  # not run; the next slice must be made first
    RESTORING = auto()  # not run; the same again once the filter is there, if the caller wants to wait
    RENEW = auto()  # not run, and will not under this call id
    REFUSED = auto()  # not run; asking again would not help
    DIED = auto()  # a script ended in its middle, so it may have done a part; asking again would not help


@dataclass(frozen=True, slots=True)
class Unsent:
    """There was no connection: the server has certainly not seen the command.

    Attributes:
        error: why.
        hopeless: to try again would bring the same.
    """

    error: Exception
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The connection broke after the command was, perhaps, sent: it may have run, or may still run."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Judged:
    """An outcome that the connector has understood already: it is not Redis that answers.

    Attributes:
        error: what to raise.
        verdict: what to do about it.
        pause: seconds before the same may be sent again; 0 if whoever answered did not say.
    """

    error: UriFilterError
    verdict: Verdict
    pause: float = 0.0


#: The error words of the scripts that end a call, and what they are in Python.
SCRIPT_ERRORS: Mapping[str, type[UriFilterError]] = {
    "BADARG": UriFilterError,
    "BADPHASE": RotationConflict,
    "LOST": SliceLost,
    "MISMATCH": ConfigMismatch,
    "NOFILTER": FilterNotFound,
    "OLDCALL": UriFilterError,
    "RESTORING": Restoring,
    "WRONGTYPE": SliceLost,
}

_AGAIN = {
    "NOSCRIPT": Verdict.LOAD_SCRIPT,
    "STALE": Verdict.REFRESH,
    "FULL": Verdict.FULL,
    "LATECALL": Verdict.RENEW,
    "RESTORING": Verdict.RESTORING,
    "BUSY": Verdict.WAIT,
    "CLUSTERDOWN": Verdict.WAIT,
    "LOADING": Verdict.WAIT,
    "MASTERDOWN": Verdict.WAIT,
    "TRYAGAIN": Verdict.WAIT,
}

#: What to do about a server that refuses; the server's own words come first.
_ADVICE = {
    "OOM": (
        "the server is out of memory: raise maxmemory (for a moment, to forget), or drop a filter; nothing was changed"
        " (insert and forget need memory, remove and drop do not)"
    ),
    "MISCONF": "the server cannot save its data (is its disk full?), and nothing was changed",
    "READONLY": "this server is a read-only replica: give the address of the primary",
    "NOREPLICAS": "too few replicas are connected for the server's min-replicas-to-write",
    "NOPERM": "this user may not run the commands or touch the keys, and nothing was changed: mend its ACL",
    "NOAUTH": "the server wants a password: put it into the URL (redis://:PASSWORD@host/0)",
    "WRONGPASS": "the server does not accept this user name and password",
    "ASK": "this is one node of a Redis Cluster, which is not supported yet",
    "MOVED": "this is one node of a Redis Cluster, which is not supported yet",
    "CROSSSLOT": "this is one node of a Redis Cluster, which is not supported yet",
}

# redis-py takes the first word off these and makes it the class.
_CLASSES: Mapping[type, str] = {
    exceptions.AskError: "ASK",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.MovedError: "MOVED",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.TryAgainError: "TRYAGAIN",
}
# What the server says of a script that it stopped, and of a command that an ACL refused to one: with no word before it.
_STOPPED = re.compile(r"user_script|Error running script")
_REFUSED_IN_SCRIPT = re.compile(r"executing the script can't|ACL failure in script")
# A script is stopped for these only at its first write, or before it: the scripts try every command before.
_NOTHING_WRITTEN = {"OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM", "WRONGTYPE"}
_WORD = re.compile(r"[A-Z]+(?= |$)")
# Redis 6.2 wraps what a command inside a script answered: "ERR Error running script … -OOM command not …".
_WRAPPED = re.compile(r"Error running script .*@user_script: ?\d+: -?(?P<inner>[A-Z]+ .*)", re.DOTALL)
_LATE = re.compile(r"LATECALL (\d+)")


def judge(outcome: Any) -> Verdict:
    """Say what to do about the outcome of a command (see ``steps.Send``)."""
    if isinstance(outcome, Judged):
        return outcome.verdict
    if isinstance(outcome, Unanswered):
        return Verdict.IN_DOUBT
    if isinstance(outcome, Unsent):
        if isinstance(outcome.error, ResponseError):  # to what redis-py sends first: there is no such database
            return _judge_refusal(outcome.error)
        return Verdict.REFUSED if outcome.hopeless or isinstance(outcome.error, AuthenticationError) else Verdict.WAIT
    if not isinstance(outcome, RedisError):
        return Verdict.ANSWERED
    return _judge_refusal(outcome)


def _judge_refusal(error: RedisError) -> Verdict:
    word = _word(error)
    if "max number of clients reached" in str(error):
        return Verdict.WAIT
    if word not in _AGAIN and word not in _NOTHING_WRITTEN and _STOPPED.search(str(error)):
        return Verdict.DIED
    return _AGAIN.get(word, Verdict.REFUSED)


def error_of(outcome: Any, where: str) -> UriFilterError:
    """Make the error to raise for an outcome that is not an answer; ``where`` names the server or filter."""
    if isinstance(outcome, Judged):
        return outcome.error
    if isinstance(outcome, Unsent | Unanswered):
        text = str(outcome.error) or type(outcome.error).__name__
        return ServerUnavailable(f"{where}: {text}")
    word, text = _word(outcome), text_of(outcome)
    if word in SCRIPT_ERRORS:
        return SCRIPT_ERRORS[word](f"{where}: {text}")
    return ServerUnavailable(f"{where}: {_ADVICE.get(word, 'the server refuses')} ({text})")


def late_at(outcome: Any) -> int:
    """Return the server's time in ms that a LATECALL tells."""
    found = _LATE.search(str(outcome))
    if found is None:
        raise ValueError(f"not a LATECALL: {outcome}")
    return int(found[1])


def text_of(outcome: RedisError) -> str:
    """Return what the server said, without what Redis 6.2 wraps around it."""
    wrapped = _WRAPPED.search(str(outcome))
    text = wrapped["inner"] if wrapped else str(outcome)
    word = _word(outcome)
    return text if text.startswith(word) else f"{word} {text}"


def to_mapping(reply: Any) -> dict[str, str]:
    """Read the reply of HGETALL, RESP2 or RESP3.

    Raises:
        ServerUnavailable: it is nonsense.
    """
    if isinstance(reply, Mapping):
        pairs = list(reply.items())
    elif isinstance(reply, list) and len(reply) % 2 == 0:
        pairs = list(zip(reply[::2], reply[1::2], strict=True))
    else:
        raise nonsense(reply)
    return {text_in(name): text_in(value) for name, value in pairs}


def to_fields(reply: bytes | str) -> dict[str, str]:
    """Read the reply of INFO."""
    return dict(line.split(":", 1) for line in text_in(reply).splitlines() if ":" in line)


def nonsense(reply: Any) -> ServerUnavailable:
    """Return the error to raise for a reply that no server gives to what it was asked."""
    return ServerUnavailable(f"the server answers {reply!r:.80}: is there a Redis or Valkey behind this address?")


def text_in(value: Any) -> str:
    """Return a reply, or a part of one, as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _word(error: RedisError) -> str:
    """Return the first word of what the server said."""
    if _REFUSED_IN_SCRIPT.search(str(error)):
        return "NOPERM"
    wrapped = _WRAPPED.search(str(error))
    if wrapped:
        return wrapped["inner"].split(" ", 1)[0]
    for kind in type(error).__mro__:  # the nearest first: redis-py's MovedError is an AskError
        if kind in _CLASSES:
            return _CLASSES[kind]
    if isinstance(error, AuthenticationError):
        return "NOAUTH" if "required" in str(error) else "WRONGPASS"
    found = _WORD.match(str(error))
    return found[0] if found else "ERR"
