"""The meaning of outcomes: this module alone reads the servers' replies and redis-py's exceptions."""

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
    ServerFull,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.protocol.acl import MEND

#: The words before the key in the error about a key that this user may not touch.
FORBIDDEN_KEY = "this user may not touch the key"


class Decision(Enum):
    """The decision about an outcome: what the exchange does next with the request."""

    #: The outcome is the reply.
    ANSWERED = auto()
    #: The command did not run. It is sent again after a pause.
    WAIT = auto()
    #: The command may have run. It is sent again after a pause, under the same call id.
    IN_DOUBT = auto()
    #: The command did not run, because the server does not have its script. The script is loaded first.
    LOAD_SCRIPT = auto()
    #: The command did not run, because another node has its key. It is sent again at once.
    MOVED = auto()
    #: The command did not run, because its keys are on their way to another node. It is sent again after a pause.
    MIGRATING = auto()
    #: The command did not run, because its list of live slices is stale. The refusal has the present one.
    REFRESH = auto()
    #: The command did not run, because today is full. The flow makes the next slice first.
    FULL = auto()
    #: The command did not run, because periods were missed. The flow turns the filter first.
    DUE = auto()
    #: The command did not run, because the filter is being restored. It is sent again if the caller wants to wait.
    RESTORING = auto()
    #: The command came past its deadline and did not run. It needs a new call id.
    RENEW = auto()
    #: The command did not run, and would not if it were sent again.
    REFUSED = auto()
    #: The script stopped in its middle and may have done a part. Sending it again would not help.
    DIED = auto()


@dataclass(frozen=True, slots=True)
class Unsent:
    """There was no connection, so the server has certainly not seen the command.

    Attributes:
        error: the reason.
        hopeless: whether another attempt would certainly fail too.
    """

    error: Exception
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The connection broke, because of ``error``, after the command may have been sent. It may have run, or may run."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Decided:
    """An outcome that the connector has decided itself, because its server is not Redis.

    Attributes:
        error: the error to raise if the request is given up.
        decision: the decision about the outcome.
        pause: the seconds to wait before the next attempt; 0 if the server named none.
    """

    error: UriFilterError
    decision: Decision
    pause: float = 0.0


#: The kinds of outcomes that are no answers.
NO_ANSWERS = (Decided, RedisError, Unanswered, Unsent)

#: The error words of the scripts that end a call, and the exception of each.
SCRIPT_ERRORS: Mapping[str, type[UriFilterError]] = {
    "BADARG": UriFilterError,
    "BADPHASE": RotationConflict,
    "FORMAT": UriFilterError,
    "LOST": SliceLost,
    "MISMATCH": ConfigMismatch,
    "MODULE": UriFilterError,
    "NOFILTER": FilterNotFound,
    "OLDCALL": UriFilterError,
    "RESTORING": Restoring,
    "WRONGTYPE": SliceLost,
}

#: The advice about a slice that is lost.
TO_DO_IF_LOST = "if the filter has an archive, open it with that to restore it; else drop it, and create it anew"

_AGAIN = {
    "NOSCRIPT": Decision.LOAD_SCRIPT,
    "STALE": Decision.REFRESH,
    "FULL": Decision.FULL,
    "DUE": Decision.DUE,
    "LATECALL": Decision.RENEW,
    "RESTORING": Decision.RESTORING,
    "BUSY": Decision.WAIT,
    "CLUSTERDOWN": Decision.WAIT,
    "LOADING": Decision.WAIT,
    "MASTERDOWN": Decision.WAIT,
    "TRYAGAIN": Decision.MIGRATING,
    "ASK": Decision.MOVED,
    "MOVED": Decision.MOVED,
}

_MOVING = "the keys are on their way to another node of the Redis Cluster, and nothing was changed"
_MOVED = "the nodes of the Redis Cluster do not agree yet who has these keys, and nothing was changed"
_MAY_NOT_ASK = "another node of the Redis Cluster has these keys, and this user may not ask for it (CLUSTER SLOTS)"
#: The words of an advice that are wrong if an earlier attempt may have run.
_UNCHANGED = re.compile("[,;](?: and)? nothing was changed")

#: The advice for each error word of a server that refuses.
_ADVICE = {
    "OOM": (
        "the server's memory is full, and it wrote nothing more: raise maxmemory, or drop a filter, then ask again"
        " (insert and forget need memory; contains, remove and drop do not)"
    ),
    "NOSCRIPT": "the server forgets scripts as soon as they are loaded, and nothing was changed",
    "MISCONF": "the server cannot save its data (is its disk full?), and nothing was changed",
    "READONLY": "this server is a read-only replica: give the address of the primary",
    "NOREPLICAS": "too few replicas are connected for the server's min-replicas-to-write",
    "NOPERM": f"this user may not run the commands or touch the keys, and nothing was changed: {MEND}",
    "NOAUTH": "the server wants a password: put it into the URL (redis://:PASSWORD@host/0)",
    "WRONGPASS": "the server does not accept this user name and password",
    "NOPASS": "the server wants no password: take it out of the URL",
    "ASK": _MOVING,
    "MOVED": _MOVED,
    "CROSSSLOT": "the keys of one call are in several slots of a Redis Cluster",
    "CLUSTERDOWN": "the Redis Cluster has no master for these keys (CLUSTER INFO says why), and nothing was changed",
    "TRYAGAIN": _MOVING,
}

