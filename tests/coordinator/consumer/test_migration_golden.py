"""Groups that change their kind answer and write what Kafka does: its steps, played to the coordinator."""

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.coordinator.consumer.scenario import ConsumerScenario
from tpc_broker.coordinator.consumer.messages import ConsumerSettings, KnownTopic
from tpc_broker.coordinator.messages import JoinRequest, LeavingMember
from tpc_broker.kafka import decode
from tpc_broker.model import TopicId

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "consumer_groups.json").read_text())
CLOCKS = {"current_state_timestamp", "assignment_timestamp", "commit_timestamp"}
METHODS = {
    "JoinGroup": "classic_join",
    "SyncGroup": "classic_sync",
    "Heartbeat": "classic_heartbeat",
    "LeaveGroup": "classic_leave",
    "ConsumerGroupHeartbeat": "new_heartbeat",
    "OffsetCommit": "offset_commit",
    "DeleteGroups": "deletion",
}
CLIENT = {"client_id": "referee", "client_host": "/127.0.0.1"}
PARTITIONS = {"orders": 3, "payments": 2}


PARTS = ("by_migration", "of_static_classic_members", "of_classic_members_that_leave", "of_offsets_only")


def steps_of(part):
    """The steps of a part, each with what was written by itself behind it."""
    steps = []
    for step in GOLDEN["parts"][part]:
        if step.get("later"):
            steps[-1]["batches"] = steps[-1]["batches"] + step["batches"]
        else:
            steps.append(dict(step))
    return steps


def keeps(spec):
    """An assignor that moves as little as it can: the member with the most gives to the one with the least."""
    yield
    targets = {member_id: {topic: set() for topic in member.topics} for member_id, member in spec.members.items()}
    for topic_id, topic in spec.topics.items():
        taken = {}
        for member_id, member in sorted(spec.members.items()):
            if topic_id in member.topics:
                taken[member_id] = set(member.assigned.get(topic_id, ()))
        left = set(range(topic.partitions_count)) - set().union(*taken.values())
        while taken:
            least = min(sorted(taken), key=lambda each: len(taken[each]))
            most = max(sorted(taken), key=lambda each: len(taken[each]))
            if left:
                taken[least].add(left.pop())
            elif len(taken[most]) > len(taken[least]) + 1:
                moved = max(taken[most])
                taken[most].remove(moved)
                taken[least].add(moved)
            else:
                break
        for member_id, partitions in taken.items():
            targets[member_id][topic_id] = partitions
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in target.items() if partitions}
        for member_id, target in targets.items()
    }


