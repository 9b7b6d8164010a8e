"""Real nodes on loopback: founding, joining, refusals, and what is left when one is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException

from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import (
    REFUSED_S,
    Cluster,
    answered,
    brokers,
    cluster,
    cluster_told,
    consume,
    create_topic,
    eventually,
    is_created,
    leaders,
    metadata_voters,
    produce,
    topics,
)
from tests.support.ports import free_port_range
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc

pytestmark = pytest.mark.cluster


@pytest.fixture
def three(tmp_path):
    connection.leave_interrupts_alone()  # the commands run in this process, and so does trio in other tests
    with cluster(tmp_path) as made:
        yield made


def test_founders_found_one_cluster_and_any_node_serves_all_of_it(three: Cluster):
    """Also: a founder alone waits; clients of any node are sent to the owners; records and groups go over all nodes."""
    three.launch(1, 2)
    eventually(lambda: any("missing" in line for line in three[1].log_messages()), "a founder waits for the third")
    assert not any(line.startswith("founded cluster") for node in three.nodes[:2] for line in node.log_messages())
    three.launch(3)
    for node in three.nodes:
        node.wait_ready()
    for node in three.nodes:
        eventually(lambda node=node: brokers(node.bootstrap) == {1024, 2048, 3072}, "all nodes are shown")
    create_topic(three[3].bootstrap, "spread", 6)
    for node in three.nodes:
        found = eventually(lambda node=node: known_leaders(node.bootstrap, "spread"), "every node knows the leaders")
        assert sorted(found.values()) == [1024, 1024, 2048, 2048, 3072, 3072]

    def is_told() -> bool:
        told = cluster_told(three[2].bootstrap)
        assert [(row["node"], row["state"], row["cores"], row["leads"]) for row in told["nodes"]] == [
            (1, "alive", 1, 2), (2, "alive", 1, 2), (3, "alive", 1, 2),
        ]  # fmt: skip
        assert (told["partitions"], told["partitions_without_leader"]) == (6, 0)
        assert sorted(row["metadata"] for row in told["nodes"]) == ["leader", "voter", "voter"]
        return True

    eventually(is_told, "and what they do")
    values = [f"value {number}" for number in range(60)]
    produce(three[2].bootstrap, "spread", values, 6)
    assert consume(three[1].bootstrap, "spread", 60) == sorted(values)
    if shutil.which("kcat"):
        done = subprocess.run(
            ["kcat", "-b", three[3].bootstrap, "-C", "-t", "spread", "-e", "-q", "-o", "beginning"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        assert sorted(done.stdout.splitlines()) == sorted(values)


def known_leaders(bootstrap: str, topic: str) -> dict[int, int]:
    found = leaders(bootstrap, topic)
    return found if -1 not in found.values() else {}


def test_a_killed_controller_under_administrative_load(three: Cluster):
    """What was acknowledged is on all nodes afterwards, another one leads, and the killed one catches up."""
    three.start()
    acknowledged: list[str] = []
    stop = threading.Event()
    kept = [node.bootstrap for node in three.nodes]

    def load() -> None:
        number = 0
        while not stop.is_set():
            name = f"topic-{number}"
            number += 1
            try:
                create_topic(kept[number % 3], name, timeout_s=LOOK_S)
            except KafkaException:
                continue
            acknowledged.append(name)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        eventually(lambda: len(acknowledged) >= 5, "topics are made")
        killed = eventually(three.controller, "somebody leads")
        three[killed].kill()
        kept[killed - 1] = kept[killed % 3]
        before = len(acknowledged)
        eventually(lambda: len(acknowledged) >= before + 5, "topics are made without it")
    finally:
        stop.set()
        loader.join()
    assert eventually(three.controller, "another leads") != killed
    survivors = [node for node in three.nodes if node.number != killed]
    eventually(
        lambda: {row["node"]: row["state"] for row in cluster_told(survivors[0].bootstrap)["nodes"]}[killed] == "dead",
        "the killed one is buried",
    )
    for node in survivors:
        eventually(lambda node=node: set(acknowledged) <= topics(node.bootstrap), f"node {node.number} has all topics")
    three.start(killed)
    has = answered(lambda: topics(three[killed].bootstrap))
    assert set(acknowledged) <= has, "it answers nobody before it has caught up"


def test_a_minority_acknowledges_nothing_and_restarts_wait(three: Cluster):
    three.start()
    create_topic(three.bootstrap, "before")
    three[2].kill()
    three[3].kill()
    with pytest.raises(KafkaException):
        create_topic(three[1].bootstrap, "alone", timeout_s=REFUSED_S)
    three[1].kill()
    three.launch(1)
    eventually(lambda: any("waiting for a majority" in line for line in three[1].log_messages()), "it waits")
    assert three[1].process.is_running
    three.start(2)
    three[1].wait_ready()
    for node in (three[1], three[2]):
        assert "before" in answered(lambda node=node: topics(node.bootstrap))
    create_topic(three[1].bootstrap, "after")
    three.start(3)
    eventually(lambda: {"before", "after"} <= topics(three[3].bootstrap), "the third catches up")


def test_a_founder_that_comes_back_empty_joins_and_votes(three: Cluster):
    three.start()
    create_topic(three.bootstrap, "kept", 3)
    three[3].kill()
    shutil.rmtree(three[3].data_folder)
    three.start(3)
    assert "kept" in answered(lambda: topics(three[3].bootstrap))
    eventually(lambda: metadata_voters(three.bootstrap) == [1, 2, 3], "it votes again")
    # With its vote the cluster goes on without another one.
    killed = eventually(three.controller, "somebody leads")
    create_topic(three.bootstrap, "with-all-three")
    three[killed].kill()
    left = [node for node in three.nodes if node.number != killed]
    eventually(lambda: is_created(left[0].bootstrap, "with-two"), "two of three are a majority")


def test_nodes_that_join_later(tmp_path):
    """The first two are founders; the third becomes a voter, and the fourth pulls what the others have committed."""
    with cluster(tmp_path, count=4, founders=2) as made:
        made.start(1, 2)
        create_topic(made[1].bootstrap, "early", 2)
        made.start(3)
        made.start(4)
        for node in made.nodes:
            eventually(lambda node=node: brokers(node.bootstrap) == {1024, 2048, 3072, 4096}, "all nodes are shown")
            assert "early" in answered(lambda node=node: topics(node.bootstrap))
        create_topic(made[4].bootstrap, "late", 8)
        found = eventually(lambda: known_leaders(made[4].bootstrap, "late"), "leaders")
        assert {2048, 3072, 4096} <= set(found.values())
        eventually(lambda: metadata_voters(made[4].bootstrap) == [1, 2, 3], "three voters")
        made[1].kill()
        eventually(lambda: is_created(made[4].bootstrap, "later"), "without one of three voters")
        made.start(1)


def test_a_directory_with_data_becomes_the_first_node(three: Cluster, tmp_path):
    alone = TpcBroker(tmp_path / "alone", 1)
    alone.start()
    create_topic(alone.bootstrap, "old", 2)
    produce(alone.bootstrap, "old", ["a", "b", "c"], 2)
    alone.stop()
    shutil.move(alone.data_folder, three[2].data_folder)
    identity = (three[2].data_folder / "meta.properties").read_text()
    three.start()
    for node in three.nodes:
        assert consume(node.bootstrap, "old", 3, group=f"g{node.number}") == ["a", "b", "c"]
    cluster_id = next(line.split("=", 1)[1] for line in identity.splitlines() if line.startswith("cluster.id"))
    assert any(f"is in cluster {cluster_id}" in line for line in three[1].log_messages())
    three[2].stop()
    again = TpcBroker(tmp_path / "again", 1)
    again.folder.mkdir()
    shutil.move(three[2].data_folder, again.data_folder)
    again.launch()
    eventually(lambda: not again.process.is_running, "without --cluster it is refused")
    assert f"is node 2's of cluster {cluster_id}" in again.log_text()
    again.kill()


def test_who_does_not_belong_is_refused(three: Cluster, tmp_path):
    """An id that is alive; another secret; a copy of a directory whose node is alive."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    for node in three.nodes:
        node.secret = secret
    three.start()
    twin = three._node(2, three.spare_port, 1)
    twin.folder = tmp_path / "twin"
    twin.secret = secret
    try:
        twin.launch()
        assert twin.wait_ended() == 2
        assert "node id 2 is alive at 127.0.0.1:" in twin.log_text()
        twin.number, twin.folder = 9, tmp_path / "stranger"
        twin.secret = tmp_path / "other"
        twin.secret.write_text("another secret, as long as one has to be")
        twin.secret.chmod(0o600)
        twin.launch()
        assert twin.wait_ended() == 2
        assert "the other end has another cluster secret" in twin.log_text()
        eventually(lambda: any("another cluster secret" in m for n in three.nodes for m in n.log_messages()), "told")
        twin.number, twin.folder, twin.secret = 2, tmp_path / "copy", secret
        twin.data_folder.mkdir(parents=True)
        for part in ("cluster", "journals"):
            shutil.copytree(three[2].data_folder / part, twin.data_folder / part)
        twin.launch()  # it would vote in the name of the one that it was copied from
        eventually(lambda: any("another process of the same" in m for m in twin.log_messages()), "a copy is refused")
        assert not any("tpc-broker is ready" in m for m in twin.log_messages())
    finally:
        twin.kill()
    create_topic(three.bootstrap, "still-there")


