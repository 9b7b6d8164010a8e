"""What rules decide: operation by pattern by denial, asked by a handful of requests about topics, groups, producers
and the cluster (attempts 71 to 75, 80, 83 and 85).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.integration.differential.access_dialogue import (
    ALL,
    CLUSTER,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    OPERATIONS,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    AccessDialogue,
    Rule,
    access_scenario,
    rule,
)
from tests.integration.differential.scenarios_data import a_batch, fetch, produce
from tests.integration.differential.scenarios_groups import commit
from tests.support.raw_client import RawConnection

IDEMPOTENT_WRITE = 12
ALTER_CONFIGS = 11

Ask = Callable[[AccessDialogue], None]


def each(d: AccessDialogue, sets: Iterator[list[Rule]] | list[list[Rule]], ask: Ask) -> None:
    """What alice is answered under each set of rules."""
    for rules in sets:
        if rules:
            d.make(*rules)
        d.note("rules", 0, rules, {})
        ask(d)
        if rules:
            d.drop(*rules)


def sets_on(name: str, kind: int, operations: list[int]) -> Iterator[list[Rule]]:
    """`operations`: those that anything asks for, with which patterns and denials are combined."""
    yield []
    for operation in OPERATIONS:
        yield [rule(name, kind, operation)]
    prefix, whole = {"ResourcePatternType": PREFIXED}, {"ResourcePatternType": LITERAL}
    for operation in operations:
        for found, how in ((name[:-1], prefix), (name, prefix), (name + "x", prefix), ("*", whole), ("*", prefix)):
            yield [rule(found, kind, operation, **how)]
        for found, how in ((name, whole), (name[:-1], prefix), ("*", whole), (name + "x", whole), (name, prefix)):
            denied = rule(found, kind, operation, PermissionType=DENY, **how)
            yield [rule("*", kind, ALL), denied]
            yield [rule(name[:-1], kind, operation, **prefix), {**denied, "Principal": "User:*"}]
    yield [rule(name, kind, ALL), rule(name, kind, DESCRIBE, PermissionType=DENY)]
    yield [rule(name, kind, ALL, PermissionType=DENY), rule("*", kind, ALL)]
    yield [rule(name, kind, ALL, Principal="User:bob")]
    yield [rule(name.upper(), kind, ALL)]


@access_scenario
def rules_on_topics(d: AccessDialogue) -> None:
    topic = d.topic("one")
    produce(d, topic, a_batch())

    def ask(d: AccessDialogue) -> None:
        line = d.leader(topic, name="alice")
        named = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
        line.ask("Metadata", 12, {**named, "IncludeTopicAuthorizedOperations": True})
        line.ask("Metadata", 12, {"Topics": [{"TopicId": d.topic_id(topic), "Name": None}]})
        line.ask("Metadata", 12, {"Topics": None})
        produce(d, topic, a_batch(), line=line)
        fetch(d, topic, line=line)
        fetch(d, topic, version=13, line=line)
        partition = {"PartitionIndex": 0, "Timestamp": -2}
        line.ask("ListOffsets", 6, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [partition]}]})
        resource = {"ResourceType": 2, "ResourceName": topic, "ConfigurationKeys": ["retention.ms"]}
        line.ask("DescribeConfigs", 4, {"Resources": [resource]})

    each(d, sets_on(topic, TOPIC, [READ, WRITE]), ask)


@access_scenario
def rules_on_topics_that_are_to_come(d: AccessDialogue) -> None:
    """Creation by a topic's right or the cluster's; deletion; auto-creation (attempt 80)."""
    names = iter(range(1000))

    def ask(d: AccessDialogue) -> None:
        name = f"{d.prefix}-new-{next(names)}"
        line = d.other()
        line.ask("Metadata", 12, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True})
        wanted = {"Name": f"{name}-made", "NumPartitions": 1, "ReplicationFactor": 1}
        line.ask("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})
        line.ask("DeleteTopics", 5, {"TopicNames": [f"{name}-made", f"{name}-never"], "TimeoutMs": 10_000})
        line.ask("CreatePartitions", 3, {"Topics": [{"Name": f"{name}-never", "Count": 2}], "TimeoutMs": 10_000})

    on_new = {"ResourcePatternType": PREFIXED}
    prefix = f"{d.prefix}-new-"
    each(d, [
        [],
        [rule(prefix, TOPIC, DESCRIBE, **on_new)],
        [rule(prefix, TOPIC, CREATE, **on_new)],
        [rule(operation=CREATE)],
        [rule(operation=CREATE), rule(prefix, TOPIC, CREATE, PermissionType=DENY, **on_new)],
        [rule(prefix, TOPIC, DELETE, **on_new), rule(operation=CREATE)],
        [rule(prefix, TOPIC, ALL, **on_new), rule(kind=CLUSTER, operation=CREATE, PermissionType=DENY)],
    ], ask)  # fmt: skip


@access_scenario
def rules_on_groups(d: AccessDialogue) -> None:
    topic, group = d.topic("read"), f"{d.prefix}-group"
    commit(d.coordinator(group), 8, group, topic)

    def ask(d: AccessDialogue) -> None:
        line = d.coordinator(group, "alice")
        line.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [group]})
        line.ask("DescribeGroups", 5, {"Groups": [group], "IncludeAuthorizedOperations": True})
        line.ask("ListGroups", 5)
        commit(line, 8, group, topic)
        asked = {"GroupId": group, "MemberId": None, "MemberEpoch": -1, "Topics": None}
        line.ask("OffsetFetch", 9, {"Groups": [asked], "RequireStable": False})
        line.ask("Heartbeat", 4, {"GroupId": group, "GenerationId": 1, "MemberId": "nobody", "GroupInstanceId": None})

    each(d, sets_on(group, GROUP, [READ]), ask)
    more = [[rule(group, GROUP, ALL), rule(topic, TOPIC, operation)] for operation in (READ, DESCRIBE, WRITE)]
    each(d, more, ask)


@access_scenario
def rules_on_transactional_ids(d: AccessDialogue) -> None:
    name = f"{d.prefix}-id"
    asked = {"KeyType": 1, "CoordinatorKeys": [name]}

    def port() -> int:
        """Of the coordinator, which a first question makes."""
        [found] = d.guide("FindCoordinator", 4, asked)["Coordinators"]
        return found["Port"] if not found["ErrorCode"] else 0

    def is_loaded() -> bool:
        with RawConnection("127.0.0.1", port()) as connection:
            return not connection.ask("ListTransactions", 1, {})["ErrorCode"]

    d.until(lambda: port() > 0)
    d.until(is_loaded)
    with RawConnection("127.0.0.1", port()) as connection:  # so that there is one to list
        made = connection.ask("InitProducerId", 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
    assert made["ErrorCode"] == 0, made

    def ask(d: AccessDialogue) -> None:
        line = d.line(port(), "alice")
        line.ask("FindCoordinator", 4, asked)
        line.ask("DescribeTransactions", 0, {"TransactionalIds": [name]})
        line.ask("ListTransactions", 1)
        producer = {"ProducerId": 7, "ProducerEpoch": 0}
        line.ask("EndTxn", 4, {"TransactionalId": name, "Committed": True, **producer})
        line.ask("AddOffsetsToTxn", 3, {"TransactionalId": name, "GroupId": f"{d.prefix}-g", **producer})

    each(d, sets_on(name, TRANSACTIONAL_ID, [WRITE]), ask)


@access_scenario
def rules_on_producers_without_an_id(d: AccessDialogue) -> None:
    """By WRITE on any topic, or by the cluster's IDEMPOTENT_WRITE."""

    def ask(d: AccessDialogue) -> None:
        d.other().ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})

    prefix = {"ResourcePatternType": PREFIXED}
    write = rule("orders", TOPIC, WRITE)
    on_prefix = rule("ord", TOPIC, WRITE, **prefix)

    def deny(name: str, **how: Any) -> Rule:
        return rule(name, TOPIC, WRITE, PermissionType=DENY, **how)

    each(d, [
        [], [write], [on_prefix], [rule("*", TOPIC, WRITE)], [rule("orders", TOPIC, READ)], [rule("*", TOPIC, ALL)],
        [rule("orders", TOPIC, ALL)], [rule(operation=IDEMPOTENT_WRITE)], [rule(operation=ALL)],
        [write, deny("orders")], [write, deny("ord", **prefix)], [write, deny("orders2")], [write, deny("*")],
        [on_prefix, deny("ord", **prefix)], [on_prefix, deny("or", **prefix)], [on_prefix, deny("orders", **prefix)],
        [on_prefix, deny("ord")], [on_prefix, deny("*")], [rule("*", TOPIC, WRITE), deny("o", **prefix)],
        [rule("*", TOPIC, WRITE), deny("*", Host="127.0.0.9")], [{**write, "Host": "127.0.0.9"}],
        [{**write, "Principal": "User:*"}], [write, {**deny("*"), "Principal": "User:bob"}],
        [rule(operation=IDEMPOTENT_WRITE), deny("*")],
        [write, rule(operation=IDEMPOTENT_WRITE, PermissionType=DENY)],
    ], ask)  # fmt: skip


@access_scenario
def rules_on_the_cluster(d: AccessDialogue) -> None:
    def ask(d: AccessDialogue) -> None:
        line = d.other()
        line.ask("DescribeCluster", 1, {"IncludeClusterAuthorizedOperations": True})
        line.ask("ListGroups", 5)
        line.ask("DescribeUserScramCredentials", 0, {"Users": [{"Name": "nobody"}]})
        line.ask("ListPartitionReassignments", 0, {"TimeoutMs": 1000, "Topics": None})
        line.ask("DescribeLogDirs", 4, {"Topics": []})

    each(d, ([rule(operation=operation)] if operation else [] for operation in (0, *OPERATIONS)), ask)