class Player(ConsumerScenario):
    """As Kafka was when it was asked: it assigned at once, and did not wait for more members."""

    def __init__(self):
        self.written = []
        super().__init__(topics={}, assignors={"uniform": keeps, "range": keeps}, initial_rebalance_delay_ms=0)
        self.settings = ConsumerSettings(assignment_interval_ms=0)
        for name, count in PARTITIONS.items():
            topic_id = TopicId(uuid.UUID(hex=GOLDEN["topics"][name]))
            self.topics.by_name[name] = KnownTopic(topic_id, name, count)
        self.now = 1_000_000

    def run(self, effects):
        self.written += effects.writes
        super().run(effects)

    def play(self, step):
        """The answer as the golden one has it, as far as it is compared, and the batches."""
        self.written = []
        self.now += 1
        answer = getattr(self, METHODS[step["api"]])(step["request"], step["answer"])
        return answer, [[meaning(*record) for record in write.records] for write in self.written]

    def classic_join(self, asked, golden):
        instance = asked.get("GroupInstanceId")
        unique = golden["MemberId"].removeprefix(f"{instance or 'referee'}-")
        protocols = tuple((each["Name"], bytes.fromhex(each["Metadata"])) for each in asked["Protocols"])
        request = JoinRequest(
            group_id=asked["GroupId"],
            member_id=asked["MemberId"],
            group_instance_id=instance,
            protocol_type=asked["ProtocolType"],
            protocols=protocols,
            session_timeout_ms=asked["SessionTimeoutMs"],
            rebalance_timeout_ms=asked["RebalanceTimeoutMs"],
            **CLIENT,
        )
        token = self.token("join")
        self.run(self.machine.join_group(request, token, self.now, unique))
        self.wait(0)
        told = self.replies[token]
        return {
            "ErrorCode": told.error_code,
            "GenerationId": told.generation_id,
            "ProtocolName": told.protocol_name,
            "Leader": told.leader,
            "MemberId": told.member_id,
            "Members": [
                {"MemberId": each.member_id, "GroupInstanceId": each.group_instance_id, "Metadata": each.metadata.hex()}
                for each in told.members
            ],
        }

    def classic_sync(self, asked, _golden):
        assignments = [(each["MemberId"], bytes.fromhex(each["Assignment"])) for each in asked["Assignments"]]
        named = {"protocol_type": asked["ProtocolType"], "protocol_name": asked["ProtocolName"]}
        token = self.sync("one", asked["MemberId"], asked["GenerationId"], assignments, asked["GroupId"], **named)
        told = self.replies[token]
        return {
            "ErrorCode": told.error_code,
            "ProtocolType": told.protocol_type,
            "ProtocolName": told.protocol_name,
            "Assignment": told.assignment.hex(),
        }

    def classic_heartbeat(self, asked, _golden):
        return {"ErrorCode": self.heartbeat(asked["MemberId"], asked["GenerationId"], asked["GroupId"])}

    def classic_leave(self, asked, _golden):
        members = [LeavingMember(each["MemberId"], each.get("GroupInstanceId")) for each in asked["Members"]]
        token = self.token("leave")
        self.run(self.machine.leave_group(asked["GroupId"], members, token, self.now))
        self.wait(0)
        told = self.replies[token]
        members = [
            {"MemberId": each.member_id, "GroupInstanceId": each.group_instance_id, "ErrorCode": each.error_code}
            for each in told.members
        ]
        return {"ErrorCode": told.error_code, "Members": members}

    def new_heartbeat(self, asked, _golden):
        owned = asked.get("TopicPartitions")
        told = self.told(
            asked["MemberId"],
            asked["MemberEpoch"],
            asked["GroupId"],
            instance_id=asked.get("InstanceId"),
            rebalance_timeout_ms=asked.get("RebalanceTimeoutMs", -1),
            topic_names=tuple(asked["SubscribedTopicNames"]) if "SubscribedTopicNames" in asked else None,
            owned=None
            if owned is None
            else {TopicId(uuid.UUID(hex=each["TopicId"])): frozenset(each["Partitions"]) for each in owned},
            **CLIENT,
        )
        assignment = told.assignment
        return {
            "ErrorCode": told.error_code,
            "MemberId": told.member_id,
            "MemberEpoch": told.member_epoch,
            "Assignment": None
            if assignment is None
            else {
                "TopicPartitions": [
                    {"TopicId": topic_id.hex, "Partitions": sorted(partitions)}
                    for topic_id, partitions in assignment.items()
                ]
            },
        }

    def offset_commit(self, asked, _golden):
        (topic,) = asked["Topics"]
        (partition,) = topic["Partitions"]
        code = self.commit_code(
            offset=partition["CommittedOffset"],
            topic=topic["Name"],
            group=asked["GroupId"],
            member_id=asked["MemberId"],
            generation_id=asked["GenerationIdOrMemberEpoch"],
            topic_id=self.topics.named(topic["Name"]).topic_id,
        )
        return {"Topics": [{"Name": topic["Name"], "Partitions": [{"PartitionIndex": 0, "ErrorCode": code}]}]}

    def deletion(self, asked, _golden):
        results = self.delete(*asked["GroupsNames"])
        return {"Results": [{"GroupId": group, "ErrorCode": code} for group, code in results.items()]}


KINDS = {
    bytes.fromhex(record["key"])[:2]: record["is"]
    for steps in GOLDEN["parts"].values()
    for step in steps
    for batch in step["batches"]
    for record in batch
}


def meaning(key, value):
    """A record without the times in it."""
    kind = KINDS[key[:2]]
    if value is not None:
        value = decode(f"{kind}Value", int.from_bytes(value[:2], "big"), value[2:]).to_dict()
        value = {name: each for name, each in value.items() if name not in CLOCKS}
    return kind, repr(decode(f"{kind}Key", 0, key[2:]).to_dict()), repr(value)


def is_of_new_group(batch):
    """What Kafka writes of a classic group before it has a member."""
    value = batch[0]["means"]["value"]
    return len(batch) == 1 and batch[0]["is"] == "GroupMetadata" and value is not None and value["generation"] == 0


@pytest.mark.parametrize("part", PARTS)
def test_groups_that_change_their_kind_do_what_kafka_does(part):
    player = Player()
    for step in steps_of(part):
        answer, batches = player.play(step)
        assert answer == {name: step["answer"][name] for name in answer}, step["what"]
        golden = [
            [meaning(bytes.fromhex(each["key"]), each["value"] and bytes.fromhex(each["value"])) for each in batch]
            for batch in step["batches"]
            if not is_of_new_group(batch)
        ]
        # Of several members Kafka writes in the order of its hash maps.
        kinds = [[kind for kind, _key, _value in batch] for batch in batches]
        assert kinds == [[kind for kind, _key, _value in batch] for batch in golden], step["what"]
        assert [Counter(batch) for batch in batches] == [Counter(batch) for batch in golden], step["what"]
