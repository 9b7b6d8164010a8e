"""Consumer groups by KIP-848 on a cluster at a level that cannot store them: clients are told so at once by an error
that ends them, and are served from when the level is raised.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.cluster.test_releases import features, update
from tests.support.cluster_nodes import Cluster, cluster, create_topic, eventually, produce
from tests.support.raw_client import RawConnection
from tests.support.raw_members import RawMember, RawMembers
from tests.support.waiting import LOOK_S, patiently
from tpc_broker.error_codes import ErrorCode

TOPIC, GROUP = "early", "g"
pytestmark = pytest.mark.cluster


def error_of_heartbeat(made: Cluster, number: int) -> ErrorCode:
    with RawConnection(made[number].host, made[number].ports[0], LOOK_S) as client:
        answer = client.ask("ConsumerGroupHeartbeat", 1, RawMember(1).heartbeat(GROUP, TOPIC))
    return ErrorCode(answer["ErrorCode"])


def told_to_a_client(made: Cluster, wanted: int) -> KafkaError | list[bytes]:
    """The error that ends it, or so many records of the topic."""
    reader = Consumer({
        "bootstrap.servers": made.bootstrap, "group.id": "client", "group.protocol": "consumer",
        "auto.offset.reset": "earliest", "log_level": 0,
    })  # fmt: skip
    found: list[bytes] = []
    try:
        reader.subscribe([TOPIC])
        for _ in patiently("an error or all records"):
            message = reader.poll(0.5)
            if message is not None and message.error() is not None:
                return message.error()
            if message is not None:
                found.append(message.value() or b"")
            if len(found) == wanted:
                break
        return sorted(found)
    except KafkaException as error:
        return error.args[0]
    finally:
        reader.close()


def test_members_are_refused_below_the_level_and_served_from_it_on(tmp_path):
    with cluster(tmp_path) as made:
        made[3].environment["TPC_TEST_FEATURE_LEVELS"] = "2-3"
        for node in made.nodes:
            node.overrides["offsets.topic.num.partitions"] = "3"
        made.start()
        create_topic(made.bootstrap, TOPIC, 2, replicas=3)
        produce(made.bootstrap, TOPIC, ["a", "b"], 2)
        assert features(made, 1)[0] == 3
        for number in (1, 2, 3):
            assert error_of_heartbeat(made, number) is ErrorCode.UNSUPPORTED_VERSION
        refused = told_to_a_client(made, 2)
        assert isinstance(refused, KafkaError), refused
        assert refused.code() == KafkaError._FATAL, refused
        assert "API version not supported" in refused.str(), refused
        assert "3 (release" in (update(made, 4) or "")
        made[3].stop()
        del made[3].environment["TPC_TEST_FEATURE_LEVELS"]
        made.start(3)
        assert update(made, 4) is None
        for node in made.nodes:
            eventually(lambda node=node: features(made, node.number)[0] == 4, "all have it")
        members = RawMembers(made.nodes, GROUP, TOPIC, 2)
        members.come(2)
        try:
            members.wait_stable()
            members.check_offsets()
        finally:
            members.close()
        assert told_to_a_client(made, 2) == [b"a", b"b"]
