"""Administration of three nodes: replicas, their moves, their leaders, and the quorum of the metadata."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.cluster_dialogue import BROKERS, ClusterDialogue, cluster_scenario
from tests.integration.differential.dialogue import stable_versions

A, B, C = BROKERS
NOBODY = 9999


def ends_of(api: str) -> tuple[int, int]:
    """Its lowest and its highest version: a change of the metadata costs three nodes some time."""
    versions = stable_versions(api)
    return versions[0], versions[-1]


def create(d: ClusterDialogue, version: int, *topics: dict[str, Any], **more: Any) -> None:
    d.anywhere.ask("CreateTopics", version, {"Topics": list(topics), "timeoutMs": 60_000, **more})


@cluster_scenario
def create_topics_with_replicas(d: ClusterDialogue) -> None:
    """The number of them; where they go is nobody's to compare."""
    for version in ends_of("CreateTopics"):
        for factor in (3, 2, 1, 4, 0, -1, -2, 32767):
            name = f"{d.prefix}-{version}-of-{factor}"
            wanted = {"Name": name, "NumPartitions": 2, "ReplicationFactor": factor}
            create(d, version, wanted, validateOnly=version > 4)
        name = f"{d.prefix}-{version}"
        create(d, version, {"Name": name, "NumPartitions": 3, "ReplicationFactor": 2})
        d.until(lambda name=name: {len(set(one["ReplicaNodes"])) for one in d.parts(name)} == {2})
        assert len({broker for one in d.parts(name) for broker in one["ReplicaNodes"]}) == 3


@cluster_scenario
def create_topics_where_they_are_to_be(d: ClusterDialogue) -> None:
    for version in ends_of("CreateTopics"):
        for number, lists in enumerate([
            [[A, B, C]], [[C, A]], [[B]], [[A, B], [B, C], [C, A]],
            [[A, A]], [[A, NOBODY]], [[NOBODY]], [[-1]], [[]], [[A], [A, B]], [[A, B, C, NOBODY]],
        ]):  # fmt: skip
            placed = [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in enumerate(lists)]
            wanted = {"NumPartitions": -1, "ReplicationFactor": -1, "Assignments": placed}
            create(d, version, {"Name": f"{d.prefix}-{version}-{number}", **wanted}, validateOnly=number > 3)
        name = f"{d.prefix}-{version}-wrong"
        one = {"PartitionIndex": 0, "BrokerIds": [A]}
        for places in ([{**one, "PartitionIndex": 1}], [one, one], [one, {**one, "PartitionIndex": 2}]):
            create(d, version, {"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": places})
        create(d, version, {"Name": name, "NumPartitions": 1, "ReplicationFactor": -1, "Assignments": [one]})
        create(d, version, {"Name": name, "NumPartitions": -1, "ReplicationFactor": 1, "Assignments": [one]})


@cluster_scenario
def metadata_of_replicas(d: ClusterDialogue) -> None:
    """As every node shows them."""
    topic = d.placed("one", [A, B, C], [C, A, B], [B, A, C])
    d.placed("two", [C, A], [B, C])
    for version in stable_versions("Metadata"):
        d.anywhere.ask("Metadata", version, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})
    d.anywhere.ask("Metadata", 12, {"Topics": None})
    for version in stable_versions("DescribeCluster"):
        d.anywhere.ask("DescribeCluster", version, {})


@cluster_scenario
def create_partitions_with_replicas(d: ClusterDialogue) -> None:
    for version in ends_of("CreatePartitions"):
        topic = d.placed(f"grows-{version}", [A, B])

        def grow(count: int, *places: list[int], topic: str = topic, version: int = version, dry: bool = False) -> None:
            wanted = {"Name": topic, "Count": count, "Assignments": [{"BrokerIds": ids} for ids in places] or None}
            d.anywhere.ask(
                "CreatePartitions", version, {"Topics": [wanted], "TimeoutMs": 60_000, "ValidateOnly": dry}
            )

        for wrong in ([B], [B, NOBODY], [B, B], [A, B, C], [], [-1, A]):
            grow(2, wrong)
        grow(3, [B, C])
        grow(2, [B, C], [C, A])
        grow(2, [B, C], dry=True)
        grow(1, [B, C])
        grow(2, [B, C])
        d.wait_placed(topic, [A, B], [B, C])
        d.anywhere.ask("Metadata", 12, {"Topics": [{"Name": topic}]})


def reassign(
    d: ClusterDialogue, version: int, topic: str, wanted: dict[int, list[int] | None], **more: Any
) -> None:
    parts = [{"PartitionIndex": index, "Replicas": ids} for index, ids in wanted.items()]
    asked = {"TimeoutMs": 60_000, "Topics": [{"Name": topic, "Partitions": parts}], **more}
    d.anywhere.ask("AlterPartitionReassignments", version, asked)


def ongoing(d: ClusterDialogue, topics: list[dict[str, Any]] | None) -> None:
    d.anywhere.ask("ListPartitionReassignments", 0, {"TimeoutMs": 60_000, "Topics": topics})


