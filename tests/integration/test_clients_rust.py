"""Confluent's client in Rust, of the version that tests/rust_client names, which knows no groups but those of KIP-848:
its producer, its transactions, members of its groups that come, go and are killed, and each function of its Admin.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.cluster.test_replication import in_sync_everywhere
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import Cluster, cluster, create_topic
from tests.support.group_story import (
    PARTITIONS,
    TIMES,
    Records,
    Story,
    committed,
    epochs,
    make_topic,
    story,
    wait_settled,
)
from tests.support.rust_client import RustUnavailableError, build_client
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients
DISTURBANCES: Final = 12
REFUSED: Final = {
    "describe_transactions": "TransactionalIdNotFoundError",  # before it is made by fencing it
    "alter_partition_reassignments": "InvalidReplicaAssignmentError",  # to a node that there is not
    "alter_replica_log_dirs": "LogDirNotFoundError",
    "alter_user_scram_credentials": "ResourceNotFoundError",
    "create_acls": "SecurityDisabledError",
    "describe_acls": "SecurityDisabledError",
    "delete_acls": "SecurityDisabledError",
    "create_delegation_token": "UnsupportedByAuthenticationError",
    "renew_delegation_token": "UnsupportedByAuthenticationError",
    "expire_delegation_token": "UnsupportedByAuthenticationError",
    "describe_delegation_token": "UnsupportedByAuthenticationError",
    "delete_topics_with_topic_collection": "UnknownTopicIdError",  # it was deleted by its name
    "describe_classic_groups": "GroupIdNotFoundError",
    "remove_members_from_consumer_group_with_options": "UnknownMemberIdError",
    "unregister_controller": "UnsupportedVersionError",
}
"""By function of Admin, in a broker without security: the error as the client names it."""
SAYS: Final = {
    "create_partitions": r"\(\)",
    "describe_cluster": r"Node \{ id: \d,.*Node \{ id: \d,",
    "describe_configs": r'"retention.ms": ConfigEntry\(name=retention.ms, value=604800000, source=DEFAULT_CONFIG',
    "describe_consumer_groups": "group_type: Consumer, group_state: Empty, coordinator: Some",
    "describe_features": r'"group.version": FinalizedVersionRange \{ min_version_level: 1, max_version_level: 1 \}',
    "fence_producers": r"\(\)",
    "force_terminate_transaction": r"\(\)",
    "describe_log_dirs": r"LogDirDescription \{ error: None, replica_infos: \{TopicPartition",
    "describe_producers": "producer_epoch: 0, last_sequence: ",
    "describe_replica_log_dirs": r'current_replica_log_dir: Some\(".*"\), current_replica_offset_lag: 0,',
    "describe_topics_with_topic_names": "partition: 2, leader: Some",
    "describe_topics_with_topics": "partition: 2, leader: Some",
    "elect_leaders": "ElectionNotNeeded",
    "list_config_resources": r"\{ resource_type: Topic, name: ",
    "list_consumer_group_offsets_with_group_specs": r'offset: 3, leader_epoch: None, metadata: "moved"',
    "list_groups": r"group_type: Some\(Consumer\), protocol: \"consumer\", group_state: Some\(Empty\)",
    "list_offsets earliest": "offset: 0, timestamp: -1",
    "list_partition_reassignments": r"\{\}",
    "list_transactions": r"\[\]",
    "update_features": r"\(\)",
}
"""What is in an answer, as Debug of Rust has it."""


KINDS: Final = ("committed", "uncommitted")


def read_values(bootstrap: str, topic: str, isolation: str) -> list[str]:
    """Of partition 0, to its end."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


@pytest.fixture(scope="module")
def client() -> Path:
    try:
        return build_client()
    except RustUnavailableError as reason:
        pytest.skip(str(reason))


@contextmanager
def its_producer(client: Path, broker: TpcBroker | Cluster, topic: str) -> Iterator[Records]:
    """Writes to all partitions until it is left; then the places of all records are in the set."""
    settings = json.dumps({"bootstrap.servers": broker.bootstrap})
    places: Records = set()
    with subprocess.Popen(
        [client, "produce", topic, str(PARTITIONS), settings],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield places
        except BaseException:
            process.kill()
            raise
        said, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaints
    places.update((place, partition, offset) for place, partition, offset in json.loads(said))
    ends = {
        partition: 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }
    assert len(places) == sum(ends.values()), "each offset is of a record that it wrote once"


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_go_and_are_killed(client, brisk_broker, topic, tmp_path, assignor):
    broker, program = brisk_broker, [str(client), "member"]
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **{"group.remote.assignor": assignor}) as told:
        with its_producer(client, broker, topic) as places:
            told.comes("a", topic, program)
            told.share("a")
            told.comes("b", topic, program)
            told.comes("c", f"^{topic}$", program)
            told.share("a", "b", "c")
            told.handle_more()
            told.leaves("a")
            told.share("b", "c")
            told.comes("d", topic, program, group_instance_id="d")
            told.share("b", "c", "d")
            told.handle_more()
            told.is_killed("b")
            told.share("c", "d")
            told.is_killed("d")  # its instance may be taken again when its session is over
            told.share("c")
            told.comes("d again", topic, program, group_instance_id="d")
            told.comes("e", topic)  # librdkafka
            told.share("c", "d again", "e")
            told.handle_more()
        told.all_handled(places)
        for name in ("c", "d again", "e"):
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert committed(broker, topic) == {
        (topic, partition): 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }


def test_members_outlive_a_killed_broker(client, brisk_broker, topic, tmp_path):
    broker, program, names = brisk_broker, [str(client), "member"], ("a", "b", "c")
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with its_producer(client, broker, topic) as places:
            for name in names:
                told.comes(name, topic, program)
            told.share(*names)
            wait_settled(broker, topic)
            before, owned, kept = epochs(broker, topic), told.owned(), committed(broker, topic)
            told.handle_more()
            broker.kill()
            broker.start()
            told.handle_more()
            assert told.owned() == owned
            assert epochs(broker, topic) == before
            now = committed(broker, topic)
            assert all(now[place] >= kept[place] for place in kept)
            told.leaves("c")
            told.share("a", "b")
        told.all_handled(places)
        for name in ("a", "b"):
            told.leaves(name)
        told.check_positions()


def disturb(told: Story, program: list[str], topic: str, chance: Random, there: list[str], number: int) -> None:
    """Somebody comes, goes or is killed; nobody waits for the group. Two to five are there."""
    what = chance.choice(["comes", "leaves", "is killed"])
    if (what == "comes" and len(there) < 5) or len(there) == 2:
        name = f"member {number}"
        told.comes(name, chance.choice([topic, f"^{topic}$"]), program)
        there.append(name)
        return
    name = there.pop(chance.randrange(len(there)))
    if what == "is killed":
        told.is_killed(name)
    else:
        told.leaves(name)


def test_members_are_killed_while_others_come_and_go(client, brisk_broker, topic, tmp_path, chance):
    broker, program, there = brisk_broker, [str(client), "member"], ["first", "second"]
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with its_producer(client, broker, topic) as places:
            for name in there:
                told.comes(name, topic, program)
            for number in range(DISTURBANCES):
                told.handle_more(chance.randrange(300))
                disturb(told, program, topic, chance, there, number)
            told.share(*there)
            told.handle_more()
        told.all_handled(places)
        for name in there:
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert epochs(broker, topic)[1] == {}


def test_each_function_of_its_admin(client, brisk_broker, topic, tmp_path):
    broker = brisk_broker
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        told.comes("a", topic, [str(client), "member"])
        with its_producer(client, broker, topic) as places:
            told.share("a")
            told.handle_more()
        told.all_handled(places)
        told.leaves("a")
    settings = json.dumps({"bootstrap.servers": broker.bootstrap})
    done = subprocess.run(
        [client, "admin", topic, topic, settings], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    refused = {function: said["error"].partition(":")[0] for function, said in answers.items() if "error" in said}
    assert refused == REFUSED, answers
    for function, wanted in SAYS.items():
        assert re.search(wanted, answers[function]["ok"]), (function, answers[function])
    assert committed(broker, topic) == {}, "the group was deleted"


def test_transactions(client, brisk_broker, topic):
    """One is aborted, and one is open when another producer of its id fences the first."""
    broker = brisk_broker
    make_topic(broker, topic)
    settings = json.dumps({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    done = subprocess.run(
        [client, "transact", topic, settings], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "fenced" in done.stdout.lower(), done.stdout
    committed_ones, everything = (read_values(broker.bootstrap, topic, f"read_{kind}") for kind in KINDS)
    assert committed_ones == ["committed 1", "committed 2", "committed 3"]
    assert everything == ["committed 1", "aborted", "committed 2", "fenced", "committed 3"]


def test_members_outlive_each_node_of_a_cluster(client, topic, tmp_path):
    """Killed one after the other: so are the group's coordinator and the leader of each partition."""
    program, names = [str(client), "member"], ("a", "b", "c")
    with cluster(tmp_path / "nodes") as made:
        for node in made.nodes:
            node.overrides |= {**TIMES, "offsets.topic.num.partitions": "3"}
        made.start()
        create_topic(made.bootstrap, topic, PARTITIONS, replicas=3)
        eventually(lambda: in_sync_everywhere(made, topic), "three replicas")
        with story(made, topic, tmp_path) as told:
            with its_producer(client, made, topic) as places:
                for name in names:
                    told.comes(name, topic, program)
                told.share(*names)
                for node in made.nodes:
                    made.kill(node.number)
                    told.handle_more(2000)
                    made.start(node.number)
                    eventually(lambda: in_sync_everywhere(made, topic), "it has caught up")
                    eventually(lambda: in_sync_everywhere(made, "__consumer_offsets"), "its coordinators too")
                told.leaves("a")
                told.is_killed("b")
                told.comes("d", topic, program)
                told.share("c", "d")
                told.handle_more()
            told.all_handled(places)
            for name in ("c", "d"):
                told.leaves(name)
            told.check_positions()
            assert not told.owned()
