"""Each API asked by somebody with no right, with each right alone, with all of them, and with one denied.

What is compared of an answer is its error codes, names, and what may be done: what else it tells is compared elsewhere.
Requests change nothing that a later one would see.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.integration.differential.access_dialogue import (
    ALICES_HOST,
    ALL,
    ALTER,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    GROUP,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    AccessDialogue,
    access_scenario,
    log_in,
    rule,
)
from tests.integration.differential.dialogue import _ANSWER_SECONDS, CLOSED
from tests.integration.differential.scenarios_data import a_batch
from tests.support.raw_client import Closed, RawConnection

CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
TOLD = {
    "ErrorCode", "PartitionErrorCode", "TopicConfigErrorCode", "Name", "TopicName", "Topic", "GroupId", "ResourceName",
    "TransactionalId", "TopicAuthorizedOperations", "ClusterAuthorizedOperations", "AuthorizedOperations",
}  # fmt: skip
NOT_TOLD = {"Brokers", "Nodes", "NodeEndpoints", "Configs", "Synonyms"}
OF_TOPICS = (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
OF_GROUPS = (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
OF_CLUSTERS = (
    CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE,
)  # fmt: skip

Asked = tuple[str, str, int, dict[str, Any]]
"""Where to: "any", "topic", "group" or "transaction"; API, version, body."""


def _partitions(name: str, key: str = "Name", **part: Any) -> list[dict[str, Any]]:
    return [{key: name, "Partitions": [part or {"PartitionIndex": 0}]}]


def _resource(kind: int, name: str, *change: dict[str, Any]) -> dict[str, Any]:
    return {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": list(change)}]}


def _of_data(t: str) -> Iterator[Asked]:
    offsets = _partitions(t, PartitionIndex=0, Timestamp=-2, CurrentLeaderEpoch=-1)
    yield "topic", "ListOffsets", 7, {"ReplicaId": -1, "Topics": offsets}
    data = [{"Name": t, "PartitionData": [{"Index": 0, "Records": a_batch()}]}]
    yield "topic", "Produce", 9, {"Acks": -1, "TimeoutMs": 5000, "TopicData": data}
    yield "topic", "Produce", 9, {"TransactionalId": "x", "Acks": -1, "TimeoutMs": 5000, "TopicData": data}
    part = {"Partition": 0, "FetchOffset": 0, "CurrentLeaderEpoch": -1, "PartitionMaxBytes": 1000}
    fetch = {"MaxWaitMs": 0, "MaxBytes": 1000, "Topics": _partitions(t, "Topic", **part)}
    yield "topic", "Fetch", 11, {**fetch, "ReplicaId": -1, "SessionEpoch": -1}
    part = {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}
    yield "topic", "OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": _partitions(t, "Topic", **part)}
    yield "topic", "DeleteRecords", 2, {"Topics": _partitions(t, PartitionIndex=0, Offset=0), "TimeoutMs": 5000}
    yield "topic", "DescribeProducers", 0, {"Topics": [{"Name": t, "PartitionIndexes": [0]}]}


def _of_internal_topics() -> Iterator[Asked]:
    """Which nobody writes (attempt 87)."""
    name = "__consumer_offsets"
    data = [{"Name": name, "PartitionData": [{"Index": 0, "Records": a_batch()}]}]
    yield "offsets", "Produce", 9, {"Acks": -1, "TimeoutMs": 5000, "TopicData": data}
    yield "offsets", "DeleteRecords", 2, {"Topics": _partitions(name, PartitionIndex=0, Offset=0), "TimeoutMs": 5000}
    part = {"Partition": 0, "FetchOffset": 0, "CurrentLeaderEpoch": -1, "PartitionMaxBytes": 1}
    fetch = {"MaxWaitMs": 0, "MaxBytes": 1, "Topics": _partitions(name, "Topic", **part)}
    yield "offsets", "Fetch", 11, {**fetch, "ReplicaId": -1, "SessionEpoch": -1}


def _of_topics(t: str) -> Iterator[Asked]:
    bits = {"IncludeClusterAuthorizedOperations": True, "IncludeTopicAuthorizedOperations": True}
    yield "any", "Metadata", 10, {"Topics": [{"Name": t}], "AllowAutoTopicCreation": False, **bits}
    pages = {"Topics": [{"Name": t}], "ResponsePartitionLimit": 10}
    yield "any", "DescribeTopicPartitions", 0, pages
    wanted = {"Name": t, "NumPartitions": 1, "ReplicationFactor": 1}
    yield "any", "CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 5000, "validateOnly": True}
    more = {"Name": t, "Count": 5, "Assignments": None}
    yield "any", "CreatePartitions", 3, {"Topics": [more], "TimeoutMs": 5000, "ValidateOnly": True}
    yield "any", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 2, "ResourceName": t}]}
    change = {"Name": "retention.ms", "Value": "5000"}
    yield "any", "AlterConfigs", 2, {**_resource(2, t, change), "ValidateOnly": True}
    change = {**change, "ConfigOperation": 0}
    yield "any", "IncrementalAlterConfigs", 1, {**_resource(2, t, change), "ValidateOnly": True}


def _of_groups(t: str, g: str) -> Iterator[Asked]:
    offset = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}
    commit = {"GroupId": g, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": _partitions(t, **offset)}
    yield "group", "OffsetCommit", 8, commit
    topics = [{"Name": t, "PartitionIndexes": [0]}]
    yield "group", "OffsetFetch", 7, {"GroupId": g, "Topics": topics}
    yield "group", "OffsetFetch", 1, {"GroupId": g, "Topics": topics}
    yield "group", "OffsetFetch", 7, {"GroupId": g, "Topics": None}
    yield "group", "OffsetFetch", 9, {"Groups": [{"GroupId": g, "MemberEpoch": -1, "Topics": topics}]}
    yield "group", "OffsetFetch", 9, {"Groups": [{"GroupId": g, "MemberEpoch": -1, "Topics": None}]}
    yield "any", "FindCoordinator", 3, {"KeyType": 0, "Key": g}
    yield "any", "FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [g]}
    member = {"GroupId": g, "GenerationId": 1, "MemberId": "nobody"}
    yield "group", "Heartbeat", 4, member
    yield "group", "SyncGroup", 5, {**member, "ProtocolType": "consumer", "ProtocolName": "range"}
    yield "group", "LeaveGroup", 4, {"GroupId": g, "Members": [{"MemberId": "nobody"}]}
    protocols = [{"Name": "range", "Metadata": b"m"}]
    join = {"GroupId": g, "SessionTimeoutMs": 6000, "RebalanceTimeoutMs": 6000, "MemberId": "nobody"}
    yield "group", "JoinGroup", 7, {**join, "ProtocolType": "consumer", "Protocols": protocols}
    yield "group", "DescribeGroups", 5, {"Groups": [g], "IncludeAuthorizedOperations": True}
    yield "group", "ConsumerGroupDescribe", 0, {"GroupIds": [g], "IncludeAuthorizedOperations": True}
    beat = {
        "GroupId": g,
        "MemberId": "nobody",
        "MemberEpoch": 5,
        "RebalanceTimeoutMs": -1,
        "SubscribedTopicNames": None,
    }
    yield "group", "ConsumerGroupHeartbeat", 0, beat
    yield "group", "ConsumerGroupHeartbeat", 0, {**beat, "SubscribedTopicNames": [t]}
    yield "group", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 32, "ResourceName": g}]}
    change = {"Name": "consumer.session.timeout.ms", "Value": "50000", "ConfigOperation": 0}
    yield "any", "IncrementalAlterConfigs", 1, {**_resource(32, g, change), "ValidateOnly": True}


def _of_deleted_offsets(t: str, g: str) -> Iterator[Asked]:
    yield "group", "OffsetDelete", 0, {"GroupId": g, "Topics": _partitions(t)}
    yield "group", "OffsetDelete", 0, {"GroupId": g, "Topics": _partitions(f"{t}-none")}


def _of_transactions(t: str, g: str, x: str) -> Iterator[Asked]:
    producer = {"ProducerId": 999_999, "ProducerEpoch": 0}
    of_x = {"TransactionalId": x, **producer}
    yield "any", "FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [x]}
    yield (
        "any",
        "InitProducerId",
        4,
        {"TransactionalId": None, "TransactionTimeoutMs": 1000, "ProducerId": -1, "ProducerEpoch": -1},
    )
    odd = {"TransactionalId": x, "TransactionTimeoutMs": 0, "ProducerId": -1, "ProducerEpoch": -1}
    yield "transaction", "InitProducerId", 4, odd
    topics = [{"Name": t, "Partitions": [0]}]
    old = {"V3AndBelowTransactionalId": x, "V3AndBelowProducerId": 999_999, "V3AndBelowProducerEpoch": 0}
    yield "transaction", "AddPartitionsToTxn", 3, {**old, "V3AndBelowTopics": topics}
    yield (
        "transaction",
        "AddPartitionsToTxn",
        3,
        {**old, "V3AndBelowTopics": [*topics, {"Name": "none", "Partitions": [0]}]},
    )
    yield "transaction", "AddPartitionsToTxn", 5, {"Transactions": [{**of_x, "VerifyOnly": True, "Topics": topics}]}
    yield "transaction", "AddOffsetsToTxn", 3, {**of_x, "GroupId": g}
    yield "transaction", "EndTxn", 3, {**of_x, "Committed": True}
    offset = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}
    commit = {
        **of_x,
        "GroupId": g,
        "MemberId": "",
        "Topics": _partitions("none", **offset),
    }
    yield "group", "TxnOffsetCommit", 3, commit
    yield "transaction", "DescribeTransactions", 0, {"TransactionalIds": [x]}
    batch = a_batch(producer=(999_999, 0, 0), attributes=16)
    data = [{"Name": t, "PartitionData": [{"Index": 0, "Records": batch}]}]
    yield "topic", "Produce", 11, {"TransactionalId": x, "Acks": -1, "TimeoutMs": 5000, "TopicData": data}


def _of_cluster(t: str) -> Iterator[Asked]:
    yield "any", "DescribeCluster", 1, {"IncludeClusterAuthorizedOperations": True, "EndpointType": 1}
    yield "any", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 4, "ResourceName": ""}]}
    yield "any", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 16, "ResourceName": "none"}]}
    change = {"Name": "log.retention.ms", "Value": "5000", "ConfigOperation": 0}
    yield "any", "IncrementalAlterConfigs", 1, {**_resource(4, "", change), "ValidateOnly": True}
    yield "any", "DescribeLogDirs", 4, {"Topics": [{"Topic": "none", "Partitions": [0]}]}
    yield "any", "AlterReplicaLogDirs", 2, {"Dirs": [{"Path": "/none", "Topics": [{"Name": t, "Partitions": [0]}]}]}
    elect = {"ElectionType": 0, "TopicPartitions": [{"Topic": t, "Partitions": [0]}], "TimeoutMs": 5000}
    yield "any", "ElectLeaders", 2, elect
    yield "any", "ElectLeaders", 0, elect
    moved = {"Topics": [{"Name": "none", "Partitions": [{"PartitionIndex": 0, "Replicas": [0]}]}]}
    yield "any", "AlterPartitionReassignments", 0, {**moved, "TimeoutMs": 5000}
    yield "any", "ListPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": None}
    yield "any", "DescribeClientQuotas", 1, {"Components": [], "Strict": False}
    op = {"Key": "producer_byte_rate", "Value": 1e6, "Remove": False}
    entry = {"Entity": [{"EntityType": "user", "EntityName": "nobody"}], "Ops": [op]}
    yield "any", "AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": True}
    yield "any", "DescribeUserScramCredentials", 0, {"Users": [{"Name": "nobody"}]}
    yield "any", "AlterUserScramCredentials", 0, {"Deletions": [{"Name": "nobody", "Mechanism": 1}], "Upsertions": []}
    log = {"TopicName": "none", "Partitions": [{"PartitionIndex": 0}]}
    yield "any", "DescribeQuorum", 0, {"Topics": [log]}
    level = {"Feature": "no.such", "MaxVersionLevel": 1, "UpgradeType": 1}
    yield "any", "UpdateFeatures", 1, {"timeoutMs": 5000, "FeatureUpdates": [level], "ValidateOnly": True}
    yield "any", "UnregisterBroker", 0, {"BrokerId": 777}
    yield "any", "ListConfigResources", 1, {"ResourceTypes": [16]}
    markers = [{"ProducerId": 999_999, "ProducerEpoch": 0, "TransactionResult": False, "CoordinatorEpoch": 0}]
    yield (
        "topic",
        "WriteTxnMarkers",
        1,
        {"Markers": [{**markers[0], "Topics": [{"Name": "none", "PartitionIndexes": [0]}]}]},
    )


def _told(value: Any) -> Any:
    """Of an answer what depends on rights, in any order."""
    if isinstance(value, dict):
        return {
            key: _told(one) for key, one in value.items()
            if key in TOLD or (isinstance(one, list | dict) and key not in NOT_TOLD)
        }  # fmt: skip
    if isinstance(value, list):
        return sorted((found for one in value if isinstance(one, dict) and (found := _told(one))), key=repr)
    return value


class Asker:
    """The other one, asking one thing after the other of whoever serves it."""

    def __init__(self, d: AccessDialogue, topic: str, group: str, transaction: str) -> None:
        self.d = d
        self._lines: dict[int, RawConnection] = {}
        [found] = d.guide("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [transaction]})["Coordinators"]
        self._ports = {
            "any": d.peer.ports[0], "topic": d.leader(topic)._port, "group": d.coordinator(group)._port,
            "offsets": d.leader("__consumer_offsets")._port,
            "transaction": found["Port"],
        }  # fmt: skip

    def ask(self, label: str, asked: Asked) -> None:
        place, api, version, body = asked
        port = self._ports[place]
        line = self._lines.pop(port, None) or log_in(self.d.peer, self.d.peer.ports.index(port), ALICES_HOST)
        try:
            answer = line.ask(api, version, body)
            self._lines[port] = line
        except Closed:
            line.close()
            answer = CLOSED
        if body.get("AllowAutoTopicCreation"):  # Kafka makes it a moment later
            [one] = answer["Topics"]
            if one["ErrorCode"] in {0, 3, 5}:
                self.d.wait_for_topic_made(one["Name"])
                answer = "made"
        told = _told(answer)
        self.d.note(f"{api} by rights", version, label, {"Told": repr(told)})

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def _ready(d: AccessDialogue) -> tuple[str, str, str]:
    """A topic, a group with an offset, and a transactional id, with coordinators that answer."""
    t, g, x = d.topic("t"), f"{d.prefix}-g", f"{d.prefix}-x"
    offset = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}
    commit = {"GroupId": g, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": _partitions(t, **offset)}
    d.coordinator(g)
    d.until(lambda: not d.guide_coordinator(g, "OffsetCommit", 8, commit)["Topics"][0]["Partitions"][0]["ErrorCode"])

    def has_begun() -> bool:
        [found] = d.guide("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [x]})["Coordinators"]
        if found["ErrorCode"]:
            return False
        asked = {"TransactionalId": x, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
        with RawConnection("127.0.0.1", found["Port"], timeout_seconds=_ANSWER_SECONDS) as connection:
            return not connection.ask("InitProducerId", 4, asked)["ErrorCode"]

    d.until(has_begun)
    return t, g, x


def _each_right(
    d: AccessDialogue, rules: list[tuple[str, list[dict[str, Any]]]], asked: list[Asked], group: str = "g"
) -> None:
    asker = Asker(d, f"{d.prefix}-t", f"{d.prefix}-{group}", f"{d.prefix}-x")
    for label, made in rules:
        if made:
            d.make(*made)
        for one in asked:
            asker.ask(label, one)
        if made:
            d.drop(*made)
    asker.close()


def _alone(kind: int, name: str, operations: tuple[int, ...]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Nothing, each right alone, all of them, and all of them but one."""
    named = {"kind": kind, "name": name}
    found: list[tuple[str, list[dict[str, Any]]]] = [("nothing", [])]
    found += [(f"{operation} on {kind}", [rule(operation=operation, **named)]) for operation in operations]
    found.append((f"all on {kind}", [rule(operation=ALL, **named)]))
    found += [
        (f"all but {operation} on {kind}", [
            rule(operation=ALL, **named), rule(operation=operation, PermissionType=DENY, **named)
        ])
        for operation in operations
    ]  # fmt: skip
    return found


