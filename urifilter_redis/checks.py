"""Refuse an argument of the wrong type with its name."""

from __future__ import annotations

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


def _check(name: str, value: object, wanted: str, *, fits: bool) -> None:
    if not fits:
        raise TypeError(f"{name} is {wanted}, and not {reprlib.repr(value)}")
