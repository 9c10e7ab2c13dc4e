"""The doctor's look at all masters: at the one server, or at those of a Redis Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.flows.doctor import Finding, examine, gather

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from urifilter_redis.engine.routes import NodeMap
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.flows.doctor import Facts

__all__ = ["examine_masters", "judge"]

#: Seconds by which the clocks of masters may differ. A call's deadline allows a minute; rotations follow the clocks.
APART = 10.0


def examine_masters(session: Session) -> Flow[list[Finding]]:
    """Return the findings about all masters.

    Raises:
        ServerUnavailable: a master is away, or refuses INFO or scripts.
    """
    return judge(session, (yield from gather(session)))


def judge(session: Session, masters: Mapping[str, Facts]) -> list[Finding]:
    """Return the findings about all masters, of which ``gather`` has told the facts."""
    known = session.routes.map
    findings = list(_merged({node: list(examine(facts)) for node, facts in masters.items()}))
    if known is not None and known.cluster:
        findings += [_cluster(known), _clocks(masters)]
    return findings


def _merged(findings: Mapping[str, list[Finding]]) -> Iterator[Finding]:
    """Yield each finding once if all masters have it, and otherwise with the master's name."""
    for of_subject in zip(*findings.values(), strict=True):
        if len(set(of_subject)) == 1:
            yield of_subject[0]
            continue
        for node, each in zip(findings, of_subject, strict=True):
            yield Finding(each.level, each.subject, f"{node}: {each.text}")


def _cluster(known: NodeMap) -> Finding:
    text, unowned = f"a Redis Cluster of {len(known.masters)} masters", known.owners.count(None)
    if unowned:
        text += f"; {unowned:,} slots have no master, so their shards do not answer: redis-cli --cluster fix"
        return Finding("danger", "cluster", text)
    single = [each for each in known.masters if not known.replicas.get(each)]
    if single and len(single) < len(known.masters):
        return Finding("note", "cluster", f"{text}; without a replica: {', '.join(single)}")
    return Finding("ok", "cluster", text)


def _clocks(masters: Mapping[str, Facts]) -> Finding:
    in_order = sorted(masters, key=lambda each: masters[each].time)
    first, last = in_order[0], in_order[-1]
    apart = masters[last].time - masters[first].time
    if apart <= APART:
        return Finding("ok", "clocks", f"those of the masters are at most {max(1, round(apart))} s apart")
    text = f"{last} is {apart:,.0f} s ahead of {first}: set the clocks right (NTP)"
    return Finding("danger", "clocks", f"{text}; shards turn at different times, and answers may be lost at a failover")