def test_two_clusters_do_not_mix(tmp_path):
    with cluster(tmp_path / "a", count=2) as one, cluster(tmp_path / "b", count=2) as two:
        one.start()
        two.start()
        two[2].kill()
        two[2].seeds = [*one.seeds, two[2].port]  # by mistake
        two[2].launch()
        eventually(
            lambda: any("is of cluster" in m and "and node" in m for m in two[2].log_messages()), "the one is told"
        )
        eventually(lambda: any("is of cluster" in m for n in one.nodes for m in n.log_messages()), "the other is told")
        eventually(lambda: brokers(one[1].bootstrap) == {1024, 2048}, "nobody came to it")


@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGHUP])
def test_a_local_cluster_in_one_command(tmp_path, ends_by):
    """Its nodes end with it, also when its terminal is closed."""
    port = free_port_range(140)
    command = [sys.executable, "-m", "tpc_broker.cli.main", "cluster", "start", "--nodes", "2", "--data", str(tmp_path),
               "--port", str(port)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline().startswith(f"2 nodes are ready: --bootstrap 127.0.0.1:{port},127.0.0.1:")
            eventually(lambda: brokers(f"127.0.0.1:{port + 10}") == {1024, 2048}, "both nodes are shown")
            nodes = psutil.Process(started.pid).children()
        finally:
            # In the background of some shells Ctrl-C is ignored, by what is started there, too.
            started.send_signal(signal.SIGTERM if signal.getsignal(ends_by) == signal.SIG_IGN else ends_by)
            try:
                code = started.wait(PATIENCE_S)
            finally:
                started.kill()  # or its end would be waited for without end
        left = [node.pid for node in nodes if node.is_running()]
        for pid in left:
            os.killpg(pid, signal.SIGKILL)
        assert (code, len(nodes), left) == (0, 2, [])
    assert not [line for line in (tmp_path / "node1.log").read_text().splitlines() if "Traceback" in line]


def test_a_broker_without_a_cluster_has_no_nodes_to_show(tmp_path):
    alone = TpcBroker(tmp_path, 1)
    alone.start()
    try:
        done = CliRunner().invoke(tpc, ["cluster", "--bootstrap", alone.bootstrap])
        assert (done.exit_code, done.stderr.count("\n")) == (4, 1)
        assert "is not a node of a cluster" in done.stderr
    finally:
        alone.kill()
