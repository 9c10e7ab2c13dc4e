"""Flows that a test advances by hand, one command at a time, so that it decides who comes first, stalls, or dies."""

from __future__ import annotations

from urifilter_redis.base_blocking import connect
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.engine.steps import Send, Work
from urifilter_redis.errors import UriFilterError
from urifilter_redis.protocol.outcomes import to_mapping


class Actor:
    """One process with one flow.

    Attributes:
        session: of its filter.
        ended: it has returned, raised, or died.
        result: what it returned; error: what it raised.
        steps: how many commands, and works, it has done.
        first: the first hash that it read.
    """

    def __init__(self, server, flow_of, name="news", archive=None) -> None:
        self._connector, self.session = connect(ClientOptions(name, archive, f"unix://{server.socket}"))
        self._flow = flow_of(self.session)
        self.ended, self.result, self.error, self.steps = False, None, None, 0
        self.first = None
        self._advance(next, self._flow)

    def next(self) -> str:
        """Name the next command or work."""
        return self._pending.name if isinstance(self._pending, Work) else self._pending.commands[len(self._outcomes)][0]

    def step(self) -> bool:
        """Do the next command or work; return whether there is more to do."""
        if self.ended:
            return False
        self.steps += 1
        if isinstance(self._pending, Work):
            try:
                outcome = self._pending.do()
            except Exception as error:
                self._advance(self._flow.throw, error)
            else:
                self._advance(self._flow.send, outcome)
            return not self.ended
        command = self._pending.commands[len(self._outcomes)]
        self._outcomes += self._connector.send([command])
        if command[0] == "HGETALL" and self.first is None:
            self.first = to_mapping(self._outcomes[-1])
        if len(self._outcomes) == len(self._pending.commands):
            self._advance(self._flow.send, self._outcomes)
        return not self.ended

    def run(self, steps=None) -> None:
        """Do so many steps, or all that are left."""
        while steps is None or steps > 0:
            steps = steps and steps - 1
            if not self.step():
                return

    def die(self) -> None:
        """Do no more, as a process that was killed."""
        self._flow.close()
        self._end()

    def _advance(self, advance, value) -> None:
        """Go on to the next step that does something."""
        try:
            self._pending = advance(value)
            while not isinstance(self._pending, Work) and not (
                isinstance(self._pending, Send) and self._pending.commands
            ):
                self._pending = self._flow.send([] if isinstance(self._pending, Send) else None)
            self._outcomes = []
        except StopIteration as stop:
            self.result = stop.value
            self._end()
        except UriFilterError as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._connector.close()
