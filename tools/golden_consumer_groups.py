"""Write ``tests/coordinator/golden/consumer_groups.json``: what Apache Kafka writes for consumer groups of KIP-848.

A Kafka of its own is started, groups are driven by raw requests, and after each request the records that
``__consumer_offsets`` (one partition here) has got since the last one are read. Needs Java 17::

    python tools/golden_consumer_groups.py

The file has the steps in their order. A step is a request, its answer, and `batches`: the record batches that came
with it, each a list of records. `later` marks what came by itself (a timer, a pattern that was resolved) before the
next request. Bytes and ids are hexadecimal; `is` names the schema of a record's key and value.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.kafka_peer import KAFKA_VERSION, KafkaPeer  # noqa: E402 - after the path is set
from tests.support.raw_client import RawConnection  # noqa: E402
from tests.support.record_batches import read_batches  # noqa: E402
from tpc_broker.kafka import decode  # noqa: E402

PATH = ROOT / "tests" / "coordinator" / "golden" / "consumer_groups.json"
SCHEMAS = {
    0: "OffsetCommit", 1: "OffsetCommit", 2: "GroupMetadata", 3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata", 5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember", 8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}  # fmt: skip
OVERRIDES = {
    "offsets.topic.num.partitions": "1",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
PATIENCE_S = 60.0
NO_REBALANCE_IN_MS = 300_000


def plain(value: Any) -> Any:
    """As JSON can say it."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, uuid.UUID):
        return value.hex
    return value.hex() if isinstance(value, (bytes, memoryview)) else value


def described(key: bytes, value: bytes | None) -> dict[str, Any]:
    kind = int.from_bytes(key[:2], "big")
    name = SCHEMAS[kind]
    shown_key = decode(f"{name}Key", 0, key[2:]).to_dict()
    shown = None if value is None else decode(f"{name}Value", int.from_bytes(value[:2], "big"), value[2:]).to_dict()
    return {
        "is": name,
        "key": key.hex(),
        "value": None if value is None else value.hex(),
        "means": {"key": plain(shown_key), "value": plain(shown)},
    }


