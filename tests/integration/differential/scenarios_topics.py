"""Metadata, and making, growing and removing topics."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.differential.dialogue import Dialogue, scenario, stable_versions

NO_ID = uuid.UUID(int=0)
STRANGE_ID = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
WRONG_NAMES = ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "a:b", "\0"]


def _create(d: Dialogue, version: int, *topics: dict, validate_only: bool = False) -> dict:
    return d.anywhere.ask(
        "CreateTopics", version, {"Topics": list(topics), "timeoutMs": 10_000, "validateOnly": validate_only}
    )


@scenario
def metadata(d: Dialogue) -> None:
    one, three = d.topic("one"), d.topic("three", 3)
    for version in stable_versions("Metadata"):
        quiet = {"AllowAutoTopicCreation": False}
        d.anywhere.ask("Metadata", version, {"Topics": [{"Name": one}], **quiet})
        d.anywhere.ask("Metadata", version, {"Topics": [{"Name": three}, {"Name": one}], **quiet})
        d.anywhere.ask("Metadata", version, {"Topics": [{"Name": one}, {"Name": one}], **quiet})
        d.anywhere.ask("Metadata", version, {"Topics": None if version else [], **quiet})
        if version:
            d.anywhere.ask("Metadata", version, {"Topics": [], **quiet})
        for name in WRONG_NAMES:
            d.anywhere.ask("Metadata", version, {"Topics": [{"Name": name}], **quiet})
        if version >= 4:
            d.anywhere.ask("Metadata", version, {"Topics": [{"Name": f"{d.prefix}-absent"}, {"Name": one}], **quiet})
        if version >= 8:
            asked = {"IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
            d.anywhere.ask("Metadata", version, {"Topics": [{"Name": one}], **asked, **quiet})
            d.anywhere.ask("Metadata", version, {"Topics": [{"Name": f"{d.prefix}-absent"}], **asked, **quiet})


@scenario
def describe_topic_partitions(d: Dialogue) -> None:
    one, three, two = d.topic("a-one"), d.topic("b-three", 3), d.topic("c-two", 2)
    absent = f"{d.prefix}-bb-absent"

    def ask(names: list[str], limit: int | None = None, cursor: tuple[str, int] | None = None) -> None:
        asked: dict[str, Any] = {"Topics": [{"Name": name} for name in names]}
        if limit is not None:
            asked["ResponsePartitionLimit"] = limit
        if cursor is not None:
            asked["Cursor"] = {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
        told = d.anywhere.ask("DescribeTopicPartitions", 0, asked).get("Topics", [])
        d.note("the order", 0, asked, " ".join(topic["Name"] for topic in told if topic["Name"].startswith(d.prefix)))

    for name in (one, absent, *WRONG_NAMES):
        ask([name])
    ask([two, absent, one, three, one])
    ask([one, "__consumer_offsets_absent", "__transaction_state"])
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 2000, 2**31 - 1):
        ask([three, two, one], limit)
        ask([three, two, one, absent], limit)
    for cursor in ((three, 0), (three, 1), (three, 2), (three, 3), (three, 9), (three, -1), (two, 0), (one, 1)):
        for limit in (1, 2, 3, 100):
            ask([three, two, one], limit, cursor)
            ask([], min(limit, 3), cursor)
    for cursor in ((absent, 0), (f"{d.prefix}-b", 1), ("", 0), (absent, -1)):
        ask([three, two, one, one], 2, cursor)
        ask([absent, two], 2, cursor)
    for cursor in ((absent, 0), (absent, 1), (f"{d.prefix}-b", 1), (f"{d.prefix}-b", -1)):
        ask([], 2, cursor)


@scenario
def metadata_by_topic_id(d: Dialogue) -> None:
    one = d.topic("one")
    known = d.topic_id(one)
    for version in range(10, 14):
        for wanted in (
            [{"Name": None, "TopicId": known}],
            [{"Name": None, "TopicId": STRANGE_ID}],
            [{"Name": one, "TopicId": known}],
            [{"Name": one, "TopicId": STRANGE_ID}],
            [{"Name": None, "TopicId": known}, {"Name": None, "TopicId": STRANGE_ID}],
            [{"Name": one}, {"Name": None, "TopicId": known}],
            [{"Name": None, "TopicId": known}, {"Name": None, "TopicId": known}],
        ):
            d.anywhere.ask("Metadata", version, {"Topics": wanted, "AllowAutoTopicCreation": False})


@scenario
def metadata_without_name_or_id(d: Dialogue) -> None:
    for version in range(10, 14):
        d.anywhere.ask("Metadata", version, {"Topics": [{"Name": None, "TopicId": NO_ID}]})


@scenario
def metadata_makes_topics(d: Dialogue) -> None:
    for version in stable_versions("Metadata"):
        name = f"{d.prefix}-made-{version}"
        first = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}
        d.anywhere.ask("Metadata", version, first)
        d.wait_for_topic_made(name)
        d.anywhere.ask("Metadata", version, first)
    for name in ("bad name", "x" * 250, ".."):
        d.anywhere.ask("Metadata", 9, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True})


@scenario
def create_topics(d: Dialogue) -> None:
    for version in stable_versions("CreateTopics"):
        name = f"{d.prefix}-{version}"
        _create(d, version, {"Name": name, "NumPartitions": 2, "ReplicationFactor": 1})
        _create(d, version, {"Name": name, "NumPartitions": 2, "ReplicationFactor": 1})
        if version >= 4:
            _create(d, version, {"Name": f"{name}-default", "NumPartitions": -1, "ReplicationFactor": -1})
        _create(d, version, {"Name": f"{name}-dry", "NumPartitions": 3, "ReplicationFactor": 1}, validate_only=True)
        _create(d, version, {"Name": name, "NumPartitions": 3, "ReplicationFactor": 1}, validate_only=True)
        same = {"Name": f"{name}-same", "NumPartitions": 1, "ReplicationFactor": 1}
        _create(d, version, same, {**same, "NumPartitions": 2})
        _create(d, version)
        d.anywhere.ask("Metadata", 9, {"Topics": None})


@scenario
def create_topics_with_wrong_names(d: Dialogue) -> None:
    for version in (2, 5, 7):
        for name in WRONG_NAMES:
            _create(d, version, {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1})
    _create(d, 7, {"Name": f"{d.prefix}.dot_1", "NumPartitions": 1, "ReplicationFactor": 1})
    _create(d, 7, {"Name": f"{d.prefix}_dot.1", "NumPartitions": 1, "ReplicationFactor": 1})
    _create(d, 7, {"Name": "__cluster_metadata", "NumPartitions": 1, "ReplicationFactor": 1})


@scenario
def create_topics_with_wrong_counts(d: Dialogue) -> None:
    for version in (2, 4, 7):
        for partitions_count in (0, -1, -2, 2**31 - 1):
            name = f"{d.prefix}-{version}-p{partitions_count}"
            wanted = {"Name": name, "NumPartitions": partitions_count, "ReplicationFactor": 1}
            _create(d, version, wanted, validate_only=True)
        for factor in (0, -2, 2, 3, 32767):
            _create(
                d, version, {"Name": f"{d.prefix}-{version}-f{factor}", "NumPartitions": 1, "ReplicationFactor": factor}
            )
    _create(
        d,
        7,
        {"Name": f"{d.prefix}-good", "NumPartitions": 1, "ReplicationFactor": 1},
        {"Name": f"{d.prefix}-bad", "NumPartitions": 0, "ReplicationFactor": 1},
    )


@scenario
def create_topics_with_assignments(d: Dialogue) -> None:
    def assigned(name: str, *assignments: tuple[int, list[int]], partitions_count: int = -1, factor: int = -1) -> dict:
        return {
            "Name": f"{d.prefix}-{name}",
            "NumPartitions": partitions_count,
            "ReplicationFactor": factor,
            "Assignments": [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in assignments],
        }

    for version in (2, 4, 7):
        tail = f"-{version}"
        _create(d, version, assigned("right" + tail, (0, [0]), (1, [0])))
        _create(d, version, assigned("gap" + tail, (0, [0]), (2, [0])))
        _create(d, version, assigned("late" + tail, (1, [0])))
        _create(d, version, assigned("twice" + tail, (0, [0]), (0, [0])))
        _create(d, version, assigned("strange" + tail, (0, [999])))
        _create(d, version, assigned("negative" + tail, (0, [-1])))
        _create(d, version, assigned("none" + tail, (0, [])))
        _create(d, version, assigned("same-broker" + tail, (0, [0, 0])))
        _create(d, version, assigned("count-too" + tail, (0, [0]), partitions_count=1))
        _create(d, version, assigned("factor-too" + tail, (0, [0]), factor=1))
    d.anywhere.ask("Metadata", 9, {"Topics": None})


@scenario
def create_topics_with_configs(d: Dialogue) -> None:
    def configured(name: str, *pairs: tuple[str, str | None]) -> dict:
        configs = [{"Name": key, "Value": value} for key, value in pairs]
        return {"Name": f"{d.prefix}-{name}", "NumPartitions": 1, "ReplicationFactor": 1, "Configs": configs}

    for version in (2, 5, 7):
        tail = f"-{version}"
        _create(d, version, configured("right" + tail, ("retention.ms", "1234567"), ("cleanup.policy", "compact")))
        _create(d, version, configured("unknown" + tail, ("no.such.config", "1")))
        _create(d, version, configured("null" + tail, ("retention.ms", None)))
        _create(d, version, configured("empty" + tail, ("retention.ms", "")))
        _create(d, version, configured("twice" + tail, ("retention.ms", "1"), ("retention.ms", "2")))
        _create(d, version, configured("no-number" + tail, ("retention.ms", "soon")))
    for key, value in WRONG_CONFIGS:
        _create(d, 7, configured("wrong", (key, value)), validate_only=True)
    for key, value in RIGHT_CONFIGS:
        _create(d, 7, configured("fine", (key, value)), validate_only=True)


@scenario
def create_topics_that_the_broker_would_compress(d: Dialogue) -> None:
    for value in ("zstd", "uncompressed"):
        configs = [{"Name": "compression.type", "Value": value}]
        asked = {"Name": f"{d.prefix}-{value}", "NumPartitions": 1, "ReplicationFactor": 1, "Configs": configs}
        _create(d, 7, asked, validate_only=True)


WRONG_CONFIGS = [
    ("retention.ms", "-2"), ("retention.bytes", "x"), ("segment.bytes", "13"), ("segment.bytes", "0"),
    ("segment.bytes", "9999999999"), ("cleanup.policy", "shred"), ("cleanup.policy", "compact,shred"),
    ("compression.type", "rar"), ("min.insync.replicas", "0"), ("max.message.bytes", "-1"),
    ("message.timestamp.type", "Sometime"), ("unclean.leader.election.enable", "maybe"),
    ("min.cleanable.dirty.ratio", "1.5"), ("min.cleanable.dirty.ratio", "-0.1"), ("segment.ms", "0"),
    ("index.interval.bytes", "-1"), ("segment.index.bytes", "3"), ("flush.messages", "0"), ("flush.ms", "-1"),
    ("preallocate", "yes"), ("delete.retention.ms", "-1"), ("file.delete.delay.ms", "-1"),
    ("max.compaction.lag.ms", "0"), ("min.compaction.lag.ms", "-1"), ("segment.jitter.ms", "-1"),
    ("message.timestamp.before.max.ms", "-1"), ("message.timestamp.after.max.ms", "-1"),
    ("compression.gzip.level", "99"), ("compression.zstd.level", "99"), ("compression.lz4.level", "99"),
]  # fmt: skip
RIGHT_CONFIGS = [
    ("retention.ms", "-1"), ("retention.ms", "0"), ("retention.bytes", "-1"), ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete,compact"), ("compression.type", "producer"),
    ("min.insync.replicas", "2"), ("max.message.bytes", "0"), ("message.timestamp.type", "LogAppendTime"),
    ("preallocate", "true"), ("preallocate", "TRUE"), ("unclean.leader.election.enable", "false"),
    ("min.cleanable.dirty.ratio", "0"), ("min.cleanable.dirty.ratio", "1"), ("segment.ms", "1"),
    ("segment.bytes", "1048576"), ("retention.ms", " 5 "),
]  # fmt: skip


@scenario
def delete_topics(d: Dialogue) -> None:
    for version in range(1, 6):
        name = d.topic(f"doomed-{version}", 2)
        d.anywhere.ask("DeleteTopics", version, {"TopicNames": [name], "TimeoutMs": 10_000})
        d.anywhere.ask("DeleteTopics", version, {"TopicNames": [name], "TimeoutMs": 10_000})
        d.anywhere.ask("Metadata", 9, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False})
        other = d.topic(f"other-{version}")
        d.anywhere.ask("DeleteTopics", version, {"TopicNames": [f"{d.prefix}-absent", other], "TimeoutMs": 10_000})
        d.anywhere.ask("DeleteTopics", version, {"TopicNames": [], "TimeoutMs": 10_000})
        d.anywhere.ask("DeleteTopics", version, {"TopicNames": ["", "bad name"], "TimeoutMs": 10_000})
    twice = d.topic("twice")
    d.anywhere.ask("DeleteTopics", 5, {"TopicNames": [twice, twice], "TimeoutMs": 10_000})
    d.anywhere.ask("Metadata", 9, {"Topics": [{"Name": twice}], "AllowAutoTopicCreation": False})


@scenario
def delete_topics_by_id(d: Dialogue) -> None:
    def delete(*topics: dict) -> None:
        d.anywhere.ask("DeleteTopics", 6, {"Topics": list(topics), "TimeoutMs": 10_000})

    by_name, by_id, both, twice = (d.topic(name) for name in ("by-name", "by-id", "both", "twice"))
    delete({"Name": by_name, "TopicId": NO_ID})
    delete({"Name": None, "TopicId": d.topic_id(by_id)})
    delete({"Name": None, "TopicId": d.topic_id(by_id)})
    delete({"Name": None, "TopicId": STRANGE_ID})
    delete({"Name": None, "TopicId": NO_ID})
    delete({"Name": both, "TopicId": d.topic_id(both)})
    delete({"Name": twice, "TopicId": NO_ID}, {"Name": None, "TopicId": d.topic_id(twice)})
    delete({"Name": f"{d.prefix}-absent", "TopicId": NO_ID}, {"Name": None, "TopicId": STRANGE_ID})
    delete()
    d.anywhere.ask("Metadata", 12, {"Topics": None})


@scenario
def a_topic_made_again_has_another_id(d: Dialogue) -> None:
    name = d.topic("again")
    old = d.topic_id(name)
    d.anywhere.ask("DeleteTopics", 5, {"TopicNames": [name], "TimeoutMs": 10_000})
    d.topic("again")
    d.anywhere.ask("Metadata", 12, {"Topics": [{"Name": None, "TopicId": old}]})
    d.leader(name).ask(
        "ListOffsets", 6, {"Topics": [{"Name": name, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]}
    )


@scenario
def create_partitions(d: Dialogue) -> None:
    def grow(version: int, *topics: dict, validate_only: bool = False) -> None:
        values = {"Topics": list(topics), "TimeoutMs": 10_000, "ValidateOnly": validate_only}
        d.anywhere.ask("CreatePartitions", version, values)

    for version in stable_versions("CreatePartitions"):
        name = d.topic(f"grows-{version}", 2)
        for count in (3, 3, 2, 0, -1):
            grow(version, {"Name": name, "Count": count, "Assignments": None})
        grow(version, {"Name": name, "Count": 6, "Assignments": None}, validate_only=True)
        grow(version, {"Name": f"{d.prefix}-absent", "Count": 6, "Assignments": None})
        grow(version, {"Name": "bad name", "Count": 6, "Assignments": None})
        grow(version, {"Name": name, "Count": 5, "Assignments": [{"BrokerIds": [0]}, {"BrokerIds": [0]}]})
        grow(version, {"Name": name, "Count": 7, "Assignments": [{"BrokerIds": [0]}]})
        grow(version, {"Name": name, "Count": 6, "Assignments": [{"BrokerIds": [999]}]})
        grow(version, {"Name": name, "Count": 6, "Assignments": [{"BrokerIds": [0, 0]}]})
        grow(version, {"Name": name, "Count": 6, "Assignments": [{"BrokerIds": []}]})
        grow(version, {"Name": name, "Count": 6, "Assignments": []})
        grow(version)
        d.wait_for_topic(name, 5)
        d.anywhere.ask("Metadata", 9, {"Topics": [{"Name": name}]})
    twice = d.topic("twice")
    grow(3, {"Name": twice, "Count": 2, "Assignments": None}, {"Name": twice, "Count": 3, "Assignments": None})
    d.anywhere.ask("Metadata", 9, {"Topics": [{"Name": twice}]})