#: The words of what a server refuses until its users, or the caller's address of it, are changed.
_UNTIL_MENDED = ("NOPERM", "NOAUTH", "WRONGPASS", "NOPASS")

_NO_DATABASE = "the server has no database of this number (a Redis Cluster has 0 only): end the URL with /0"

# redis-py drops the first word of these errors and makes it the class.
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
# The server's texts about a script that it stopped, and about a command of a script that an ACL refused. Neither text
# begins with an error word.
_STOPPED = re.compile(r"user_script|Error running script")
_REFUSED_IN_SCRIPT = re.compile(r"executing the script can't|ACL failure in script")
# The server's text about a key that an ACL forbids. It does not name the key.
_KEY = re.compile(r"permissions to access (a key|one of the keys)")
# These errors stop a script only at or before its first write, because the scripts try every command before.
_NOTHING_WRITTEN = {"OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM", "WRONGTYPE"}
_WITHHELD = re.compile(r"NOPERM|unknown (sub)?command", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?= |$)")
# Redis 6.2 wraps the error of a command inside a script: "ERR Error running script … -OOM command not …".
_WRAPPED = re.compile(r"Error running script .*@user_script: ?\d+: -?(?P<inner>[A-Z]+ .*)", re.DOTALL)
_LATE = re.compile(r"LATECALL (\d+)")
_STALE = re.compile(
    r"STALE epoch (?P<epoch>\d+), opened (?P<opened>\d+), claims (?P<claims>\d+), live slices (?P<slices>.*)", re.DOTALL
)


def decide(outcome: Any) -> Decision:
    """Return the decision about the outcome of a command (see ``steps.Send``)."""
    if not isinstance(outcome, NO_ANSWERS):
        return Decision.ANSWERED
    if isinstance(outcome, Decided):
        return outcome.decision
    if isinstance(outcome, Unanswered):
        return Decision.IN_DOUBT
    if isinstance(outcome, Unsent):
        if isinstance(outcome.error, ResponseError):  # redis-py's own first command failed: there is no such database
            return _decide_refusal(outcome.error)
        return Decision.REFUSED if outcome.hopeless or isinstance(outcome.error, AuthenticationError) else Decision.WAIT
    return _decide_refusal(outcome)


def _decide_refusal(error: RedisError) -> Decision:
    word = _word(error)
    if "max number of clients" in str(error):  # those of a cluster's node say "+ cluster connections", too
        return Decision.WAIT
    if word not in _AGAIN and word not in _NOTHING_WRITTEN and _STOPPED.search(str(error)):
        return Decision.DIED
    return _AGAIN.get(word, Decision.REFUSED)


def error_of(outcome: Any, where: str, *, in_doubt: bool = False, alone: bool = False) -> UriFilterError:
    """Return the error to raise for an outcome that is not an answer.

    Args:
        outcome: the outcome.
        where: the name of the server or filter.
        in_doubt: whether an earlier attempt may have run.
        alone: whether this user may not ask for other nodes than the one that answered.
    """
    if isinstance(outcome, Decided):
        return outcome.error
    if isinstance(outcome, Unsent) and isinstance(outcome.error, exceptions.ClusterDownError):
        outcome = outcome.error
    if isinstance(outcome, Unsent) and (advice := _on_connecting(outcome.error)):
        return ServerUnavailable(f"{where}: {advice} ({outcome.error})")
    if isinstance(outcome, Unsent | Unanswered):
        text = str(outcome.error) or type(outcome.error).__name__
        return ServerUnavailable(f"{where}: {text}")
    word, text = _word(outcome), text_of(outcome)
    if word in SCRIPT_ERRORS:
        return SCRIPT_ERRORS[word](f"{where}: {text}: {TO_DO_IF_LOST}" if word == "LOST" else f"{where}: {text}")
    advice = _MAY_NOT_ASK if word == "MOVED" and alone else _ADVICE.get(word, "the server refuses")
    kind = ServerFull if word == "OOM" else ServerUnavailable
    return kind(f"{where}: {_UNCHANGED.sub('', advice) if in_doubt else advice} ({text})")


def _on_connecting(error: Exception) -> str:
    """Return the advice for what the server refuses as a connection begins: the password, or the database; else ""."""
    if isinstance(error, AuthenticationError):
        return _ADVICE[_word(error)]
    refused = isinstance(error, ResponseError) and re.search("DB index|SELECT is not allowed", str(error))
    return _NO_DATABASE if refused else ""


def needs_mending(error: UriFilterError) -> bool:
    """Whether a server refused because of the user, the password, a right or the database: it would do so again."""
    told = [_UNCHANGED.split(_ADVICE[word])[0] for word in _UNTIL_MENDED]
    return any(each in str(error) for each in (*told, _NO_DATABASE))


