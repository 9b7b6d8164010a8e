"""What nodes tell of their cluster: metrics, health, status, before they are ready and afterwards."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.support.broker_process import run_here
from tests.support.cluster_nodes import admin, answered, create_topic, eventually, produce
from tests.support.shared_servers import SharedCluster, SharedNode
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc
from tpc_broker.cluster import link_codec as codec
from tpc_broker.cluster.secret import MAC_BYTES, NONCE_BYTES
from tpc_broker.telemetry.cluster_report import cluster_lines
from tpc_broker.telemetry.health import health_of

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def get(node: SharedNode, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.admin_port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=OPENMETRICS)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError as error:
        raise AssertionError(f"node does not answer {path}") from error
    finally:
        connection.close()


def families(node: SharedNode) -> dict[str, Metric]:
    return {family.name: family for family in parse_openmetrics(get(node, "/metrics")[1])}


def told(node: SharedNode) -> Samples:
    """Value by name and labels; asked again until the core that tells of the cluster has answered in time."""

    def look() -> Samples:
        found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families(node).values() for sample in family.samples
        }  # fmt: skip
        return found if ("tpc_cluster_links", frozenset()) in found else {}

    return eventually(look, f"node {node.number} tells of its cluster")


def value(node: SharedNode, name: str, **labels: str) -> float:
    """Asked again until the core that tells it has answered in time."""

    def look() -> tuple[float, ...]:
        found, sample = told(node), (name, frozenset(labels.items()))
        return (found[sample],) if sample in found else ()

    return eventually(look, f"node {node.number} tells {name}{labels or ''}")[0]


def over_cores(node: SharedNode, name: str, **labels: str) -> float:
    """The sum of what its cores tell."""
    return sum(value(node, name, core=str(core), **labels) for core in range(node.cores_count))


def replicas_by_role(nodes: list[SharedNode]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for node in nodes:
        for role in ("leader", "follower", "candidate", "pre-candidate"):
            found[role] += int(over_cores(node, "tpc_replicas", role=role))
    return {role: count for role, count in found.items() if count}


def roles_by_metadata(bootstrap: str) -> dict[str, int]:
    """How many replicas of all topics should lead and follow."""
    topics = answered(lambda: admin(bootstrap).list_topics(timeout=LOOK_S)).topics.values()
    replicas = [len(partition.replicas) for topic in topics for partition in topic.partitions.values()]
    return {"leader": len(replicas), "follower": sum(replicas) - len(replicas)}


def ready(node: SharedNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(node, "/ready")[1])
    return found


def status(node: SharedNode, *options: str) -> str:
    done = run_here("status", "--data", str(node.data_folder), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(node: SharedNode) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(status(node, "--json"))["cores"][0].get("cluster") or {}
        return found

    return eventually(look, f"node {node.number} tells of its cluster")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[SharedCluster]:
    """For its founding and its end."""
    connection.leave_interrupts_alone()  # `tpc` runs in this process
    made = SharedCluster(tmp_path, cores=1)
    try:
        yield made
    finally:
        made.kill_all()


def test_a_cluster_that_is_well_says_so_and_counts_strangers(shared_cluster: SharedCluster) -> None:
    connection.leave_interrupts_alone()
    all_is_well(shared_cluster)
    strangers_are_counted(shared_cluster)


@pytest.mark.cluster
def test_a_cluster_from_its_founding_to_the_loss_of_its_controller(three: SharedCluster) -> None:
    waits_for_its_founding(three)
    three.launch(3)
    for node in three.nodes:
        node.wait_ready()
    all_is_well(three)
    strangers_are_counted(three)
    its_controller_goes(three)


def waits_for_its_founding(three: SharedCluster) -> None:
    """A founder that lacks another one says so: it has no counters of a core yet, and is not ready."""
    three.launch(1, 2)
    looks = ["core 0 is starting: it looks for its cluster"]
    eventually(lambda: ready(three[1])["reasons"] == looks, "it says what it does")
    missing = f"there is no link to a seed at 127.0.0.1:{three[3].port}"
    eventually(lambda: missing in ready(three[1])["warnings"], "it says who is missing")
    eventually(lambda: value(three[1], "tpc_cluster_links") == 1, "a link to the other one")
    found = told(three[1])
    assert found["tpc_cluster_links_wanted", frozenset()] == 2
    assert not [name for name, _labels in found if name in {"tpc_cluster_members", "tpc_metadata_term"}]
    eventually(lambda: "core 0: pid" in status(three[1]), "its process is told")
    eventually(lambda: f"none to a seed at 127.0.0.1:{three[3].port}" in status(three[1]), "and who is missing")


def all_is_well(three: SharedCluster) -> None:
    create_topic(three.bootstrap, "counted", 3, replicas=3)
    eventually(lambda: replicas_by_role(three.nodes) == roles_by_metadata(three.bootstrap), "all partitions are led")
    produce(three.bootstrap, "counted", [f"value {number}" for number in range(9)], 3)
    fine = {"ready": True, "reasons": [], "warnings": []}
    for node in three.nodes:
        eventually(lambda node=node: value(node, "tpc_cluster_members", state="alive") == 3, "all are members")
        eventually(lambda node=node: value(node, "tpc_cluster_links") == 2, "all links")
        eventually(lambda node=node: ready(node) == fine, "nothing to warn of")
        eventually(lambda node=node: value(node, "tpc_swim_probes_total") > 0, "probes")
    for name in ("commits", "messages_sent", "messages_received", "sent_bytes", "received_bytes", "elections_won"):
        assert sum(over_cores(node, f"tpc_replication_{name}_total") for node in three.nodes) >= 3, name
    newest = max(value(node, "tpc_metadata_version") for node in three.nodes)
    assert newest > 0
    for node in three.nodes:
        eventually(lambda node=node: value(node, "tpc_metadata_commit_offset") >= newest, "all have the topic")
    eventually(lambda: nodes_agree(three, newest), "all say the same")
    for node in three.nodes:
        plain = plain_of(told(node))
        assert plain["tpc_cluster_sent_bytes_total"] > plain["tpc_cluster_raft_sent_bytes_total"] > 0
        assert plain["tpc_cluster_received_bytes_total"] > plain["tpc_cluster_raft_received_bytes_total"] > 0
        assert plain["tpc_raft_messages_received_total"] > 0
        assert asked(node)["node"] == node.number
    labels: dict[str, set[str]] = {}
    for _name, named in told(three[1]):
        for label, text in named:
            labels.setdefault(label, set()).add(text)
    assert labels["state"] == {"alive", "suspected", "dead", "left"}
    assert labels["role"] == {"leader", "follower", "candidate", "pre-candidate", "observer"}
    assert labels["direction"] == {"incoming", "outgoing"}
    cluster_of = asked(three[1])
    assert cluster_of["cluster_id"] != ""
    eventually(lambda: debugged(three[1]).get("cluster_id") == cluster_of["cluster_id"], "/debug has it")
    eventually(lambda: status_is_fine(three[1], cluster_of["cluster_id"]), "people are told so")


def debugged(node: SharedNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(node, "/debug")[1])["cores"][0].get("cluster") or {}
    return found


def plain_of(samples: Samples) -> dict[str, float]:
    """Those without labels."""
    return {name: count for (name, labels), count in samples.items() if not labels}


def nodes_agree(three: SharedCluster, newest: float) -> bool:
    """An election on a busy machine is one between two nodes' answers."""
    for name in ("leaderless", "under_replicated", "refusing"):
        assert not any(over_cores(node, f"tpc_partitions_{name}") for node in three.nodes), name
    found = [told(node) for node in three.nodes]
    leads = [each["tpc_metadata_role", frozenset({("role", "leader")})] for each in found]
    follows = [each["tpc_metadata_role", frozenset({("role", "follower")})] for each in found]
    assert (sum(leads), sum(follows)) == (1, 2)
    for each in found:
        plain = plain_of(each)
        assert (plain["tpc_cluster_nodes"], plain["tpc_metadata_voters"], plain["tpc_metadata_has_leader"]) == (3, 3, 1)
        assert plain["tpc_metadata_last_offset"] >= plain["tpc_metadata_commit_offset"] >= newest
        assert not any(count for (name, _), count in each.items() if name == "tpc_cluster_links_refused_total")
    assert len({each["tpc_metadata_term", frozenset()] for each in found}) == 1
    for node in three.nodes:  # more than 2 where another test's partitions are on other cores
        wanted = value(node, "tpc_replication_links_wanted", core="0")
        assert value(node, "tpc_replication_links", core="0") == wanted >= 2
    return True


