"""Replication: an answer that too few replicas have counts as lost, and is asked for again under the same call id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from urifilter_redis.protocol.outcomes import Unanswered, Unsent, Verdict, judge
from urifilter_redis.protocol.routing import like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.protocol.calls import Arguments

__all__ = ["Replication"]

#: The share of the longest wait for a reply that replicas have to receive an answer.
SHARE = 0.8


class Replication:
    """A pipeline with a WAIT for each node that gets a call with a call id.

    A WAIT goes behind the calls, over the same connection, and so is for all that they have written.

    Args:
        session: the filter's session.
        commands: the commands of the pipeline.
        numbered: for each command whether it is a call with a call id.

    Attributes:
        commands: the commands with those that are added.
    """

    def __init__(self, session: Session, commands: Sequence[Arguments], numbered: Sequence[bool]) -> None:
        self._routes, self._wanted, self._numbered = session.routes, session.wait_replicas, numbered
        self._map = session.routes.map
        wait = ("WAIT", self._wanted, max(1, int(1000 * SHARE * session.timeouts.reply)))  # 0 would be for ever
        self._waits: dict[str | None, Arguments] = {}
        self._nodes: list[str | None] = []
        for command, is_numbered in zip(commands, numbered, strict=True):
            node = self._routes.node_of(command)
            self._nodes.append(node)
            if is_numbered:
                self._waits[node] = like(wait, command)
        self.commands = [*commands, *self._waits.values()]

    def judged(self, outcomes: Sequence[Any]) -> list[Any]:
        """Return the outcome of each command.

        If the map of the nodes has changed meanwhile, it is not certain which WAIT is for which answer.
        """
        count = len(self._numbered)
        told, known = list(outcomes[:count]), self._routes.map is self._map
        reached = dict(zip(self._waits, outcomes[count:], strict=True)) if known else {}
        for position, is_numbered in enumerate(self._numbered):
            if is_numbered and judge(told[position]) is Verdict.ANSWERED:
                found = reached.get(self._nodes[position])
                if not isinstance(found, int) or found < self._wanted:
                    told[position] = self._lost(found)
        return told

    def _lost(self, found: Any) -> Unanswered:
        if isinstance(found, int):
            return Unanswered(ConnectionError(f"{found} of {self._wanted} replicas have the answer"))
        error = found.error if isinstance(found, Unanswered | Unsent) else found
        why = "the nodes have changed meanwhile" if found is None else str(error) or type(error).__name__
        return Unanswered(ConnectionError(f"it is not known how many replicas have the answer: {why}"))
