"""The examples for Prometheus and Grafana: alerts fire when they should, and name metrics that the service has."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from support.in_flight import Holder
from support.pages import ROOT
from support.prometheus import ALERTS, EXAMPLES, NAMES, prometheus, promtool, queries
from support.servers import wait_until
from support.service import Service, ask, known

from urifilter_redis import UriFilter
from urifilter_redis.service import tokens

pytestmark = pytest.mark.slow

#: Labels that all series of the cases have, and those of a filter.
OF_SERVICE = {"instance": "a:8000", "job": "urifilter"}
OF_FILTER = OF_SERVICE | {"filter": "news"}


@dataclass(frozen=True)
class Case:
    """Series of one sample a minute, in promtool's notation, under which an alert fires, and under which it does not.

    ``summary`` is the text of the alert, and ``labels`` are those that it has besides its own.
    """

    fires: dict[str, str]
    quiet: dict[str, str]
    summary: str
    labels: dict[str, str]


CASES = {
    "UrifilterServiceAway": Case({"up": "0x60"}, {"up": "1x60"}, "The service a:8000 does not answer.", OF_SERVICE),
    "UrifilterRedisAway": Case(
        {"urifilter_redis_up": "0x60"},
        {"urifilter_redis_up": "1x60"},
        "Redis does not answer the service a:8000, and crawlers get 503.",
        OF_SERVICE,
    ),
    "UrifilterArchiveAway": Case(
        {"urifilter_archive_up": "0x60"},
        {"urifilter_archive_up": "1x60"},
        "The archive does not answer the service a:8000, and nothing is written back.",
        OF_SERVICE,
    ),
    "UrifilterFilterDown": Case(
        {"urifilter_filter_up": "0x60", "urifilter_redis_up": "1x60", "urifilter_filter_restoring": "0x60"},
        {"urifilter_filter_up": "0x60", "urifilter_redis_up": "0x60"},
        "Redis answers, and filter news does not.",
        OF_FILTER,
    ),
    "UrifilterNearCapacity": Case(
        {"urifilter_filter_used_ratio": "0.85x60", "urifilter_filter_over_capacity": "0x60"},
        {"urifilter_filter_used_ratio": "0.79x60", "urifilter_filter_over_capacity": "0x60"},
        "Filter news uses 85% of its capacity.",
        OF_FILTER,
    ),
    "UrifilterOverCapacity": Case(
        {"urifilter_filter_over_capacity": "1x60"},
        {"urifilter_filter_over_capacity": "0x60"},
        "Filter news is over its capacity, and takes more new URIs for seen than was asked for.",
        OF_FILTER,
    ),
    "UrifilterRotationLate": Case(
        {
            "urifilter_filter_rotation_due_seconds": "-10800x60",
            "urifilter_filter_period_seconds": "86400x60",
            "urifilter_filter_items": "0+1x60",
        },
        {  # nobody inserts
            "urifilter_filter_rotation_due_seconds": "-10800x60",
            "urifilter_filter_period_seconds": "86400x60",
            "urifilter_filter_items": "7x60",
        },
        "Filter news should have rotated 3h 0m 0s ago.",
        OF_FILTER,
    ),
    "UrifilterRestored": Case(
        {"urifilter_filter_restored_unacknowledged": "1x60"},
        {"urifilter_filter_restored_unacknowledged": "0x60"},
        "Filter news lost data, and was restored. Find out why, then run urifilter acknowledge.",
        OF_FILTER,
    ),
    "UrifilterCheckpointOld": Case(
        {"urifilter_filter_checkpoint_age_seconds": "3600x60"},
        {"urifilter_filter_checkpoint_age_seconds": "1700x60"},
        "The last checkpoint of filter news is 1h 0m 0s old.",
        OF_FILTER,
    ),
    "UrifilterCheckpointMissing": Case(
        {"urifilter_filter_has_archive": "1x60"},
        {"urifilter_filter_has_archive": "1x60", "urifilter_filter_checkpoint_age_seconds": "300x60"},
        "Filter news has an archive, and no checkpoint in it.",
        OF_FILTER,
    ),
    "UrifilterNobodyReclaims": Case(
        {"urifilter_filter_oldest_lapse_seconds": "200x60", "urifilter_filter_lease_seconds": "60x60"},
        {"urifilter_filter_oldest_lapse_seconds": "170x60", "urifilter_filter_lease_seconds": "60x60"},
        "Items of filter news have been nobody's for 3m 20s.",
        OF_FILTER,
    ),
    "UrifilterRestoreStuck": Case(
        {"urifilter_filter_restoring_shards": "4x60"},
        {"urifilter_filter_restoring_shards": "100-1x60"},
        "The restore of filter news makes no progress, with 4 shards left.",
        OF_FILTER,
    ),
    "UrifilterWorkersDie": Case(
        {"urifilter_worker_restarts_total": "0+1x60"},
        {"urifilter_worker_restarts_total": "3x60"},
        "Workers of the service a:8000 die again and again.",
        OF_SERVICE,
    ),
    "UrifilterErrors": Case(
        {'urifilter_requests_total{status="200"}': "0+80x60", 'urifilter_requests_total{status="503"}': "0+20x60"},
        {'urifilter_requests_total{status="200"}': "0+80x60", 'urifilter_requests_total{status="503"}': "0+1x60"},
        "The service a:8000 answers 20% of the requests with an error of its own.",
        {"instance": "a:8000"},
    ),
}


def series(said: dict[str, str], *, of_filter: bool) -> list[dict[str, str]]:
    found = []
    for text, values in said.items():
        name, _, own = text.rstrip("}").partition("{")
        labels = OF_FILTER if of_filter and name.startswith("urifilter_filter_") else OF_SERVICE
        more = ",".join(f'{label}="{value}"' for label, value in labels.items())
        found.append({"series": f"{name}{{{','.join(filter(None, (own, more)))}}}", "values": values})
    return found


def look(at: str, name: str, *alerts: dict) -> dict:
    return {"eval_time": at, "alertname": name, "exp_alerts": alerts}


def test_each_alert_fires_when_it_should(tmp_path):
    """Each fires after its time, and neither before nor under the values that it is not for."""
    assert set(CASES) == set(ALERTS)
    tests = []
    for name, case in CASES.items():
        rule = ALERTS[name]
        alert = {"exp_labels": case.labels | rule["labels"], "exp_annotations": {"summary": case.summary}}
        fires = [look("50m", name, alert), *([look("30s", name)] if "for" in rule else [])]
        for said, looks in ((case.fires, fires), (case.quiet, [look(at, name) for at in ("5m", "20m", "50m")])):
            given = series(said, of_filter="filter" in case.labels)
            tests.append({"interval": "1m", "input_series": given, "alert_rule_test": looks})
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(EXAMPLES / "alerts.yml")], "tests": tests}))
    promtool("test", "rules", file)


def test_promtool_reads_them(tmp_path):
    """The configuration, the alerts and each query of the dashboard are right."""
    promtool("check", "config", "--syntax-only", EXAMPLES / "prometheus.yml")
    promtool("check", "rules", EXAMPLES / "alerts.yml")
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_every_metric_is_there(any_server, folder):
    """The service has each metric that an alert or the dashboard names."""
    with (
        UriFilter.create("news", redis=any_server.url, capacity=1000),
        Service(any_server.url, "--archive", folder) as service,
    ):
        any_server.ask("script_flush")  # so that there is an error of a script
        ask(service, "POST", "/v1/filters/news/insert", {"items": ["a"]})
        told = ask(service, "GET", "/metrics").body.decode()
    families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", told, re.MULTILINE))
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    there = {name + part for name, kind in families.items() for part in parts.get(kind, ("",))}
    named = {name for text in (*queries(), *(rule["expr"] for rule in ALERTS.values())) for name in NAMES.findall(text)}
    assert len(named) > 30
    assert named - there == set()


def test_the_page_tells_of_each_alert():
    """The page about watching it says of each alert what to do."""
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    assert re.findall(r"^\| `(Urifilter\w+)` \|", page, re.MULTILINE) == list(ALERTS)


#: Queries of the dashboard that have nothing to show in the test: there are no errors, and nothing was restored.
EMPTY = ("urifilter_script_errors_total", 'error_code!=""')


def test_a_real_prometheus(make_server, tmp_path, folder):
    """With the service as it is each alert of a filter fires for the filter that it is for, and so do outages."""
    server, token = make_server("redis70"), tokens.new()
    own = {"capacity": 1000, "seed": 1, "redis": server.url, "rotate": "never"}
    settings = 'rotate = "never"\n' + known("prometheus", token, "write")
    with (
        UriFilter.create("near", **own) as near,
        UriFilter.create("over", **own) as over,
        UriFilter.create("late", **own, retention="ring", slices=3, period="1d") as late,
        UriFilter.create("old", **own, archive=folder) as old,
        UriFilter.create("never", **own, archive=folder),
        UriFilter.create("left", **own) as left,
        server.client() as admin,
        Service(server.url, "--archive", folder, settings=settings) as service,
        prometheus(tmp_path, service.port, token) as watcher,
    ):
        wait_until(lambda: watcher.query("urifilter_filter_up") and watcher.query("up == 1"), "it scrapes nothing")
        ask(service, "POST", "/v1/filters/near/insert", {"items": list(range(850))}, token)
        near.insert_many(range(850))
        over.insert_many(range(1100))
        old.checkpoint()
        Holder(left, lease=5).claim(range(10))
        admin.hincrby("urifilter:{late:0}:meta", "opened", -2 * 86_400_000)
        admin.hincrby("urifilter:{old:0}:meta", "checkpointed", -3_600_000)
        for member in admin.zrange("urifilter:{left:0}:holders", 0, -1):
            admin.zincrby("urifilter:{left:0}:holders", -100_000, member)
        wanted = {
            ("UrifilterNearCapacity", "near"),
            ("UrifilterOverCapacity", "over"),
            ("UrifilterRotationLate", "late"),
            ("UrifilterCheckpointOld", "old"),
            ("UrifilterCheckpointMissing", "never"),
            ("UrifilterNobodyReclaims", "left"),
        }

        def fire() -> bool:
            late.insert(f"{len(late_items)}")
            late_items.append(1)
            return watcher.firing() >= wanted

        late_items: list[int] = []
        wait_until(fire, "they do not fire", patience=60)
        assert {each for each in watcher.firing() if each[0] != "UrifilterNearCapacity"} <= wanted
        wait_until(lambda: watcher.query("rate(urifilter_items_total[1m])"), "there are no rates")
        for query in queries():
            assert watcher.query(query) or any(each in query for each in EMPTY), query
        server.suspend()
        away = ("UrifilterRedisAway", "")
        wait_until(lambda: away in watcher.firing(), "an outage of Redis is not seen", patience=60)
        server.resume()
        wait_until(lambda: away not in watcher.firing(), "it is not seen to be back", patience=60)
        service.stop()
        wait_until(lambda: ("UrifilterServiceAway", "") in watcher.firing(), "nobody misses the service", patience=60)
