"""The alert rules and the dashboard's queries in a real Prometheus that scrapes a real broker, a node of two."""

from __future__ import annotations

import contextlib
import http
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from tests.packaging.test_monitoring import ALERTS, VARIABLES, panels, rules
from tests.support.broker_process import TpcBroker, run_command
from tests.support.cluster_nodes import Cluster, cluster, create_topic
from tests.support.ports import free_port_range
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.storage.recovery.scrub_report import Damage, ScrubReport, write_report

# A node waits a second for a core that hangs (`STATUS_ANSWER_MS`), and a scrape may take an interval at most.
CONFIGURATION = """
global: {{scrape_interval: 3s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: tpc-broker
    static_configs: [{{targets: ["127.0.0.1:{admin}"]}}]
"""

PROGRAM = shutil.which("prometheus", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus: scripts/system-packages.sh test .venv/bin"),
]


class Prometheus:
    def __init__(self, folder: Path, admin_port: int) -> None:
        self.port = free_port_range(1)
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIGURATION.format(alerts=ALERTS, admin=admin_port))
        self._log = (folder / "log").open("wb")
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; of a query that is refused the error."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise ConnectionError("it is still starting") from error
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def result(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def rules(self) -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for group in self.ask("rules")["groups"] for rule in group["rules"]}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()


@pytest.fixture(scope="module")
def nodes(module_tmp_path: Path) -> Iterator[Cluster]:
    with cluster(module_tmp_path / "nodes", 2, cores=2) as made:
        made[1].more_options = ["--admin", str(free_port_range(1))]
        made.start()
        yield made


@pytest.fixture(scope="module")
def broker(nodes: Cluster) -> TpcBroker:
    """The node that is looked at."""
    broker = nodes[1]
    create_topic(nodes.bootstrap, "t", 4, replicas=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"value")
    assert producer.flush(PATIENCE_S) == 0
    assert run_command("scrub", "--data", str(broker.data_folder)).returncode == 0
    return broker


@pytest.fixture(scope="module")
def prometheus(module_tmp_path: Path, broker: TpcBroker) -> Iterator[Prometheus]:
    found = Prometheus(module_tmp_path / "prometheus", int(broker.more_options[-1]))
    try:
        eventually(lambda: len(found.result("tpc_core_up")) == 2, "no sample of the broker arrived", not_yet=(OSError,))
        yield found
    finally:
        found.stop()


def test_every_query_of_the_dashboard_is_answered(prometheus: Prometheus) -> None:
    """Of a core that did not answer in time a scrape has no sample: the next one has."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in {**VARIABLES, "$instance": ".*"}.items():
                query = query.replace(variable, value)
            found = prometheus.result(query)  # refused, where Prometheus does not understand it
            # Rates need two samples; where nothing is counted by reason or API yet there is no series at all.
            if not found and "rate(" not in query and "increase(" not in query:
                eventually(lambda query=query: prometheus.result(query), f"no answer to {query}", not_yet=(OSError,))


def test_every_rule_is_loaded_and_healthy_and_quiet(prometheus: Prometheus) -> None:
    names = {rule["alert"] for rule in rules()}

    def evaluated() -> bool:
        found = prometheus.rules()
        return found.keys() == names and all(rule["health"] == "ok" for rule in found.values())

    eventually(evaluated, "not all rules were evaluated", not_yet=(OSError,))
    firing = {name for name, rule in prometheus.rules().items() if rule["state"] == "firing"}
    assert firing <= {"TpcDiskNearlyFull"}  # the machine's own disk


def test_damage_that_a_scrub_found_fires_until_it_is_gone(prometheus: Prometheus, broker: TpcBroker) -> None:
    def state() -> str:
        return str(prometheus.rules()["TpcDamageFound"]["state"])

    damage = Damage("t-0", "topics/t-0/x.log", 0, 1, 0, 1, "why")
    write_report(broker.data_folder, ScrubReport(state="finished", damaged_count=1, damaged=[damage]))
    eventually(lambda: state() == "firing", "the alert does not fire", not_yet=(OSError,))
    [alert] = prometheus.rules()["TpcDamageFound"]["alerts"]
    summary = alert["annotations"]["summary"]
    assert summary == f"1 stretches of stored files of 127.0.0.1:{broker.more_options[-1]} are damaged"
    write_report(broker.data_folder, ScrubReport(state="finished"))
    eventually(lambda: state() == "inactive", "the alert goes on firing", not_yet=(OSError,))


def test_a_core_that_is_down_is_seen(prometheus: Prometheus, broker: TpcBroker) -> None:
    """Its rule waits a minute, so what is looked at is that it has begun to wait."""
    old = broker.core_process(1)
    old.suspend()
    try:
        eventually(
            lambda: prometheus.rules()["TpcCoreDown"]["state"] != "inactive",
            "a core that hangs is not seen",
            not_yet=(OSError,),
        )
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # the supervisor has ended it
            old.resume()
    eventually(
        lambda: prometheus.rules()["TpcCoreDown"]["state"] == "inactive", "it is still missed", not_yet=(OSError,)
    )


def test_a_node_that_is_gone_is_seen(prometheus: Prometheus, nodes: Cluster) -> None:
    """Last in the module. These rules wait, too; of two voters one is no majority."""
    nodes.kill(2)
    for name in ("TpcNodesAway", "TpcMetadataLeaderless", "TpcPartitionsLeaderless"):
        eventually(
            lambda name=name: prometheus.rules()[name]["state"] != "inactive", f"{name} stays quiet", not_yet=(OSError,)
        )
    assert prometheus.rules()["TpcLinksDown"]["state"] in {"inactive", "pending"}