class Recorder:
    def __init__(self, port: int) -> None:
        self.connection = RawConnection("127.0.0.1", port)
        self.steps: list[dict[str, Any]] = []
        self.topics: dict[str, uuid.UUID] = {}
        self.offset = 0

    # ---- the log ----------------------------------------------------------------------------------------------------

    def fetched(self) -> list[list[dict[str, Any]]]:
        """The batches that are new."""
        found = []
        while True:
            partition = {"Partition": 0, "FetchOffset": self.offset, "PartitionMaxBytes": 1 << 20}
            topics = [{"Topic": "__consumer_offsets", "Partitions": [partition]}]
            answer = self.connection.ask("Fetch", 11, {"MaxBytes": 1 << 20, "ReplicaId": -1, "Topics": topics})
            batches = read_batches(answer["Responses"][0]["Partitions"][0]["Records"] or b"")
            if not batches:
                return found
            for batch in batches:
                found.append([described(key, value) for _, _, key, value, _ in batch["records"]])
                self.offset = batch["base_offset"] + batch["last_offset_delta"] + 1

    def later(self, what: str) -> list[list[dict[str, Any]]]:
        """What has come by itself since the last request, as a step when there is any."""
        batches = self.fetched()
        if batches:
            self.steps.append({"what": what, "later": True, "batches": batches})
        return batches

    def wait_later(self, what: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not self.later(what):
            assert time.monotonic() < give_up_at, what
            time.sleep(0.05)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def ask(self, what: str, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        self.later("by itself")
        answer = self.connection.ask(api, version, values)
        step = {"what": what, "api": api, "version": version, "request": plain(values), "answer": plain(answer)}
        self.steps.append({**step, "batches": self.fetched()})
        return answer

    def beat(self, what: str, group: str, member: str, epoch: int, version: int = 1, **more: Any) -> dict[str, Any]:
        values = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, **more}
        return self.ask(what, "ConsumerGroupHeartbeat", version, values)

    def join(self, what: str, group: str, member: str, *names: str, version: int = 1, **more: Any) -> dict[str, Any]:
        values = {"RebalanceTimeoutMs": NO_REBALANCE_IN_MS, "SubscribedTopicNames": list(names), "TopicPartitions": []}
        return self.beat(what, group, member, 0, version, **values, **more)

    def beat_until(
        self, what: str, holds: Callable[[dict[str, Any]], bool], group: str, member: str, epoch: int, **more: Any
    ) -> dict[str, Any]:
        """Heartbeats until an answer is the one that is waited for; those that wrote nothing leave no step."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            answer = self.beat(what, group, member, epoch, **more)
            if holds(answer):
                return answer
            assert time.monotonic() < give_up_at, (what, answer)
            if not self.steps[-1]["batches"]:
                self.steps.pop()
            time.sleep(0.05)

    def beat_until_resolved(self, pattern: str, group: str, epochs: dict[str, int]) -> None:
        """Heartbeats of these members, whose epochs go along, until a pattern's topics are written: patterns are looked
        at when members send heartbeats, every 10 s at most.
        """
        key = {"group_id": group, "regular_expression": pattern}
        first = len(self.steps) - 1

        def written() -> bool:
            batches = [batch for step in self.steps[first:] for batch in step["batches"]]
            return any(one["means"]["key"] == key and one["value"] for batch in batches for one in batch)

        give_up_at = time.monotonic() + PATIENCE_S
        while not written():
            assert time.monotonic() < give_up_at, pattern
            for member, epoch in epochs.items():
                answer = self.beat(f"until {pattern} is resolved", group, member, epoch)
                assert answer["ErrorCode"] == 0, answer
                epochs[member] = answer["MemberEpoch"]
                if not self.steps[-1]["batches"]:
                    self.steps.pop()
            time.sleep(0.05)
            self.later(f"{pattern} is resolved")

    def topic(self, name: str, partitions_count: int) -> None:
        wanted = {"Name": name, "NumPartitions": partitions_count, "ReplicationFactor": 1}
        [made] = self.connection.ask("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})["Topics"]
        self.topics[name] = made["TopicId"]
        self.wait_for_partitions(name, partitions_count)
        self.wait_for_coordinator(name)

    def wait_for_partitions(self, name: str, count: int) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            [found] = self.connection.ask("Metadata", 12, {"Topics": [{"Name": name}]})["Topics"]
            if sum(one["ErrorCode"] == 0 for one in found["Partitions"]) == count:
                return
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)

    def wait_for_coordinator(self, name: str) -> None:
        """The coordinator hears of a topic later than the broker: until a member of another group is given it."""
        self.later("by itself")
        member = {"GroupId": "probe", "MemberId": "probe"}
        joining = {"MemberEpoch": 0, "RebalanceTimeoutMs": NO_REBALANCE_IN_MS, "SubscribedTopicNames": [name]}
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            answer = self.connection.ask("ConsumerGroupHeartbeat", 1, {**member, **joining, "TopicPartitions": []})
            self.connection.ask("ConsumerGroupHeartbeat", 1, {**member, "MemberEpoch": -1})
            if answer["Assignment"]["TopicPartitions"]:
                break
            assert time.monotonic() < give_up_at, answer
        self.fetched()

    def setting(self, group: str, name: str, value: str) -> None:
        config = {"Name": name, "ConfigOperation": 0, "Value": value}
        resource = {"ResourceType": 32, "ResourceName": group, "Configs": [config]}
        [done] = self.connection.ask("IncrementalAlterConfigs", 1, {"Resources": [resource]})["Responses"]
        assert done["ErrorCode"] == 0, done
        shown = {"ResourceType": 32, "ResourceName": group, "ConfigurationKeys": [name]}
        give_up_at = time.monotonic() + PATIENCE_S
        while self.connection.ask("DescribeConfigs", 4, {"Resources": [shown]})["Results"][0]["Configs"][0][
            "Value"
        ] != value:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)

    def owned(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        return answer["Assignment"]["TopicPartitions"]


# ---- what is recorded ---------------------------------------------------------------------------------------------


def by_names(r: Recorder) -> None:
    """Two members share out two topics; one leaves, one subscribes to other names and leaves; the group is deleted."""
    group = "names"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    first = r.join("first member joins", group, "member-a", "orders", "payments")
    epoch = first["MemberEpoch"]
    r.beat("says what it owns", group, "member-a", epoch, TopicPartitions=r.owned(first))
    r.beat("nothing new", group, "member-a", epoch)
    r.join("second member joins", group, "member-b", "payments", "orders")
    told = r.beat("first is told to give back", group, "member-a", epoch)
    told = r.beat("first has given back", group, "member-a", epoch, TopicPartitions=r.owned(told))
    got = r.beat("second gets what is free", group, "member-b", told["MemberEpoch"])
    r.beat("second owns it", group, "member-b", got["MemberEpoch"], TopicPartitions=r.owned(got))
    partition = {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedLeaderEpoch": -1, "CommittedMetadata": "note"}
    named = {"GroupId": group, "GenerationIdOrMemberEpoch": told["MemberEpoch"], "MemberId": "member-a"}
    topics = [{"Name": "orders", "Partitions": [partition]}, {"Name": "payments", "Partitions": [partition]}]
    r.ask("commit", "OffsetCommit", 9, {**named, "Topics": topics})
    r.beat("second leaves", group, "member-b", -1)
    got = r.beat("first gets all again", group, "member-a", told["MemberEpoch"])
    r.beat("other names", group, "member-a", got["MemberEpoch"], SubscribedTopicNames=["payments"])
    got = r.beat("told of it", group, "member-a", got["MemberEpoch"])
    r.beat("gave it back", group, "member-a", got["MemberEpoch"], TopicPartitions=[
        {"TopicId": r.topics["payments"], "Partitions": [0, 1]}
    ])
    deleted = [{"Name": "orders", "Partitions": [{"PartitionIndex": 0}]}]
    r.ask("an offset is deleted", "OffsetDelete", 0, {"GroupId": group, "Topics": deleted})
    r.beat("last one leaves", group, "member-a", -1)
    r.ask("the group is deleted", "DeleteGroups", 2, {"GroupsNames": [group]})


def by_the_interval(r: Recorder) -> None:
    """With the default interval a second member's join only raises the epoch."""
    group = "interval"
    first = r.join("first member joins", group, "member-a", "orders")
    r.join("second member joins within the interval", group, "member-b", "orders")
    got = r.beat_until("the assignment comes later", lambda one: one["Assignment"] is not None, group, "member-a",
                       first["MemberEpoch"])  # fmt: skip
    r.beat("gave back", group, "member-a", got["MemberEpoch"], TopicPartitions=r.owned(got))
    r.beat("second leaves", group, "member-b", -1)
    r.beat("first leaves within the interval", group, "member-a", -1)


def with_facts(r: Recorder) -> None:
    """Racks, an assignor, a member id that the broker makes, names that are not there."""
    group = "facts"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    first = r.join("joins with a rack and an assignor, in version 0, without an id", group, "", "payments", "absent",
                   version=0, RackId="rack-1", ServerAssignor="range")  # fmt: skip
    member, epoch = first["MemberId"], first["MemberEpoch"]
    r.beat("another rack", group, member, epoch, RackId="rack-2")
    r.beat("another assignor", group, member, epoch, ServerAssignor="uniform")
    r.beat("another rebalance time-out", group, member, epoch, RebalanceTimeoutMs=20_000)
    r.beat("epoch 0 again", group, member, 0, RebalanceTimeoutMs=20_000, SubscribedTopicNames=["payments", "absent"],
           TopicPartitions=[])  # fmt: skip
    r.beat("the same names", group, member, epoch, SubscribedTopicNames=["absent", "payments"])
    got = r.beat("no names at all", group, member, epoch, SubscribedTopicNames=[])
    r.beat("owns nothing", group, member, got["MemberEpoch"], TopicPartitions=[])
    r.beat("leaves", group, member, -1)
    r.join("comes to the empty group", group, "member-b", "absent")
    leaving = {"GroupId": group, "Members": [{"MemberId": "member-b"}]}
    r.ask("leaves by the classic API", "LeaveGroup", 5, leaving)


def of_static_members(r: Recorder) -> None:
    group = "static"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    first = r.join("static member joins", group, "member-a", "payments", InstanceId="one")
    r.beat("owns it", group, "member-a", first["MemberEpoch"], InstanceId="one", TopicPartitions=r.owned(first))
    r.beat("leaves for a while", group, "member-a", -2, InstanceId="one")
    r.join("comes back by another id", group, "member-b", "payments", InstanceId="one")
    r.beat("leaves for a while again", group, "member-b", -2, InstanceId="one")
    r.join("comes back with other names", group, "member-c", "orders", InstanceId="one")
    r.join("a second instance", group, "member-d", "orders", InstanceId="two")
    r.beat("the second leaves for a while", group, "member-d", -2, InstanceId="two")
    r.beat("the first leaves for good", group, "member-c", -1, InstanceId="one")
    r.join("the second comes back by its old id", group, "member-d", "orders", InstanceId="two")
    r.beat("the second leaves for good", group, "member-d", -1, InstanceId="two")


def by_pattern(r: Recorder) -> None:
    group = "pattern"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    values = {"RebalanceTimeoutMs": NO_REBALANCE_IN_MS, "TopicPartitions": []}
    epochs = {"member-a": r.beat("joins by pattern", group, "member-a", 0, SubscribedTopicRegex="pay.*", **values)[
        "MemberEpoch"
    ]}
    r.beat_until_resolved("pay.*", group, epochs)
    r.beat("gets it", group, "member-a", epochs["member-a"])
    epochs["member-a"] = 2
    r.beat("owns it", group, "member-a", 2, TopicPartitions=[{"TopicId": r.topics["payments"], "Partitions": [0, 1]}])
    joined = r.beat("another by the same pattern", group, "member-b", 0, SubscribedTopicRegex="pay.*", **values)
    epochs["member-b"] = joined["MemberEpoch"]
    r.beat("another pattern, which nothing matches", group, "member-b", joined["MemberEpoch"],
           SubscribedTopicRegex="nothing.*")  # fmt: skip
    r.beat_until_resolved("nothing.*", group, epochs)
    r.topic("payees", 1)
    r.steps.append({"what": "a topic that the first pattern matches was made", "later": True, "batches": []})
    r.beat_until_resolved("pay.*", group, epochs)
    r.beat("the first gets it", group, "member-a", epochs["member-a"])
    r.beat("second leaves", group, "member-b", -1)
    r.beat("names instead of the pattern", group, "member-a", epochs["member-a"], SubscribedTopicRegex="",
           SubscribedTopicNames=["orders"])  # fmt: skip
    r.beat("leaves", group, "member-a", -1)
    joined = r.beat("joins by pattern and by names", group, "member-c", 0, SubscribedTopicRegex="pay.*",
                    SubscribedTopicNames=["orders"], **values)  # fmt: skip
    r.beat_until_resolved("pay.*", group, {"member-c": joined["MemberEpoch"]})
    r.beat("leaves", group, "member-c", -1)
    r.ask("the group is deleted", "DeleteGroups", 2, {"GroupsNames": [group]})


def of_changing_topics(r: Recorder) -> None:
    group = "changing"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    r.topic("growing", 1)
    first = r.join("joins", group, "member-a", "growing", "later")
    r.beat("owns it", group, "member-a", first["MemberEpoch"], TopicPartitions=r.owned(first))
    wanted = {"Topics": [{"Name": "growing", "Count": 2, "Assignments": None}], "TimeoutMs": 10_000}
    [grown] = r.connection.ask("CreatePartitions", 3, wanted)["Results"]
    assert grown["ErrorCode"] == 0, grown
    got = r.beat_until("the topic grew", lambda one: one["Assignment"] is not None, group, "member-a",
                       first["MemberEpoch"])  # fmt: skip
    r.topic("later", 1)
    got = r.beat_until("a topic was made", lambda one: one["Assignment"] is not None, group, "member-a",
                       got["MemberEpoch"])  # fmt: skip
    r.connection.ask("DeleteTopics", 5, {"TopicNames": ["growing"], "TimeoutMs": 10_000})
    owned = [{"TopicId": r.topics["later"], "Partitions": [0]}]
    got = r.beat_until("a topic was deleted", lambda one: one["MemberEpoch"] != got["MemberEpoch"], group, "member-a",
                       got["MemberEpoch"], TopicPartitions=owned)  # fmt: skip
    r.beat("leaves", group, "member-a", -1)


def by_time(r: Recorder) -> None:
    """A session that ends, and a member that gives nothing back."""
    group = "session"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    r.setting(group, "consumer.heartbeat.interval.ms", "500")
    r.setting(group, "consumer.session.timeout.ms", "1000")
    r.join("joins", group, "member-a", "payments")
    r.wait_later("its session ends")
    r.join("static member joins", group, "member-b", "payments", InstanceId="one")
    r.beat("leaves for a while", group, "member-b", -2, InstanceId="one")
    r.wait_later("its session ends, too")
    group = "rebalance"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    first = r.join("joins", group, "member-a", "payments")
    r.beat("a short time-out", group, "member-a", first["MemberEpoch"], RebalanceTimeoutMs=1000)
    r.join("second joins", group, "member-b", "payments")
    r.beat("first is told to give back", group, "member-a", first["MemberEpoch"])
    r.wait_later("it has not")
    r.beat("second leaves", group, "member-b", -1)


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\3" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + b"\0\0\0\0\xff\xff\xff\xff\xff\xff"


def assignment(topic: str, *partitions: int) -> bytes:
    numbers = b"".join(one.to_bytes(4, "big") for one in partitions)
    named = len(topic).to_bytes(2, "big") + topic.encode() + len(partitions).to_bytes(4, "big") + numbers
    return b"\0\3\0\0\0\1" + named + b"\xff\xff\xff\xff"


COMMITTED = [{
    "Name": "payments",
    "Partitions": [
        {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}
    ],
}]  # fmt: skip
PROTOCOLS = [{"Name": name, "Metadata": subscription("payments")} for name in ("range", "cooperative-sticky")]


def classic_join(r: Recorder, what: str, group: str, member: str, **more: Any) -> dict[str, Any]:
    values = {"GroupId": group, "SessionTimeoutMs": 30_000, "RebalanceTimeoutMs": 60_000, "MemberId": member}
    return r.ask(what, "JoinGroup", 9, {**values, "ProtocolType": "consumer", "Protocols": PROTOCOLS, **more})


def classic_sync(r: Recorder, what: str, group: str, joined: dict[str, Any], assigned: bytes | None) -> None:
    member = joined["MemberId"]
    named = {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": member}
    shares = [{"MemberId": member, "Assignment": assigned}] if assigned else []
    r.ask(what, "SyncGroup", 5, {**named, "ProtocolType": "consumer", "ProtocolName": "range", "Assignments": shares})


def stable_classic(r: Recorder, group: str, **more: Any) -> dict[str, Any]:
    member = ""
    if "GroupInstanceId" not in more:
        member = classic_join(r, "classic member asks for an id", group, "")["MemberId"]
    joined = classic_join(r, "classic member joins", group, member, **more)
    classic_sync(r, "classic member shares out", group, joined, assignment("payments", 0, 1))
    return joined


def by_migration(r: Recorder) -> None:
    """A classic group becomes one of KIP-848, classic again, and empty; both kinds come to it then."""
    group = "migrated"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    joined = stable_classic(r, group)
    member = joined["MemberId"]
    named = {"GroupId": group, "GenerationIdOrMemberEpoch": joined["GenerationId"], "MemberId": member}
    r.ask("commit", "OffsetCommit", 9, {**named, "Topics": COMMITTED})
    r.join("a member of the new kind joins", group, "member-n", "payments")
    beat = {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": member}
    r.ask("the classic member's heartbeat", "Heartbeat", 4, beat)
    again = classic_join(r, "the classic member joins again", group, member)
    classic_sync(r, "and syncs", group, again, None)
    beat["GenerationId"] = again["GenerationId"]
    r.ask("the classic member's heartbeat", "Heartbeat", 4, beat)
    got = r.beat("the new one", group, "member-n", again["GenerationId"])
    r.beat("the new one owns", group, "member-n", got["MemberEpoch"])
    r.beat("the new one leaves", group, "member-n", -1)
    again = classic_join(r, "the classic member joins again", group, member)
    classic_sync(r, "and shares out", group, again, assignment("payments", 0, 1))
    r.ask("the classic member leaves", "LeaveGroup", 5, {"GroupId": group, "Members": [{"MemberId": member}]})
    r.join("a member of the new kind joins the empty classic group", group, "member-o", "payments")
    r.beat("it leaves", group, "member-o", -1)
    classic_join(r, "a classic member comes to the empty new group", group, "")
    r.ask("the group is deleted", "DeleteGroups", 2, {"GroupsNames": [group]})


def of_static_classic_members(r: Recorder) -> None:
    """An instance that comes back as the other kind, twice."""
    group = "of static classic members"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    stable_classic(r, group, GroupInstanceId="one")
    r.join("the instance comes back as the new kind", group, "member-n", "payments", InstanceId="one")
    r.beat("it leaves for a while", group, "member-n", -2, InstanceId="one")
    classic_join(r, "and comes back as a classic one", group, "", GroupInstanceId="one")
    leaving = {"GroupId": group, "Members": [{"MemberId": "", "GroupInstanceId": "one"}]}
    r.ask("leaves", "LeaveGroup", 5, leaving)


def of_classic_members_that_leave(r: Recorder) -> None:
    """A group that stays one of KIP-848 while classic members leave and come."""
    group = "stays"
    r.setting(group, "consumer.assignment.interval.ms", "0")
    joined = stable_classic(r, group)
    r.join("a member of the new kind joins", group, "member-n", "payments")
    leaving = {"GroupId": group, "Members": [{"MemberId": joined["MemberId"]}]}
    r.ask("the classic member leaves", "LeaveGroup", 5, leaving)
    classic_asked = classic_join(r, "a classic member asks for an id", group, "")
    again = classic_join(r, "a classic member joins the new group", group, classic_asked["MemberId"])
    classic_sync(r, "and syncs", group, again, None)
    leaving["Members"] = [{"MemberId": again["MemberId"]}]
    r.ask("the classic member leaves", "LeaveGroup", 5, leaving)
    r.beat("the new one leaves", group, "member-n", -1)


def of_offsets_only(r: Recorder) -> None:
    group = "offsets only"
    partitions = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": COMMITTED}
    r.ask("offsets without a group", "OffsetCommit", 9, partitions)
    r.join("a member joins the group of offsets", group, "member-n", "payments")
    r.beat("leaves", group, "member-n", -1)
    r.ask("offsets of the empty group", "OffsetCommit", 9, partitions)


PARTS = (by_names, by_the_interval, with_facts, of_static_members, by_pattern, of_changing_topics, by_time,
         by_migration, of_static_classic_members, of_classic_members_that_leave, of_offsets_only)  # fmt: skip


def recorded(port: int) -> dict[str, Any]:
    r = Recorder(port)
    give_up_at = time.monotonic() + PATIENCE_S
    while r.connection.ask("OffsetFetch", 5, {"GroupId": "any", "Topics": None})["ErrorCode"] != 0:
        asked = {"KeyType": 0, "CoordinatorKeys": ["any"]}
        r.connection.ask("FindCoordinator", 4, asked)
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    r.topic("orders", 3)
    r.topic("payments", 2)
    parts = {}
    for part in PARTS:
        r.steps = []
        part(r)
        parts[part.__name__] = r.steps
    return {"kafka": KAFKA_VERSION, "topics": plain(r.topics), "parts": parts}


def shown(found: dict[str, Any]) -> str:
    """JSON with a line for each step."""
    parts = []
    for name, steps in found["parts"].items():
        lines = ",\n".join(json.dumps(step) for step in steps)
        parts.append(f'"{name}": [\n{lines}\n]')
    head = json.dumps({"kafka": found["kafka"], "topics": found["topics"]})
    return head.removesuffix("}") + ', "parts": {\n' + ",\n".join(parts) + "\n}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = KafkaPeer(Path(folder), OVERRIDES)
        peer.start()
        try:
            found = recorded(peer.ports[0])
        finally:
            peer.stop()
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(shown(found))


if __name__ == "__main__":
    main()
