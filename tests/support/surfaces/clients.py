"""The clients of Python as surfaces: blocking and awaited, of the library and of the SDK."""

from __future__ import annotations

import contextlib
from typing import Any

from support.surfaces.refused import of_clients


class OfClient:
    """A filter by a client, or claims by one: its own methods, with ``Refused`` for every error.

    ``name`` is the filter's for the SDK, whose methods begin with it.
    """

    def __init__(self, made: Any, *name: str) -> None:
        self._made, self._name = made, name

    def __getattr__(self, method: str):
        value = getattr(self._made, method)
        if not callable(value):
            return value

        def called(*given, **more):
            with of_clients():
                return value(*self._name, *given, **more)

        return called

    def close(self) -> None:
        self._made.close()

    @contextlib.contextmanager
    def claims(self, **more):
        """Claim, and give back what is left at the end."""
        with of_clients():
            mine = self._made.claims(*self._name, **more)
        with mine as entered:
            yield OfClient(entered)

    def unclosed(self, **more):
        """Return an object that claims, and that gives nothing back at its end."""
        return OfClient(self._made.claims(*self._name, **more))

    def figures(self) -> dict[str, Any]:
        """Return what ``info`` tells, by the names in its JSON."""
        with of_clients():
            found = self._made.info(*self._name)
        return found["info"] if self._name else found.to_dict()