@access_scenario
def rights_to_topics(d: AccessDialogue) -> None:
    t, _g, _x = _ready(d)
    absent = f"{t}-none"
    rules = _alone(TOPIC, t, OF_TOPICS)
    rules += [
        ("any topic", [rule("*", TOPIC, ALL)]),
        ("by prefix", [rule(d.prefix, TOPIC, ALL, ResourcePatternType=PREFIXED)]),
    ]
    rules += [("by prefix but", [
        rule(d.prefix, TOPIC, ALL, ResourcePatternType=PREFIXED), rule(t, TOPIC, ALL, PermissionType=DENY)
    ])]  # fmt: skip
    rules += [(f"{operation} on cluster", [rule(operation=operation)]) for operation in (CREATE, CLUSTER_ACTION, ALL)]
    requests = [*_of_data(t), *_of_topics(t), *_of_topics(absent), *_of_internal_topics()]
    requests.append(("any", "DeleteTopics", 5, {"TopicNames": [absent], "TimeoutMs": 5000}))
    _each_right(d, rules, requests)


@access_scenario
def rights_to_groups(d: AccessDialogue) -> None:
    t, g, _x = _ready(d)
    of_topic = [rule(t, TOPIC, READ)]
    rules = _alone(GROUP, g, OF_GROUPS)
    rules += [(f"{label}, with the topic", [*made, *of_topic]) for label, made in rules]
    _each_right(d, rules, list(_of_groups(t, g)))
    several = [rule(g, GROUP, DELETE, ResourcePatternType=PREFIXED)]
    allowed: list[tuple[str, list[dict[str, Any]]]]
    allowed = [("nothing", []), ("delete", several), ("delete and topic", several + of_topic)]
    _each_right(d, allowed, list(_of_deleted_offsets(t, g)))
    d.coordinator(f"{g}-none")
    _each_right(d, allowed, [("group", "DeleteGroups", 2, {"GroupsNames": [f"{g}-none"]})], "g-none")
    _each_right(d, allowed, [("group", "DeleteGroups", 2, {"GroupsNames": [g]})])


