"""What happens to a client in the middle of its work with an archive."""

from __future__ import annotations

import asyncio
import contextlib

from urifilter_redis.engine import driver


class ArchiveSteps:
    """Does something before the n-th step of an archive, or after it.

    Attributes:
        names: the steps since ``at`` was called.

    Args:
        monkeypatch: which replaces the function that performs a step.
        name: of that function.
        but: the names of steps that do not count.
    """

    def __init__(self, monkeypatch, name: str = "perform_step", but: frozenset[str] = frozenset()) -> None:
        self._perform, self._but, self.names = getattr(driver, name), but, []
        self.at(0)
        monkeypatch.setattr(driver, name, self.perform if name == "perform_step" else self.async_perform)

    def at(self, number: int, act=None, *, after: bool = False) -> None:
        """Do it at this step from now on; 0: at none."""
        self.names, self._number, self._act, self._after = [], number, act, after

    @contextlib.contextmanager
    def _around(self, step):
        """Do it before or after what is entered, if it is time; yields whether it is."""
        counts = getattr(step, "name", "").startswith("archive ") and step.name not in self._but
        self.names += [step.name] if counts else []
        due, act, after = counts and len(self.names) == self._number, self._act, self._after
        if due and not after:
            act()
        yield due
        if due and after:
            act()

    def perform(self, step, connector):
        with self._around(step):
            return self._perform(step, connector)

    async def async_perform(self, step, connector):
        with self._around(step) as due:
            if due and not self._after:
                await asyncio.sleep(0)
            outcome = await self._perform(step, connector)
        if due and self._after:
            await asyncio.sleep(0)
        return outcome
