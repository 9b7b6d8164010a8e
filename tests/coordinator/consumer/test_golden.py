"""The same requests as to Apache Kafka 4.3.1 are answered as it did, and stored in the same bytes.

What the assignor says is taken from what was recorded; so are the times, and what patterns match.
"""

import json
from itertools import groupby
from pathlib import Path
from uuid import UUID

import pytest

from tests.coordinator.consumer.scenario import ConsumerScenario
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import GroupCoordinator, Record
from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat, ConsumerSettings, KnownTopic
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    consumer_record,
    read_consumer_key,
    read_consumer_value,
)
from tpc_broker.coordinator.messages import LeavingMember, OffsetCommitRequest, OffsetToCommit
from tpc_broker.coordinator.records import leading_number, read_offset
from tpc_broker.model import TopicId

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "consumer_groups.json").read_text())
PARTITIONS = {"orders": 3, "payments": 2, "growing": 1}
OFFSET_KEY = 1


def topic_id(text):
    return TopicId(UUID(hex=text))


def recorded(step):
    return [
        Record(bytes.fromhex(one["key"]), None if one["value"] is None else bytes.fromhex(one["value"]))
        for batch in step["batches"]
        for one in batch
    ]


def in_our_order(record):
    """Kafka's order of the topics in a record is that of a hash table."""
    if record.value is None or leading_number(record.key) not in {TARGET_KEY, CURRENT_KEY}:
        return record
    name = read_consumer_key(record.key)
    return consumer_record(name, read_consumer_value(name.key_type, record.value))


def comparable(records):
    """Targets of a round have no order that anybody has promised."""
    runs = groupby(map(in_our_order, records), lambda record: leading_number(record.key) == TARGET_KEY)
    return [record for is_targets, run in runs for record in (sorted(run) if is_targets else run)]


def recorded_ms(records):
    """When Kafka wrote them, as far as they say it."""
    for key, value in records:
        if value is not None and leading_number(key) == TARGET_EPOCH_KEY:
            return read_consumer_value(TARGET_EPOCH_KEY, value).timestamp_ms
        if value is not None and leading_number(key) == OFFSET_KEY:
            return read_offset(value).commit_timestamp_ms
    return 0


