"""The doctor: facts about each master, and whether they endanger the promises of the filters."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.engine.queries import ask, ask_masters, chunked, read_first, time_of, unless_withheld
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.engine.topology import NodeMap
from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.flows.capacity import deletes_bitmaps
from urifilter_redis.flows.lifecycle import names
from urifilter_redis.flows.probe import Probed, has_module, is_old, name_of, probe, remedy
from urifilter_redis.flows.problems import problems_of
from urifilter_redis.protocol.acl import MEND
from urifilter_redis.protocol.calls import LEASE
from urifilter_redis.protocol.claims import LEASE_OF_MANY, MOST_DELAY
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.outcomes import to_fields, to_mapping, to_scores
from urifilter_redis.protocol.routing import for_key
from urifilter_redis.transport.embedded import IDENTITY

if TYPE_CHECKING:
    from urifilter_redis.flows.info import FilterInfo

#: Seconds by which a time in ``meta`` may be ahead of the server's clock, because another server may have written it.
AHEAD = 5.0

#: The fields of ``meta`` that are times, with the seconds by which each may be ahead in addition. A lease ends in the
#: future. Each change makes ``changed`` higher by at least 1 ms, so fast changes put it ahead.
_TIMES = {"created": 0.0, "opened": 0.0, "changed": 60.0, "checkpointed": 0.0, "restored": 0.0, "leased": LEASE}

#: Seconds by which the clocks of masters may differ. A call's deadline allows a minute; rotations follow the clocks.
APART = 10.0

#: Most shards that one finding describes.
SHARDS_TOLD = 3

#: The share of maxmemory that must be free.
LITTLE_LEFT = 0.1

#: By ``appendfsync``: the level of the finding, and the loss.
_LOST = {
    "always": ("ok", "nothing is lost"),
    "everysec": ("ok", "a power failure can lose a second of inserts, and a kill two if the disk is slow"),
    "no": ("danger", "a power failure can lose half a minute of inserts"),
}

#: The texts where nothing can be said.
_NO_INFO = "cannot tell: this user may not run INFO, or the server does not know it"
_NO_PROBE = "cannot tell: this user may not run EVALSHA, or touch the keys of the filters with which that is tried"

_SETTINGS = ("maxmemory-policy", "appendonly", "appendfsync", "save", "syslog-ident", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one examination.

    Attributes:
        level: ``ok``, ``note`` (it depends on your needs) or ``danger`` (a promise does not hold).
        subject: the examined thing: ``version``, ``memory``, ``filter news`` …
        text: the facts, and the advice if there is one.
    """

    level: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a server.

    Attributes:
        info: the fields of INFO; empty if this user may not run it, or the server does not know it.
        time: the server's time, seconds since 1970.
        settings: the settings of CONFIG GET; empty if this user may not run it.
        probed: what the scripts need and do not have; None if this user may not run the script that tells.
        module: whether filters of layout redisbloom can be made.
    """

    info: dict[str, str]
    time: float
    settings: dict[str, str]
    probed: Probed | None
    module: bool


def examine_masters(session: Session) -> Flow[list[Finding]]:
    """Return the findings about all masters; raises as ``gather``."""
    return findings_of(session, (yield from gather(session)))


def findings_of(session: Session, masters: Mapping[str, Facts]) -> list[Finding]:
    """Return the findings about all masters, given the facts that ``gather`` returns."""
    known = session.routes.map
    checks = (_version, _scripts, _rights, _eviction, _memory, _persistence, _disk, _replication)
    findings = list(_merged({node: [check(facts) for check in checks] for node, facts in masters.items()}))
    if known is not None and known.cluster:
        findings += [_cluster(known), _clocks(masters)]
    if any(facts.module for facts in masters.values()):
        text = "the server has Bloom filters of its own (BF.*): with layout redisbloom inserts are faster"
        findings.append(Finding("ok", "module", text))
    return findings


def gather(session: Session) -> Flow[dict[str, Facts]]:
    """Return the facts about each master by its name, without those that it refuses to tell.

    A plain server has the name "".

    Raises:
        ServerUnavailable: a master is away.
    """
    times = yield from ask_masters(session, ("TIME",))
    infos = yield from unless_withheld(ask_masters(session, ("INFO",)))
    settings: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in _SETTINGS:
        try:
            replies = yield from ask_masters(session, ("CONFIG", "GET", name))
        except ServerUnavailable:  # NOPERM, or a service that hides CONFIG
            continue
        for node, (reply,) in replies.items():
            settings[node] |= to_mapping(reply)
    probed = yield from _probed(session)
    module = yield from has_module(session)
    told = {} if infos is None else {node: to_fields(info) for node, (info,) in infos.items()}
    return {
        node: Facts(told.get(node, {}), time_of(now) / 1000, settings[node], probed, module)
        for node, (now,) in times.items()
    }


def _probed(session: Session) -> Flow[Probed | None]:
    """Probe the server, at the keys of a filter if this user may touch no others; None if none can be probed."""
    found = yield from unless_withheld(probe(session))
    if found is None:
        for name in (yield from unless_withheld(names(session))) or ():
            keys = FilterKeys(session.keys.prefix, name)
            found = yield from unless_withheld(probe(session, keys=keys))
            if found is not None:
                return found
    return found


def examine_filter(info: FilterInfo, now: float) -> Finding:
    """Return whether a filter keeps its error rate and rotates on time; ``now`` is the server's time, s."""
    subject, slices = f"filter {info.name}", len(info.live_slices)
    held = f"{info.inserted:,} items in {slices} slice{'' if slices == 1 else 's'}"
    if info.retention != "growing":
        held = f"{info.inserted:,} of {info.capacity:,} items"
    worst = next((each for each in problems_of(info, now) if each.code != "lapsed"), None)  # lapsed: see examine_claims
    if worst is None:
        return Finding("ok", subject, f"{held}, error rate {info.error_rate_now:.2g}")
    return Finding(worst.level, subject, worst.text if worst.level == "danger" else f"{held}; {worst.text}")


