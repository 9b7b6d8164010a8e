"""`tpc cluster health` and `tpc node drain --wait`: what is well, what is missing, and for how long it is waited."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster_nodes import run_tpc
from tests.support.ports import free_port_range
from tpc_broker.cli import health
from tpc_broker.cli.health import left_on, reasons_of


def partition(index: int, leader: int | None, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> dict[str, Any]:
    return {
        "topic": "t", "partition": index, "leader": None if leader is None else 1024 * leader + 1,
        "replicas": [1024 * node for node in replicas], "in_sync": [1024 * node for node in in_sync],
    }  # fmt: skip


def facts(*states: str, controller: int | None = 1, full: tuple[int, ...] = ()) -> dict[str, Any]:
    nodes = [{"node": node, "state": state, "full": node in full} for node, state in enumerate(states, start=1)]
    return {"nodes": nodes, "controller": controller, "asked": 2}


WELL = partition(0, 1, (1, 2, 3), (3, 1, 2))
LEADERLESS = partition(1, None, (1, 2, 3), ())
LACKING = partition(2, 2, (1, 2, 3), (1, 2))


def test_a_cluster_is_healthy_when_all_is_well() -> None:
    assert reasons_of(facts("alive", "draining", "alive"), [WELL]) == []
    assert reasons_of(None, [partition(0, 0, (0,), (0,))]) == [], "a broker alone"
    assert reasons_of(facts("alive"), []) == []


def test_all_that_is_not_well_is_a_reason() -> None:
    told = facts("alive", "dead", "suspected", "alive", "left", controller=None, full=(4,))
    assert reasons_of(told, [WELL, LEADERLESS, LACKING]) == [
        "node 2 is dead", "node 3 is suspected", "node 4 is full", "node 5 is left",
        "no node leads the metadata, as node 2 knows", "1 partition has no leader (t-1)",
        "1 partition has replicas that are not in sync (t-2)",
    ]  # fmt: skip
    (many,) = reasons_of(None, [partition(index, None, (0,), ()) for index in range(9)])
    assert many == "9 partitions have no leader (t-0, t-1, t-2 and 6 more)"


def test_a_node_is_drained_when_others_lead_and_have_what_they_can_have() -> None:
    three = facts("draining", "alive", "alive")
    assert left_on(1, three, [WELL]) == ["1 partition has its leader on node 1 (t-0)"]
    assert left_on(1, three, [LACKING]) == [], "its replica has nowhere to go"
    four = facts("draining", "alive", "alive", "alive")
    assert left_on(1, four, [LACKING]) == ["1 partition has a replica on node 1 (t-2)"]
    on_its_way = partition(2, 2, (1, 2, 3, 4), (1, 2, 3))
    move = {"topic": "t", "partition": 2, "adding": [4], "removing": [1]}
    assert left_on(1, {**four, "moves": [move]}, [on_its_way]) == ["1 partition has a replica on node 1 (t-2)"]
    assert left_on(1, {**four, "moves": [{**move, "removing": [2]}]}, [on_its_way]) == []
    full = facts("draining", "alive", "alive", "alive", full=(4,))
    assert left_on(1, full, [LACKING]) == []
    assert left_on(1, four, [partition(0, 2, (2, 3, 4), (2, 3, 4))]) == []


def test_it_is_waited_for_until_it_is_so_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [["one"], ["one"], []]
    monkeypatch.setattr(health, "LOOK_S", 0.0)
    assert health.waited("127.0.0.1:1", None, lambda _client: looks.pop(0)) == []
    assert not looks
    assert health.waited("127.0.0.1:1", 0.0, lambda _client: ["another"]) == ["another"]


def test_a_running_broker_and_a_running_cluster_are_healthy(shared_broker, shared_cluster) -> None:
    for bootstrap in (shared_broker.bootstrap, shared_cluster.bootstrap):
        assert run_tpc("cluster", "health", "--wait", "120", "--bootstrap", bootstrap) == (0, "healthy\n")
    code, said = run_tpc("cluster", "health", "--wait", "120", "--json", "--bootstrap", shared_cluster.bootstrap)
    assert (code, json.loads(said)) == (0, {"healthy": True, "reasons": []})


def test_nobody_there_is_not_healthy_also_after_a_wait() -> None:
    address = f"127.0.0.1:{free_port_range(1)}"
    assert run_tpc("cluster", "health", "--bootstrap", address)[0] == 3
    code, said = run_tpc("cluster", "health", "--wait", "0.01", "--bootstrap", address)
    assert code == 1
    assert said.startswith("not healthy: ")
    assert address in said


def test_what_makes_no_sense_together_is_refused() -> None:
    assert run_tpc("node", "drain", "2", "--cancel", "--wait") == (2, "tpc: --wait is for a drain, not for its end\n")
    assert run_tpc("node", "drain", "2", "--timeout", "3") == (2, "tpc: --timeout is for --wait\n")
