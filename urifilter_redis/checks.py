"""Refuse an argument of the wrong type, or a setting with an impossible value, with its name."""

from __future__ import annotations

import math
import reprlib
from numbers import Integral, Real


def check_text(name: str, value: object, *, optional: bool = False) -> None:
    """Raise TypeError unless an argument is a str; ``optional``: or None."""
    wanted = "a str, or None" if optional else "a str"
    _check(name, value, wanted, fits=isinstance(value, str) or (optional and value is None))


def check_flag(name: str, value: object) -> None:
    """Raise TypeError unless an argument is True or False: a text such as ``"no"`` would count as True."""
    _check(name, value, "True or False", fits=isinstance(value, bool))


def check_function(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a function, or None."""
    _check(name, value, "a function, or None", fits=value is None or callable(value))


def check_seconds(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a number."""
    _check(name, value, "a number of seconds", fits=isinstance(value, Real) and not isinstance(value, bool))


def check_whole(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a whole number, or None."""
    fits = value is None or (isinstance(value, Integral) and not isinstance(value, bool))
    _check(name, value, "a whole number, or None", fits=fits)


def check_among(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless a setting has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)} and not {value!r}")


def check_least(name: str, value: object, least: int) -> None:
    """Raise ValueError unless a setting is a whole number that is not too low."""
    if not is_whole(value, least):
        raise ValueError(f"{name} is a whole number from {least} up and not {value!r}")


def is_whole(value: object, least: int, most: float = math.inf) -> bool:
    """Whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check(name: str, value: object, wanted: str, *, fits: bool) -> None:
    if not fits:
        raise TypeError(f"{name} is {wanted}, and not {reprlib.repr(value)}")