def is_withheld(error: UriFilterError) -> bool:
    """Whether a server keeps a command from this user: by its ACL, or from everybody by rename-command."""
    return bool(_WITHHELD.search(str(error)))


def forbids_key(outcome: Any) -> bool:
    """Whether the server refuses a command because this user may not touch one of its keys."""
    return isinstance(outcome, RedisError) and _word(outcome) == "NOPERM" and bool(_KEY.search(str(outcome)))


def forbids_command(outcome: Any) -> bool:
    """Whether the server refuses a command, or the script that calls it, because this user may not run the command."""
    return isinstance(outcome, RedisError) and _word(outcome) == "NOPERM" and not _KEY.search(str(outcome))


def late_at(outcome: Any) -> int:
    """Return the server's time, ms, from the text of a LATECALL; raise ValueError if the outcome is none."""
    return int(_found(_LATE, outcome, "LATECALL")[1])


def fields_of_stale(outcome: Any) -> dict[str, str]:
    """Return the fields of ``meta`` in the text of a STALE; raise ValueError if the outcome is none."""
    return _found(_STALE, outcome, "STALE").groupdict()


def _found(pattern: re.Pattern[str], outcome: Any, word: str) -> re.Match[str]:
    if (found := pattern.search(str(outcome))) is None:
        raise ValueError(f"not a {word}: {outcome}")
    return found


def text_of(outcome: RedisError) -> str:
    """Return the server's error text, without the text that Redis 6.2 wraps around it."""
    wrapped = _WRAPPED.search(str(outcome))
    text = wrapped["inner"] if wrapped else str(outcome)
    word = _word(outcome)
    return text if text.startswith(word) else f"{word} {text}"


def unsaved(told: Any) -> Unanswered:
    """Return the outcome of a call whose answer may be lost; ``told`` is what the server says to a PING after it."""
    why = told.error if isinstance(told, Unsent | Unanswered) else text_of(told)
    text = "the server cannot save what it has answered (is its disk full?), so the answer may be lost"
    return Unanswered(ConnectionError(f"{text} ({why})"))


def is_readonly(outcome: Any) -> bool:
    """Whether a server refuses because it is a replica."""
    return isinstance(outcome, RedisError) and _word(outcome) == "READONLY"


def is_away(outcome: Any) -> bool:
    """Whether a server does not answer, or has no data yet."""
    if isinstance(outcome, Unsent | Unanswered):
        return True
    return isinstance(outcome, RedisError) and _word(outcome) in {"LOADING", "MASTERDOWN"}


def is_ask(outcome: Any) -> bool:
    """Whether the answer is ASK: the keys are at another node already, which is not the master of their slot yet."""
    return isinstance(outcome, exceptions.AskError) and not isinstance(outcome, exceptions.MovedError)


def node_of(outcome: Any) -> str:
    """Return the name of the node that refused; of an ASK that of the node to ask. Empty: there is one server."""
    return getattr(outcome, "node", "")


def to_mapping(reply: Any) -> dict[str, str]:
    """Return a reply of HGETALL, of RESP2 or RESP3, as a mapping.

    Raises:
        ServerUnavailable: the reply is no reply of HGETALL.
    """
    if isinstance(reply, Mapping):
        pairs = list(reply.items())
    elif isinstance(reply, list) and len(reply) % 2 == 0:
        pairs = list(zip(reply[::2], reply[1::2], strict=True))
    else:
        raise nonsense(reply)
    return {text_in(name): text_in(value) for name, value in pairs}


def to_scores(reply: Any) -> list[tuple[bytes, float]]:
    """Return the members and scores of a reply WITHSCORES: RESP2 lists them in turn, RESP3 in pairs."""
    flat = [each for pair in reply for each in (pair if isinstance(pair, list | tuple) else (pair,))]
    return [(bytes(member), float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def to_fields(reply: bytes | str) -> dict[str, str]:
    """Return the fields of a reply of INFO."""
    return dict(line.split(":", 1) for line in text_in(reply).splitlines() if ":" in line)


def nonsense(reply: Any) -> ServerUnavailable:
    """Return the error to raise for a reply that does not fit its command."""
    return ServerUnavailable(f"the server answers {reply!r:.80}: is there a Redis or Valkey behind this address?")


def text_in(value: Any) -> str:
    """Return a reply, or a part of one, as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _word(error: RedisError) -> str:
    """Return the error word: the first word of the server's error text."""
    if _REFUSED_IN_SCRIPT.search(str(error)):
        return "NOPERM"
    wrapped = _WRAPPED.search(str(error))
    if wrapped:
        return wrapped["inner"].split(" ", 1)[0]
    for kind in type(error).__mro__:  # the nearest first: redis-py's MovedError is an AskError
        if kind in _CLASSES:
            return _CLASSES[kind]
    if isinstance(error, AuthenticationError):
        if "required" in str(error):
            return "NOAUTH"
        return "NOPASS" if re.search("no password is set|without any password", str(error)) else "WRONGPASS"
    found = _WORD.match(str(error))
    return found[0] if found else "ERR"