class Replay:
    """Of one part of what was recorded."""

    def __init__(self, **settings):
        self.targets = {}
        self.s = ConsumerScenario(topics={}, assignors={"uniform": self.assign, "range": self.assign})
        for name, count in PARTITIONS.items():
            self.make(name, count)
        self.s.settings = ConsumerSettings(**{"assignment_interval_ms": 0, **settings})
        self.s.settings_by_group["session"] = ConsumerSettings(assignment_interval_ms=0, session_timeout_ms=1_000)

    def make(self, name, count):
        self.s.topics.by_name[name] = KnownTopic(topic_id(GOLDEN["topics"][name]), name, count)
        self.s.topics.version += 1

    def assign(self, spec):
        yield
        return {member_id: self.targets.get(member_id, dict(one.assigned)) for member_id, one in spec.members.items()}

    def step(self, step):
        records = recorded(step)
        self.s.now = max(self.s.now, recorded_ms(records))
        self.targets = {
            name.name: read_consumer_value(TARGET_KEY, value)
            for key, value in records
            if value is not None and (name := read_consumer_key(key)) is not None and name.key_type == TARGET_KEY
        }
        self.change_topics(step["what"])
        before = len(self.s.log)
        if "request" in step:
            getattr(self, step["api"])(step)
        else:
            self.s.wait(1_000)
        assert comparable(self.s.log[before:]) == comparable(records), step["what"]

    def change_topics(self, what):
        """As it was done before a step."""
        if what == "the topic grew":
            self.s.topics.grow("growing", 2)
        elif what == "a topic was made":
            self.make("later", 1)
        elif what == "a topic was deleted":
            self.s.topics.delete("growing")

    def ConsumerGroupHeartbeat(self, step):  # noqa: N802 - by their names in Kafka
        asked, answer = step["request"], step["answer"]
        token = self.s.token("beat")
        owned = asked.get("TopicPartitions")
        details = {
            "group_id": asked["GroupId"],
            "member_id": asked["MemberId"],
            "member_epoch": asked["MemberEpoch"],
            "instance_id": asked.get("InstanceId"),
            "rack_id": asked.get("RackId"),
            "rebalance_timeout_ms": asked.get("RebalanceTimeoutMs", -1),
            "topic_names": None if asked.get("SubscribedTopicNames") is None else tuple(asked["SubscribedTopicNames"]),
            "topic_regex": asked.get("SubscribedTopicRegex"),
            "assignor": asked.get("ServerAssignor"),
            "owned": None if owned is None else partitions(owned),
            "client_id": "referee",
            "client_host": "/127.0.0.1",
        }
        request = ConsumerHeartbeat(**details)
        self.s.run(self.s.machine.consumer_heartbeat(request, token, self.s.now, answer["MemberId"]))
        told = self.s.replies[token]
        assigned = None if answer["Assignment"] is None else partitions(answer["Assignment"]["TopicPartitions"])
        assert (told.error_code, told.member_id, told.member_epoch, told.assignment) == (
            answer["ErrorCode"], answer["MemberId"], answer["MemberEpoch"], assigned,
        ), step["what"]  # fmt: skip

    def OffsetCommit(self, step):  # noqa: N802
        asked = step["request"]
        offsets = tuple(
            OffsetToCommit(
                topic=topic["Name"],
                partition=one["PartitionIndex"],
                offset=one["CommittedOffset"],
                metadata=one["CommittedMetadata"],
                topic_id=topic_id(GOLDEN["topics"][topic["Name"]]),
            )
            for topic in asked["Topics"]
            for one in topic["Partitions"]
        )
        request = OffsetCommitRequest(
            group_id=asked["GroupId"],
            offsets=offsets,
            generation_id=asked["GenerationIdOrMemberEpoch"],
            member_id=asked["MemberId"],
        )
        token = self.s.token("commit")
        self.s.run(self.s.machine.offset_commit(request, token, self.s.now))
        assert {one.error_code for one in self.s.replies[token].partitions} == {0}

    def OffsetDelete(self, step):  # noqa: N802
        asked = step["request"]
        wanted = [(topic["Name"], one["PartitionIndex"]) for topic in asked["Topics"] for one in topic["Partitions"]]
        told = self.s.delete_offsets(*wanted, group=asked["GroupId"])
        assert (told.error_code, {one.error_code for one in told.partitions}) == (0, {0})

    def LeaveGroup(self, step):  # noqa: N802
        token = self.s.token("leave")
        leaving = [LeavingMember(one["MemberId"], one.get("GroupInstanceId")) for one in step["request"]["Members"]]
        self.s.run(self.s.machine.leave_group(step["request"]["GroupId"], leaving, token, self.s.now))
        told = self.s.replies[token]
        answers = [(one["MemberId"], one["GroupInstanceId"], one["ErrorCode"]) for one in step["answer"]["Members"]]
        assert [(one.member_id, one.group_instance_id, one.error_code) for one in told.members] == answers

    def DeleteGroups(self, step):  # noqa: N802
        [group] = step["request"]["GroupsNames"]
        assert self.s.delete(group) == {group: 0}


def partitions(topics):
    return {topic_id(one["TopicId"]): frozenset(one["Partitions"]) for one in topics}


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("by_names", {}),
        ("by_the_interval", {"assignment_interval_ms": 1_000}),
        ("with_facts", {}),
        ("of_static_members", {}),
        ("of_changing_topics", {}),
        ("by_time", {}),
    ],
)
def test_what_is_stored_is_what_kafka_stores(part, settings):
    replay = Replay(**settings)
    for step in GOLDEN["parts"][part]:
        replay.step(step)


@pytest.mark.parametrize("part", GOLDEN["parts"])
def test_what_kafka_stored_is_replayed_and_stored_again_as_it_was(part):
    """After each step: what is live of its records is what is stored; of the legacy key nothing is kept."""
    live, records = {}, []
    for step in GOLDEN["parts"][part]:
        for record in recorded(step):
            records.append(record)
            live.pop(record.key, None)
            if record.value is not None:
                live[record.key] = record
        machine = GroupCoordinator()
        for record in records:
            machine.replay(record.key, record.value)
        machine.finish_loading(0)
        assert {record.key: record for record in stored_records(machine)} == {
            key: in_our_order(record) for key, record in live.items()
        }


def test_records_with_one_topic_are_written_in_the_same_bytes():
    several = 0
    for record in (record for steps in GOLDEN["parts"].values() for step in steps for record in recorded(step)):
        if record.value is None or leading_number(record.key) not in {TARGET_KEY, CURRENT_KEY}:
            continue
        value = read_consumer_value(leading_number(record.key), record.value)
        topics = value if isinstance(value, dict) else {**value.assigned, **value.pending_revocation}
        several += len(topics) > 1
        assert len(topics) > 1 or in_our_order(record) == record
    assert several