def status_is_fine(node: SharedNode, cluster_id: str) -> bool:
    text = status(node)
    assert f"cluster {cluster_id}: node {node.number} of 3\n" in text
    return "0 in elections; 0 without a leader, 0 of those led lack replicas, 0 refuse records" in text


def strangers_are_counted(three: SharedCluster) -> None:
    """One who has another secret, one who sends nonsense, and a datagram of nobody's."""
    refused, place = "tpc_cluster_links_refused_total", ("127.0.0.1", three[1].port)
    secret = {"direction": "incoming", "reason": "secret"}
    malformed = {"direction": "incoming", "reason": "malformed"}
    before = [value(three[1], refused, **secret), value(three[1], refused, **malformed)]
    foreign = value(three[1], "tpc_swim_datagrams_foreign_total")
    with socket.create_connection(place, timeout=PATIENCE_S) as stranger:
        stranger.sendall(codec.encode_challenge(bytes(NONCE_BYTES)) + codec.encode_proof(bytes(MAC_BYTES)))
        while stranger.recv(4096):
            pass
    with socket.create_connection(place, timeout=PATIENCE_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while stranger.recv(4096):
            pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"x" * 100, place)
    eventually(lambda: value(three[1], refused, **secret) == before[0] + 1, "another secret")
    eventually(lambda: value(three[1], refused, **malformed) == before[1] + 1, "nonsense")
    # At least: where a port was another cluster's before, somebody may still know it.
    eventually(lambda: value(three[1], "tpc_swim_datagrams_foreign_total") > foreign, "a datagram of nobody's")

    def told_to_people() -> float:
        found = re.search(r"datagrams of strangers: ([0-9,]+)", status(three[1]))
        assert found is not None, "the core that tells of the cluster did not answer in time"
        return float(found[1].replace(",", ""))

    assert eventually(told_to_people, "people are told") > foreign


