"""Makes the data directories of three nodes of this release, for later ones to open:
``python -m tests.cluster.earlier_data NAME``.

The nodes are killed, so that journals and the metadata's files hold what only they have: terms and votes, a partition
that was moved and came back, a deleted topic, settings, offsets of a group, a group by KIP-848, transactions, a user,
rules of access and quotas, and a compacted topic with a cleaned segment on every node. What has to be found is in
``expected.json`` beside the data. They are made once for each feature level of docs/formats.md, by the last release
that has it, and never again.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.cluster.test_moves import reassign, replicas
from tests.durability.earlier_data import (
    COMPACTED,
    CONSUMERS,
    OFTEN_CLEANED,
    SECURITY,
    SESSION,
    TRANSACTIONS,
    add_compacted,
    session_timeout,
    set_of_a_group,
    told_of_compacted,
)
from tests.support.cluster_nodes import (
    Cluster,
    admin,
    cluster,
    consume,
    create_topic,
    eventually,
    leaders,
    produce,
    topics,
)
from tests.support.kept_group import fill_kept_group, told_of_kept_group
from tests.support.kept_security import ACCESS, keep_security, told_of_kept_security
from tests.support.kept_transactions import TOPIC, add_kept_transactions, told_of_kept_transactions
from tests.support.waiting import LOOK_S, PATIENCE_S

DATA = Path(__file__).with_name("data")
GROUP = "g"
COMMITTED = 17
EVENTS, MOVED = 60, 20
NODES: Final = 3
COORDINATORS: Final = 3


def expected_of(made: Cluster) -> dict[str, Any]:
    """What clients see."""
    bootstrap = made.bootstrap
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    asked = [TopicPartition("events", 0)]
    committed = eventually(lambda: consumer.committed(asked, timeout=LOOK_S)[0].offset, "offsets are told")
    consumer.close()
    resource = ConfigResource(ResourceType.TOPIC, "events")
    client = admin(bootstrap)
    return {
        "topics": sorted(name for name in topics(bootstrap) if not name.startswith("__")),
        "committed": committed,
        "retention.ms": client.describe_configs([resource])[resource].result(PATIENCE_S)["retention.ms"].value,
        SESSION: session_timeout(bootstrap),
        CONSUMERS: told_of_kept_group(made.nodes),
        TRANSACTIONS: told_of_kept_transactions(made.nodes),
        SECURITY: told_of_kept_security(bootstrap),
        COMPACTED: told_of_compacted(bootstrap),
        "events": consume(bootstrap, "events", EVENTS, uuid4().hex),
        "moved": consume(bootstrap, "moved", MOVED, uuid4().hex),
    }


def fill(made: Cluster) -> None:
    bootstrap = made.bootstrap
    create_topic(bootstrap, "events", 2, replicas=3)
    create_topic(bootstrap, "moved", 1, replicas=2)
    create_topic(bootstrap, "deleted", 1, replicas=3)
    create_topic(bootstrap, TOPIC, 1, replicas=3)
    client = admin(bootstrap)
    for topic in ("events", "moved", TOPIC):
        change = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    produce(bootstrap, "events", [f"first {number}" for number in range(20)], 2)
    produce(bootstrap, "moved", [f"moved {number}" for number in range(MOVED)], 1)
    client.delete_topics(["deleted"])["deleted"].result(PATIENCE_S)
    set_of_a_group(bootstrap)
    keep_security(bootstrap, made[1].folder)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    at = [TopicPartition("events", 0, COMMITTED)]
    eventually(lambda: consumer.commit(offsets=at, asynchronous=False), "offsets are committed")
    consumer.close()


def move_about(made: Cluster) -> None:
    """A replica leaves a node and comes back: another life of it."""
    (before,) = replicas(made, "moved").values()
    (third,) = {1, 2, 3} - set(before)
    for wanted in ([before[0], third], before):
        assert reassign(made, "moved", {0: wanted}) == [0]
        eventually(lambda wanted=wanted: replicas(made, "moved") == {0: wanted}, "it is there")


def lead_elsewhere(made: Cluster) -> None:
    """Two nodes fail, one after the other: terms and votes."""
    for number in (1, 2):
        made.kill(number)
        others = made[3].bootstrap
        gone = {number * 1024, -1}
        eventually(lambda gone=gone, others=others: not gone & set(leaders(others, "events").values()), "others lead")
        produce(others, "events", [f"without {number} {count}" for count in range(20)], 2)
        made.start(number)
        eventually(lambda: len(replicas(made, "events")) == 2, "all are in sync")


def configure(made: Cluster) -> Cluster:
    """With few partitions for coordinators, each of which costs a start some time, and with an authorizer, for
    which links have to be encrypted.
    """
    secret = made[1].folder.parent / "cluster.key"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    for node in made.nodes:
        node.overrides |= ACCESS
        node.secret = secret
        for topic in ("offsets.topic", "transaction.state.log"):
            node.overrides[f"{topic}.num.partitions"] = str(COORDINATORS)
    return made


def make(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with cluster(Path(folder), count=NODES) as made:
            for node in configure(made).nodes:
                node.overrides |= OFTEN_CLEANED
            made.start()
            fill(made)
            add_compacted(made.bootstrap, [node.data_folder for node in made.nodes])
            move_about(made)
            lead_elsewhere(made)
            fill_kept_group(made.nodes, "events", 2)
            add_kept_transactions(made.bootstrap, 0)
            expected = expected_of(made)
        (Path(folder) / "expected.json").write_text(json.dumps(expected))
        DATA.mkdir(exist_ok=True)
        with tarfile.open(DATA / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for node in made.nodes:
                (node.data_folder / "ballast").unlink()  # space and nothing else
                archive.add(node.data_folder, f"node{node.number}/data")
            archive.add(Path(folder) / "expected.json", "expected.json")


if __name__ == "__main__":
    make(sys.argv[1])