def wait_moved(d: ClusterDialogue) -> None:
    asked = {"TimeoutMs": 60_000, "Topics": None}
    d.until(lambda: not d.guide("ListPartitionReassignments", 0, asked)["Topics"])


@cluster_scenario
def reassignments_that_are_refused(d: ClusterDialogue) -> None:
    topic = d.placed("one", [A, B], [B, C])
    for version in stable_versions("AlterPartitionReassignments"):
        for ids in ([], [A, A], [A, NOBODY], [-1, A], None):
            reassign(d, version, topic, {0: ids})
        reassign(d, version, topic, {2: [A, B]})
        reassign(d, version, topic, {-1: [A, B]})
        reassign(d, version, topic, {2: None})
        reassign(d, version, topic, {})
        reassign(d, version, f"{d.prefix}-absent", {0: [A, B]})
        reassign(d, version, "", {0: [A, B]})
        d.anywhere.ask("AlterPartitionReassignments", version, {"TimeoutMs": 60_000, "Topics": []})
        reassign(d, version, topic, {0: [A, B], 1: [NOBODY]})
    reassign(d, 1, topic, {0: [A, B, C]}, AllowReplicationFactorChange=False)
    reassign(d, 1, topic, {0: [A]}, AllowReplicationFactorChange=False)
    ongoing(d, None)
    ongoing(d, [])
    ongoing(d, [{"Name": topic, "PartitionIndexes": [0, 1, 7]}])
    ongoing(d, [{"Name": f"{d.prefix}-absent", "PartitionIndexes": [0]}])
    d.anywhere.ask("Metadata", 12, {"Topics": [{"Name": topic}]})


@cluster_scenario
def reassignments(d: ClusterDialogue) -> None:
    """To other nodes, into another order, to more and to fewer."""
    topic = d.placed("one", [A, B])
    for ids in ([A, B], [B, A], [B, C], [C, A, B], [A]):
        reassign(d, 1, topic, {0: ids})
        wait_moved(d)
        d.until(lambda ids=ids: [one["ReplicaNodes"] for one in d.parts(topic)] == [ids])
        elect(d, topic, ids[0])
        d.wait_placed(topic, ids)
        d.anywhere.ask("Metadata", 12, {"Topics": [{"Name": topic}]})
        ongoing(d, None)


def elect(d: ClusterDialogue, topic: str, leader: int) -> None:
    """The preferred one, whenever that can be; not compared."""
    asked = {"ElectionType": 0, "TopicPartitions": [{"Topic": topic, "Partitions": [0]}], "TimeoutMs": 60_000}

    def is_led() -> bool:
        d.guide("ElectLeaders", 2, asked)
        return bool(d.parts(topic)[0]["LeaderId"] == leader)

    d.until(is_led)


@cluster_scenario
def elect_leaders(d: ClusterDialogue) -> None:
    topic, other = d.placed("one", [A, B, C], [B, A, C]), d.placed("other", [C])
    for version in stable_versions("ElectLeaders"):
        for kind in (0, 1, 2):
            asked = [{"Topic": topic, "Partitions": [0, 1, 2]}, {"Topic": other, "Partitions": [0]}]
            values = {"ElectionType": kind, "TopicPartitions": asked, "TimeoutMs": 60_000}
            d.anywhere.ask("ElectLeaders", version, values)
    for preferred in ([B, A, C], [C, B, A]):
        reassign(d, 0, topic, {0: preferred})
        wait_moved(d)
        d.until(lambda preferred=preferred: d.parts(topic)[0]["ReplicaNodes"] == preferred)
        values = {"ElectionType": 0, "TopicPartitions": [{"Topic": topic, "Partitions": [0, 1]}], "TimeoutMs": 60_000}
        d.settle()
        d.anywhere.ask("ElectLeaders", 2, values)
        d.wait_placed(topic, preferred, [B, A, C])
        d.anywhere.ask("Metadata", 12, {"Topics": [{"Name": topic}]})


@cluster_scenario
def describe_the_quorum(d: ClusterDialogue) -> None:
    metadata = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}

    def all_are_known() -> bool:
        [topic] = d.guide("DescribeQuorum", 2, {"Topics": [metadata]})["Topics"]
        voters = topic["Partitions"][0]["CurrentVoters"]
        return len(voters) == 3 and all(min(one["LogEndOffset"], one["LastCaughtUpTimestamp"]) > 0 for one in voters)

    d.until(all_are_known)
    for version in stable_versions("DescribeQuorum"):
        d.anywhere.ask("DescribeQuorum", version, {"Topics": [metadata]})


@cluster_scenario
def features_and_brokers_that_are_not_there(d: ClusterDialogue) -> None:
    for version in stable_versions("UpdateFeatures"):
        update = {"Feature": "absent", "MaxVersionLevel": 1}
        d.anywhere.ask("UpdateFeatures", version, {"FeatureUpdates": [update], "timeoutMs": 60_000})
        d.anywhere.ask("UpdateFeatures", version, {"FeatureUpdates": [update], "ValidateOnly": True})
    for broker in (NOBODY, -1):
        d.anywhere.ask("UnregisterBroker", 0, {"BrokerId": broker})
