"""Records as datagrams at the nodes of a cluster: the leader's node takes them, and answers when they are committed."""

from __future__ import annotations

import traceback

import anyio
import pytest

from tests.support.cluster_nodes import Cluster, consume, create_assigned, eventually, leaders, run_tpc
from tests.support.shared_servers import SharedCluster
from tpc_broker.client.datagrams import DatagramProducer, DatagramSettings
from tpc_broker.client.errors import RefusedError, UnreachableError

PARTITIONS = 6
SETTINGS = DatagramSettings(give_up_seconds=120)


@pytest.fixture
def nodes(shared_cluster):
    return shared_cluster


@pytest.fixture
def own_nodes(tmp_path):
    """For a test that kills one."""
    made = SharedCluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill_all()


def create(nodes: Cluster, topic: str) -> None:
    """Each node is preferred for a third: where a topic is placed by itself depends on those of other tests."""
    places = [[1024 * ((first + step) % 3 + 1) for step in range(3)] for first in range(PARTITIONS)]
    create_assigned(nodes.bootstrap, topic, places)


def led(nodes: Cluster, topic: str) -> dict[int, int]:
    """The node that leads each partition."""

    def look() -> dict[int, int]:
        found = leaders(nodes.bootstrap, topic)
        assert len(found) == PARTITIONS
        assert all(leader >= 0 for leader in found.values())
        return {index: leader // 1024 for index, leader in found.items()}

    return eventually(look, "it has leaders")


def send(addresses: list[tuple[str, int]], topic: str, values: list[str], settings=SETTINGS, then=None) -> int:
    """Round robin, all at once; how many were sent again. `then` is called when half of them are acknowledged."""
    done = 0

    async def main() -> int:
        async with DatagramProducer(*addresses[0], settings, other_nodes=addresses[1:]) as producer:

            async def one(number: int, value: str) -> None:
                nonlocal done
                await producer.send(topic, number % PARTITIONS, value.encode())
                done += 1
                if done == len(values) // 2 and then is not None:
                    await anyio.to_thread.run_sync(then)

            async with anyio.create_task_group() as tasks:
                for number, value in enumerate(values):
                    tasks.start_soon(one, number, value)
            return producer.sent_again

    return anyio.run(main, backend="trio")


def read_until(nodes: Cluster, topic: str, wanted: set[str]) -> set[str]:
    """The records of a topic: each once, but for those that were sent again."""
    group = f"{topic} {len(wanted)}"
    return set(consume(nodes.bootstrap, topic, 4 * len(wanted), group, until=lambda found: wanted <= set(found)))


def test_each_partitions_leader_is_found(nodes):
    all_come(nodes)


def all_come(nodes: Cluster) -> set[str]:
    create(nodes, "sent")
    eventually(lambda: len(set(led(nodes, "sent").values())) > 1, "no node leads all")
    addresses = [node.datagrams for node in nodes.nodes]
    values = [f"value {number:04}" for number in range(200)]
    send(addresses, "sent", values)
    assert read_until(nodes, "sent", set(values)) == set(values)
    return set(values)


@pytest.mark.cluster
def test_a_kill_loses_nothing(own_nodes):
    nodes = own_nodes
    addresses = [node.datagrams for node in nodes.nodes]
    values = all_come(nodes)
    victim = led(nodes, "sent")[0]
    more = [f"more {number:04}" for number in range(400)]
    send(addresses, "sent", more, then=lambda: nodes.kill(victim))
    nodes.start(victim)
    wanted = {*values, *more}
    assert read_until(nodes, "sent", wanted) == wanted


def test_a_node_that_does_not_lead_refuses(nodes):
    """Until the sender gives up: then the last refusal is told, or that nothing came in so short a time."""
    create(nodes, "refused")
    quick = DatagramSettings(retry_seconds=0.05, retry_seconds_max=0.1, give_up_seconds=3)

    def is_refused() -> bool:
        by_node = led(nodes, "refused")
        other = next(node for node in nodes.nodes if node.number != by_node[0])
        told: list[str] = []
        try:
            send([other.datagrams], "refused", ["value"], quick)
        except* RefusedError as refused:
            told += traceback.format_exception(refused)
        except* UnreachableError:
            pass
        return "NOT_LEADER_OR_FOLLOWER" in "".join(told)

    eventually(is_refused, "a node that does not lead says so")


def test_lines_are_sent_to_the_nodes_that_lead(nodes, tmp_path):
    create(nodes, "lines")
    led(nodes, "lines")
    lines = [f"line {number}" for number in range(30)]
    file = tmp_path / "lines"
    file.write_text("\n".join(lines) + "\n")
    to = ",".join("{}:{}".format(*node.datagrams) for node in nodes.nodes)
    code, said = run_tpc("send", "lines", str(file), "--to", to, "--bootstrap", nodes.bootstrap)
    assert code == 0, said
    assert read_until(nodes, "lines", set(lines)) == set(lines)
