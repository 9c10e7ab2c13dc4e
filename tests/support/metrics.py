"""The metrics of a service, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from support.servers import wait_until
from support.service import ask


class Metrics(dict):
    """Samples, by name and labels."""

    def __init__(self, service, token=None) -> None:
        answer = ask(service, "GET", "/metrics", token=token)
        assert answer.status == 200, answer
        assert answer.headers["content-type"].startswith("text/plain; version=")
        for family in text_string_to_metric_families(answer.body.decode()):
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                assert key not in self, "a sample is there twice"
                self[key] = sample.value

    def __call__(self, name, **labels) -> float | None:
        return self.get((name, *sorted(labels.items())))

    def items(self, command="insert", name="news") -> tuple[float, float]:
        found = [self("urifilter_items_total", filter=name, command=command, answer=each) for each in ("new", "seen")]
        return found[0] or 0, found[1] or 0

    def requests(self) -> dict[tuple[str, str, str], float]:
        return {
            (labels["command"], labels["status"], labels["error_code"]): value
            for (name, *pairs), value in dict.items(self)
            if name == "urifilter_requests_total" and (labels := dict(pairs))
        }

    def items_of_filters(self):
        return [(key, value) for key, value in dict.items(self) if key[0].startswith("urifilter_filter_")]

    def values(self, label) -> set[str]:
        return {value for _, *pairs in self for name, value in pairs if name == label}


def with_gauges(service, *filters) -> Metrics:
    """Return the metrics when Redis has answered, and they have the gauges of filters: an answer waits for neither."""

    def found() -> Metrics | None:
        told = Metrics(service)
        gauges = [told("urifilter_filter_capacity_items", filter=each) for each in filters]
        return told if all([told("urifilter_redis_up"), *gauges]) else None

    return wait_until(found, "there are no gauges")
