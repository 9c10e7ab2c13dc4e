"""The clients of Python as surfaces: blocking and awaited, of the library and of the SDK."""

from __future__ import annotations

import contextlib
from typing import Any

from support.surfaces.refused import of_clients


class OfClient:
    """A filter by a client, or claims by one: its own methods, with ``Refused`` for every error."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, method: str):
        value = getattr(self._made, method)
        if not callable(value):
            return value

        def called(*given, **more):
            with of_clients():
                return value(*given, **more)

        return called

    def close(self) -> None:
        self._made.close()

    @contextlib.contextmanager
    def claims(self, **more):
        """Claim, and give back what is left at the end."""
        with of_clients():
            mine = self._made.claims(**more)
        with mine as entered:
            yield OfClient(entered)

    def unclosed(self, **more):
        """Return an object that claims, and that gives nothing back at its end."""
        return OfClient(self._made.claims(**more))

    def figures(self) -> dict[str, Any]:
        """Return what ``info`` tells, by the names in its JSON."""
        with of_clients():
            found = self._made.info()
        return found["info"] if isinstance(found, dict) else found.to_dict()