@access_scenario
def rights_to_transactional_ids(d: AccessDialogue) -> None:
    t, g, x = _ready(d)
    rules = _alone(TRANSACTIONAL_ID, x, (WRITE, DESCRIBE))
    of_others = [rule(t, TOPIC, WRITE)], [rule(g, GROUP, READ)], [rule(t, TOPIC, WRITE), rule(g, GROUP, READ)]
    rules += [(f"write and {len(more)}", [rule(x, TRANSACTIONAL_ID, WRITE), *more]) for more in of_others]
    rules += [(f"{number} without it", more) for number, more in enumerate(of_others)]
    rules += [
        (f"{operation} on cluster", [rule(operation=operation)]) for operation in (IDEMPOTENT_WRITE, CLUSTER_ACTION)
    ]
    _each_right(d, rules, list(_of_transactions(t, g, x)))


@access_scenario
def rights_to_the_cluster(d: AccessDialogue) -> None:
    t, _g, _x = _ready(d)
    _each_right(d, _alone(CLUSTER, CLUSTER_NAME, OF_CLUSTERS), list(_of_cluster(t)))


@access_scenario
def rights_to_write_something(d: AccessDialogue) -> None:
    """InitProducerId without an id: WRITE on any topic, unless all that is allowed is denied (attempt 85)."""
    _ready(d)
    p, more = d.prefix, {"ResourcePatternType": PREFIXED}
    deny = {"PermissionType": DENY}
    rules = [
        ("literal", [rule(f"{p}-a", TOPIC, WRITE)]),
        ("prefix", [rule(p, TOPIC, WRITE, **more)]),
        ("prefix, denied whole", [rule(p, TOPIC, WRITE, **more), rule(p, TOPIC, WRITE, **more, **deny)]),
        ("prefix, denied above", [rule(f"{p}-a", TOPIC, WRITE, **more), rule(p, TOPIC, WRITE, **more, **deny)]),
        ("prefix, denied below", [rule(p, TOPIC, WRITE, **more), rule(f"{p}-a", TOPIC, WRITE, **more, **deny)]),
        ("literal, denied by prefix", [rule(f"{p}-a", TOPIC, WRITE), rule(p, TOPIC, WRITE, **more, **deny)]),
        ("literal, denied for all", [rule(f"{p}-a", TOPIC, WRITE), rule("*", TOPIC, WRITE, **deny)]),
        ("all, one denied", [rule("*", TOPIC, WRITE), rule(f"{p}-a", TOPIC, WRITE, **deny)]),
        ("read only", [rule("*", TOPIC, READ)]),
        ("denied, but idempotent", [rule("*", TOPIC, WRITE, **deny), rule(operation=IDEMPOTENT_WRITE)]),
    ]
    asked = {"TransactionalId": None, "TransactionTimeoutMs": 1000, "ProducerId": -1, "ProducerEpoch": -1}
    _each_right(d, rules, [("any", "InitProducerId", 4, asked)])