def examine_copies(info: FilterInfo) -> Iterator[Finding]:
    """Yield that the server has the only copy of a filter, if it can have no archive."""
    if info.layout == REDISBLOOM:
        text = "what the server itself saves is the only copy, because layout redisbloom has no archive"
        yield Finding("note", f"copies of {info.name}", text)


def examine_claims(info: FilterInfo) -> Iterator[Finding]:
    """Yield whether the items in flight are reclaimed when their holders die, if anybody has claimed."""
    found = info.claims
    if found is None:
        return
    text = f"in flight {found.in_flight:,}, holders {found.holders:,}, released and not due yet {found.delayed:,}"
    if found.dead_letters:
        listed = f"urifilter dead-letters {info.name} lists them, and --retry offers them once more"
        text += f", dead letters {found.dead_letters:,} ({listed})"
    lapsed = next((each for each in problems_of(info, 0) if each.code == "lapsed"), None)
    level, what = (lapsed.level, lapsed.text) if lapsed else ("ok", f"lapsed {found.lapsed:,}")
    yield Finding(level, f"claims of {info.name}", f"{text}, {what}")


def examine_clock(session: Session) -> Flow[Finding | None]:
    """Return a finding if times of a filter lie in the server's future, else None.

    The session need not have opened the filter.
    """
    keys = session.keys.of_meta((yield from read_first(session)))
    if keys is None:
        return None
    told: list[str] = []
    for some in chunked(range(keys.shards)):
        shards = [keys.shard(shard) for shard in some]
        metas = yield from ask(session, *(each.read_meta for each in shards))
        times = yield from ask(session, *(for_key(("TIME",), each.meta) for each in shards))
        holders = yield from ask(session, *(("ZRANGE", each.holders, "-1", "-1", "WITHSCORES") for each in shards))
        for shard, meta, now, last in zip(some, map(to_mapping, metas), map(time_of, times), holders, strict=True):
            ahead = [*_ahead(meta, now / 1000), *_held_far(meta, to_scores(last), now / 1000)]
            told += [f"shard {shard}: {', '.join(ahead)}"] if ahead else []
    if not told:
        return None
    more = f" … and {len(told) - SHARDS_TOLD} shards more" if len(told) > SHARDS_TOLD else ""
    where = f"{'; '.join(told[:SHARDS_TOLD])}{more}"
    text = f"times lie in the server's future ({where}): its clock was ahead, or is behind now"
    text += "; such times count as now, so items expire late, and claims lapse late: set the clock right"
    return Finding("note", f"filter {session.keys.name}", text)


def _ahead(meta: Mapping[str, str], now: float) -> list[str]:
    """Return a text for each field of ``meta`` whose time is after ``now``: its name, and by how many seconds."""
    times = {name: [meta.get(name, "")] for name in _TIMES}
    times["closed"] = [time for entry in meta.get("closed", "").split() for time in entry.split(":")[1:3]]
    last = {name: max((int(time) for time in found if time.isdecimal()), default=0) for name, found in times.items()}
    late = {name: time / 1000 - now - _TIMES.get(name, 0) for name, time in last.items()}
    return [f"{name} by {seconds:,.0f} s" for name, seconds in late.items() if seconds > AHEAD]


def _held_far(meta: Mapping[str, str], last: Sequence[tuple[bytes, float]], now: float) -> list[str]:
    """Return a text if the holder that lives longest outlives every lease and every delay that begins ``now``."""
    lease = max(int(meta.get("claims", 0)) / 1000, LEASE_OF_MANY)
    ahead = [(until / 1000 - now, MOST_DELAY if holder[:1] == b"\0" else lease) for holder, until in last]
    return [f"claims held for {seconds:,.0f} s" for seconds, most in ahead if seconds > most + AHEAD]


