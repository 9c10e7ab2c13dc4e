"""Errors of all surfaces as one: ``Refused``, with one word for each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from urifilter_redis.errors import FilterAPIError, UriFilterError

#: The word for a wish that nobody can mean, or that this filter cannot do.
IMPOSSIBLE = "impossible"

#: The words of the library's errors and of what the commands print, by their classes; most are the HTTP service's.
_OF_CLASSES = {
    "AnswerLost": "answer_lost",
    "BadItem": "bad_item",
    "ConfigMismatch": "config_mismatch",
    "FilterFull": "filter_full",
    "FilterNotFound": "filter_not_found",
    "Restoring": "restoring",
    "ServerFull": "server_full",
    "SliceLost": "slice_lost",
    "TypeError": IMPOSSIBLE,
    "UsageError": IMPOSSIBLE,
    "ValueError": IMPOSSIBLE,
}

#: The error codes of the HTTP service for which other surfaces have another word.
_OF_CODES = {"bad_request": IMPOSSIBLE, "not_for_this_filter": IMPOSSIBLE, "item_too_long": "bad_item"}


class Refused(Exception):
    """A surface has refused.

    Attributes:
        word: the word for the error.
        indices: the positions of the items that it is about.
    """

    def __init__(self, word: str, indices: Sequence[int] = (), text: str = "") -> None:
        super().__init__(f"{word} {[*indices] or ''} {text}")
        self.word, self.indices = word, [*indices]


def of_class(name: str, text: str) -> Refused:
    """Return the refusal for a class of errors, by its name."""
    return Refused(_OF_CLASSES[name], text=text)


def of_code(code: str, indices: Sequence[int], text: str) -> Refused:
    """Return the refusal for an error code of the service."""
    return Refused(_OF_CODES.get(code, code), indices, text)


@contextlib.contextmanager
def of_clients() -> Iterator[None]:
    """Raise what a client raises as ``Refused``."""
    try:
        yield
    except FilterAPIError as error:
        raise of_code(error.error_code, error.indices, str(error)) from error
    except (UriFilterError, TypeError, ValueError) as error:
        refused = of_class(type(error).__name__, str(error))
        refused.indices = getattr(error, "indices", [])
        raise refused from error


@contextlib.contextmanager
def refused(word: str, indices: Sequence[int] = ()) -> Iterator[None]:
    """Expect that a surface refuses with a word, and names just these positions."""
    with pytest.raises(Refused) as caught:
        yield
    assert (caught.value.word, caught.value.indices) == (word, [*indices]), caught.value