@access_scenario
def what_is_listed_by_rights(d: AccessDialogue) -> None:
    """Of everything that there is, what belongs to this scenario."""
    t, g, x = _ready(d)
    of_all = [
        ("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False}, "Topics", "Name"),
        ("DescribeTopicPartitions", 0, {"Topics": [], "ResponsePartitionLimit": 100}, "Topics", "Name"),
        ("ListGroups", 4, {}, "Groups", "GroupId"),
        ("ListTransactions", 0, {}, "TransactionStates", "TransactionalId"),
    ]
    rules: list[tuple[str, list[dict[str, Any]]]] = [
        ("nothing", []), ("topic", [rule(t, TOPIC, DESCRIBE)]), ("create topic", [rule(t, TOPIC, CREATE)]),
        ("group", [rule(g, GROUP, DESCRIBE)]), ("read group", [rule(g, GROUP, READ)]),
        ("id", [rule(x, TRANSACTIONAL_ID, DESCRIBE)]), ("write id", [rule(x, TRANSACTIONAL_ID, WRITE)]),
        ("cluster", [rule(operation=DESCRIBE)]), ("alter cluster", [rule(operation=ALTER)]),
    ]  # fmt: skip
    for label, made in rules:
        if made:
            d.make(*made)
        for api, version, body, listed, named in of_all:
            found: set[str] = set()
            code = 0
            for port in d.peer.ports:
                with RawConnection("127.0.0.1", port, timeout_seconds=_ANSWER_SECONDS, source=ALICES_HOST) as line:
                    answer = line.ask(api, version, body)
                code = code or answer.get("ErrorCode", 0)
                found |= {one[named] for one in answer[listed] if str(one[named]).startswith(d.prefix)}
            d.note(f"{api} by rights", version, label, {"Told": repr((code, sorted(found)))})
        if made:
            d.drop(*made)


@access_scenario
def rights_by_topic_id(d: AccessDialogue) -> None:
    """Ids that are guessed (attempt 79) are told apart from those that one has no right to, as in Kafka."""
    t, g, _x = _ready(d)
    strange = uuid.UUID(int=12345)
    requests: list[Asked] = []
    for topic_id in (d.topic_id(t), strange):
        data = [{"TopicId": topic_id, "PartitionData": [{"Index": 0, "Records": a_batch()}]}]
        requests.append(("topic", "Produce", 13, {"Acks": -1, "TimeoutMs": 5000, "TopicData": data}))
        part = {"Partition": 0, "FetchOffset": 0, "CurrentLeaderEpoch": -1, "PartitionMaxBytes": 1000}
        fetch = {"MaxWaitMs": 0, "MaxBytes": 1000, "Topics": [{"TopicId": topic_id, "Partitions": [part]}]}
        requests.append(("topic", "Fetch", 13, {**fetch, "ReplicaId": -1, "SessionEpoch": -1}))
        bits = {"IncludeTopicAuthorizedOperations": True, "AllowAutoTopicCreation": False}
        requests.append(("any", "Metadata", 12, {"Topics": [{"TopicId": topic_id, "Name": None}], **bits}))
        offset = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}
        topics = [{"TopicId": topic_id, "Partitions": [offset]}]
        commit = {"GroupId": g, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": topics}
        requests.append(("group", "OffsetCommit", 10, commit))
        topics = [{"TopicId": topic_id, "PartitionIndexes": [0]}]
        fetch = {"Groups": [{"GroupId": g, "MemberEpoch": -1, "Topics": topics}]}
        requests.append(("group", "OffsetFetch", 10, fetch))
    of_group = rule(g, GROUP, READ)
    rules = [(f"group, {operation}", [of_group, rule(t, TOPIC, operation)]) for operation in OF_TOPICS]
    _each_right(d, [("nothing", []), ("group", [of_group]), *rules], requests)


@access_scenario
def topics_are_made_and_deleted_by_rights(d: AccessDialogue) -> None:
    """Also on first use (attempt 80)."""
    _ready(d)
    on_new = partial(rule, d.prefix, TOPIC, ResourcePatternType=PREFIXED)
    rules: list[tuple[str, list[dict[str, Any]]]] = [
        ("nothing", []), ("describe", [on_new(DESCRIBE)]), ("create", [on_new(CREATE)]),
        ("create any", [rule(operation=CREATE)]), ("both", [on_new(DESCRIBE), on_new(CREATE)]),
        ("describe and create any", [on_new(DESCRIBE), rule(operation=CREATE)]), ("delete", [on_new(DELETE)]),
        ("delete, hidden", [on_new(DELETE), on_new(DESCRIBE, PermissionType=DENY)]),
        ("delete any", [rule(operation=DELETE)]), ("configs", [on_new(CREATE), on_new(DESCRIBE_CONFIGS)]),
    ]  # fmt: skip
    for number, (label, made) in enumerate(rules):
        names = [d.topic(f"{number}-{what}") for what in ("named", "by-id")]
        ids = [d.topic_id(name) for name in names]
        first, new = f"{d.prefix}-{number}-first", f"{d.prefix}-{number}-new"
        deleted = [{"Name": names[0]}, {"Name": None, "TopicId": ids[1]}, {"Name": f"{d.prefix}-none"}]
        wanted = {"Name": new, "NumPartitions": 2, "ReplicationFactor": 1}
        requests: list[Asked] = [
            ("any", "Metadata", 9, {"Topics": [{"Name": first}], "AllowAutoTopicCreation": True}),
            ("any", "CreateTopics", 7, {"Topics": [wanted, {**wanted, "Name": "elsewhere"}], "timeoutMs": 5000,
                                        "validateOnly": label == "create any"}),
            ("any", "DeleteTopics", 6, {"Topics": deleted, "TimeoutMs": 5000}),
        ]  # fmt: skip
        _each_right(d, [(label, made)], requests)
        d.settle()
        asked = {"Topics": [{"Name": name} for name in (*names, new, first)], "AllowAutoTopicCreation": False}
        d.until(lambda: all(one["ErrorCode"] in {0, 3} for one in d.guide("Metadata", 9, asked)["Topics"]))  # noqa: B023
        there = [one["Name"] for one in d.guide("Metadata", 9, asked)["Topics"] if not one["ErrorCode"]]
        d.note("Metadata by rights", 9, label, {"Told": repr(sorted(there))})