def its_controller_goes(three: SharedCluster) -> None:
    gone = eventually(three.controller, "somebody leads")
    three.kill(gone)
    left = [node for node in three.nodes if node.number != gone]
    for node in left:
        eventually(lambda node=node: value(node, "tpc_cluster_members", state="dead") == 1, "it is buried")
        eventually(lambda node=node: value(node, "tpc_cluster_nodes_absent") == 1, "it is missed")
        eventually(lambda node=node: value(node, "tpc_metadata_has_leader") == 1, "another one leads")
        eventually(lambda node=node: value(node, "tpc_cluster_links") == 1, "its link is gone")
        assert value(node, "tpc_cluster_links_lost_total") >= 1
    eventually(lambda: replicas_by_role(left) == {"leader": 3, "follower": 3}, "all partitions are led again")
    eventually(lambda: is_missed(left, gone), "everybody is told what is missing")
    for name in ("metadata_elections_won", "swim_burials", "swim_suspicions", "swim_probes_failed"):
        assert sum(value(node, f"tpc_{name}_total") for node in left) >= 1


def is_missed(left: list[SharedNode], gone: int) -> bool:
    lacking = [over_cores(node, "tpc_partitions_under_replicated") for node in left]
    assert sum(lacking) == 3
    for node, count in zip(left, lacking, strict=True):
        warnings = [f"core 0: {count:.0f} partitions that it leads lack replicas"] if count else []
        warnings.append(f"nodes that are away: {gone}")
        assert ready(node) == {"ready": True, "reasons": [], "warnings": warnings}
    listed = ["partition", "list", "--under-replicated", "--json", "--bootstrap", left[0].bootstrap]
    rows = json.loads(CliRunner().invoke(tpc, listed, catch_exceptions=False).stdout)
    assert [(row["partition"], len(row["replicas"]), len(row["in_sync"])) for row in rows] == [
        (0, 3, 2), (1, 3, 2), (2, 3, 2),
    ]  # fmt: skip
    assert {broker for row in rows for broker in row["offline"]} == {gone * 1024}
    assert f"; away: {gone}\n" in status(left[0])
    assert asked(left[1])["absent"] == [gone]
    return True


def figures(**changed: Any) -> dict[str, Any]:
    """Of a node of two that knows no other one, and has no replica of the metadata."""
    metadata = {
        "role": "observer", "leader": 2, "voters": [2], "version": 7, "term": -1, "commit_offset": -1,
        "last_offset": -1, "elections": -1, "elections_won": -1, "cuts": -1,
    }  # fmt: skip
    names = ("wanted", "up", "incoming", "lost", "sent_bytes", "received_bytes", "requests", "requests_failed")
    links = {**dict.fromkeys(names, 0), "raft_dropped": 0}
    rows = [{"node": 2, "address": "h:1", "up": False, "queued_bytes": 0, "refused": "another cluster secret"}]
    fine = {
        "cluster_id": "c", "node": 1, "nodes": 2, "absent": [], "conflict": "", "membership": {}, "metadata": metadata,
        "links": links, "refused_incoming": {}, "refused_outgoing": {"secret": 3}, "links_to": rows,
    }  # fmt: skip
    return {**fine, **changed}


def test_what_people_are_told_of_an_observer_and_of_refused_links() -> None:
    lines = cluster_lines(figures())  # type: ignore[arg-type]
    assert lines[0] == "cluster c: node 1 of 2"
    assert lines[1] == "metadata    observer, led by node 2; voters: 2; version 7"
    assert lines[2] == "members     none yet: it looks for its cluster"
    assert "3 refused" in lines[3]
    assert lines[4].strip() == "none to node 2 at h:1: another cluster secret"
    conflict = "another process claims to be node 1"
    assert cluster_lines(figures(conflict=conflict))[0].endswith(conflict)  # type: ignore[arg-type]
    core = {"core": 0, "pid": 1, "ready": False, "restarts": 0, "up_ms": 0, "cluster": figures(conflict=conflict)}
    health = health_of([core], is_draining=False)  # type: ignore[list-item]
    assert health.warnings == [conflict, "there is no link to node 2 at h:1: another cluster secret"]
    assert health.reasons == ["core 0 is starting: it looks for its cluster"]
    metadata = {**figures()["metadata"], "leader": None}
    waits = {**core, "cluster": figures(absent=[2], membership={"alive": 1}, metadata=metadata)}
    health = health_of([waits], is_draining=False)  # type: ignore[list-item]
    assert health.reasons == ["core 0 is starting: it waits for a majority of the metadata's voters"]
    assert health.warnings[0] == "nodes that are away: 2"
    assert len(health.warnings) == 2