def _of_info(check: Callable[[Facts], Finding]) -> Callable[[Facts], Finding]:
    """Wrap an examination of what INFO tells: without it nothing can be said."""

    @functools.wraps(check)
    def told(facts: Facts) -> Finding:
        return check(facts) if facts.info else Finding("note", check.__name__.removeprefix("_"), _NO_INFO)

    return told


@_of_info
def _version(facts: Facts) -> Finding:
    if is_old(facts.info):
        return Finding("danger", "version", f"{name_of(facts.info)} is too old: upgrade it to 6.2 or newer")
    return Finding("ok", "version", name_of(facts.info))


def _scripts(facts: Facts) -> Finding:
    if facts.probed is None:
        return Finding("note", "Lua", _NO_PROBE)
    if facts.probed.lacks:
        text = f"the scripts do not run here: {facts.probed.lacks}: {remedy(facts.probed, facts.info)}"
        return Finding("danger", "Lua", text)
    return Finding("ok", "Lua", "the scripts find every command and function that they call")


def _rights(facts: Facts) -> Finding:
    if facts.probed is None:
        return Finding("note", "rights", _NO_PROBE)
    if facts.probed.forbidden:
        text = f"{', '.join(facts.probed.forbidden)}, so the scripts that call them are refused"
        return Finding("note", "rights", f"this user may not run {text}: {MEND} unless that is meant")
    return Finding("ok", "rights", "this user may run every command of the scripts")


def _eviction(facts: Facts) -> Finding:
    policy = facts.settings.get("maxmemory-policy") or facts.info.get("maxmemory_policy", "")
    if not policy:
        return Finding("note", "eviction", "cannot tell the maxmemory policy: see that it is noeviction")
    if deletes_bitmaps(policy):
        return Finding("danger", "eviction", f"{policy} may delete bitmaps: CONFIG SET maxmemory-policy noeviction")
    return Finding("ok", "eviction", policy)


@_of_info
def _memory(facts: Facts) -> Finding:
    limit, used = int(facts.info.get("maxmemory", 0)), int(facts.info.get("used_memory", 0))
    if not limit:
        return Finding("ok", "memory", f"{used:,} bytes used, no limit")
    if used >= limit:
        text = f"{used:,} bytes used, and maxmemory is {limit:,}"
        return Finding("danger", "memory", f"{text}: inserts are refused (OOM); raise maxmemory, or drop a filter")
    text = f"{limit - used:,} of {limit:,} bytes left"
    if limit - used < LITTLE_LEFT * limit:
        return Finding("danger", "memory", f"{text}: inserts will be refused (OOM); raise maxmemory")
    return Finding("ok", "memory", text)


def _persistence(facts: Facts) -> Finding:
    if "appendonly" not in facts.settings and not facts.info:
        return Finding("note", "persistence", _NO_INFO)
    if "appendonly" not in facts.settings:
        on = facts.info.get("aof_enabled") == "1"
        text = f"append-only file {'on' if on else 'off'}; cannot tell more, as this user may not run CONFIG GET"
        return Finding("note", "persistence", text)
    if facts.settings["appendonly"] == "yes":
        if facts.settings.get("syslog-ident") == IDENTITY:
            sync, level, lost = "each second", "ok", "a power failure can lose a second of inserts"
        else:
            sync = facts.settings.get("appendfsync", "everysec")
            level, lost = _LOST.get(sync, _LOST["no"])
        return Finding(level, "persistence", f"append-only, fsync {sync}: {lost}")
    if facts.settings.get("save"):
        text = f"snapshots only ({facts.settings['save']}): a crash loses all inserts after the last one"
        return Finding("danger", "persistence", f"{text}; CONFIG SET appendonly yes")
    return Finding("danger", "persistence", "none: a restart loses everything; CONFIG SET appendonly yes")


@_of_info
def _disk(facts: Facts) -> Finding:
    names = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    failed = [name for name in names if facts.info.get(name, "ok") != "ok"]
    if failed:
        return Finding("danger", "disk", f"{', '.join(failed)}: the server could not save; is its disk full?")
    return Finding("ok", "disk", "the last writes succeeded")


@_of_info
def _replication(facts: Facts) -> Finding:
    if facts.info.get("role") == "slave":
        return Finding("danger", "replication", "this is a replica: it refuses inserts; use the primary")
    replicas, good = int(facts.info.get("connected_slaves", 0)), facts.info.get("min_slaves_good_slaves")
    wanted = int(facts.settings.get("min-replicas-to-write", 1))
    if good is not None and int(good) < wanted:  # the field is there only if the server counts its replicas
        text = f"{int(good)} replica(s) in time, and min-replicas-to-write wants {wanted}: all writes are refused"
        return Finding("danger", "replication", f"{text}: connect replicas, or CONFIG SET min-replicas-to-write 0")
    if replicas:
        text = f"{replicas} asynchronous replica(s): a failover loses the inserts that they had not received yet"
        text += " (wait_replicas=1 in the address makes callers wait for them)"
        return Finding("note", "replication", text)
    return Finding("ok", "replication", "no replicas")


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
