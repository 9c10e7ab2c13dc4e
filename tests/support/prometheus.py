"""Prometheus and promtool, which Debian's package ``prometheus`` has, and the examples for them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from support.pages import ROOT
from support.servers import free_port, wait_until

EXAMPLES = ROOT / "examples" / "prometheus"

#: The alerts of the example, by name.
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}

#: The metrics that an expression names.
NAMES = re.compile(r"\burifilter_\w+")


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install --no-install-recommends prometheus")
    return found


def promtool(*arguments: object) -> str:
    """Run promtool; return what it prints."""
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queries() -> list[str]:
    """Return the queries of Grafana's dashboard, with values for its variables."""
    dashboard = json.loads((ROOT / "examples" / "grafana" / "urifilter.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for variable in dashboard["templating"]["list"]:
        found += re.findall(r"label_values\((.*), \w+\)", variable.get("definition", ""))
    values = {"$__rate_interval": "1m", "$instance": ".*", "$filter": ".*"}
    return [re.sub(r"\$\w+", lambda match: values[match[0]], query) for query in found]


class Prometheus:
    """A Prometheus that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self._open(f"{self._url}/-/ready").status == 200
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> dict:
        """Return the data of an answer."""
        with self._open(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            told = json.load(answer)
        assert told["status"] == "success"
        return told["data"]

    def query(self, text: str) -> list[dict]:
        """Return the series of a query."""
        return self.ask("query", query=text)["result"]

    def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire, by name and filter."""
        found = self.ask("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("filter", ""))
            for each in found
            if each["state"] == "firing"
        }


@contextlib.contextmanager
def prometheus(folder: Path, service: int, token: str):
    """Run Prometheus with the example's configuration, but in quick motion: alerts fire at once."""
    path = program("prometheus")
    (folder / "urifilter.token").write_text(f"{token}\n")
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    assert set(config["global"]) == {"scrape_interval", "evaluation_interval"}
    # A scrape has an interval's time, and takes up to a second in an outage.
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "200ms"}
    (job,) = config["scrape_configs"]
    assert job["authorization"] == {"credentials_file": "/etc/prometheus/urifilter.token"}
    job["authorization"]["credentials_file"] = str(folder / "urifilter.token")
    assert job["static_configs"] == [{"targets": ["urifilter:8000"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{service}"]}]
    (folder / "prometheus.yml").write_text(json.dumps(config))
    rules = [{name: value for name, value in each.items() if name != "for"} for each in ALERTS.values()]
    (folder / "alerts.yml").write_text(json.dumps({"groups": [{"name": "urifilter", "rules": rules}]}))
    port = free_port()
    command = [path, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        made = Prometheus(port)
        wait_until(made.is_ready, "Prometheus does not start")
        yield made
    finally:
        process.kill()
        process.wait()
