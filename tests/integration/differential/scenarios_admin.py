"""Configurations and log directories; and what a first sequence is in a partition that never held a record."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.dialogue import Dialogue, scenario, stable_versions
from tests.integration.differential.scenarios_data import a_batch, produce

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def describe(d: Dialogue, version: int, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> None:
    wanted = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}
    d.anywhere.ask("DescribeConfigs", version, {"Resources": [wanted], **more})


@scenario
def describe_topic_configs(d: Dialogue) -> None:
    topic = d.topic("one", configs={"retention.ms": "55555", "cleanup.policy": "compact,delete"})
    for version in stable_versions("DescribeConfigs"):
        describe(d, version, TOPIC, topic)
        describe(d, version, TOPIC, topic, IncludeSynonyms=True)
        describe(d, version, TOPIC, topic, ["retention.ms", "segment.bytes"], IncludeDocumentation=True)
        describe(d, version, TOPIC, topic, ["no.such.config", "retention.ms"])
        describe(d, version, TOPIC, topic, [])
        describe(d, version, TOPIC, f"{d.prefix}-absent")
        describe(d, version, TOPIC, "")
        describe(d, version, TOPIC, "bad name")
        d.anywhere.ask("DescribeConfigs", version, {"Resources": []})
        same = {"ResourceType": TOPIC, "ResourceName": topic, "ConfigurationKeys": ["retention.ms"]}
        d.anywhere.ask("DescribeConfigs", version, {"Resources": [same, same]})


@scenario
def describe_configs_of_every_setting(d: Dialogue) -> None:
    """Types, documentation and all."""
    topic = d.topic("one")
    describe(d, 4, TOPIC, topic, IncludeSynonyms=True, IncludeDocumentation=True)


@scenario
def describe_other_configs(d: Dialogue) -> None:
    for version in stable_versions("DescribeConfigs"):
        for kind in (0, 1, 3, 5, 100, -1):
            describe(d, version, kind, "x")
        for name in ("99", "x", "-1"):
            describe(d, version, BROKER, name)
            describe(d, version, BROKER_LOGGER, name)
        describe(d, version, BROKER_LOGGER, "")
        describe(d, version, BROKER, "", ["log.retention.ms"])


@scenario
def describe_broker_configs(d: Dialogue) -> None:
    """Of the settings that both have, one by one."""
    for version in stable_versions("DescribeConfigs"):
        describe(d, version, BROKER, "0", BROKER_KEYS, IncludeSynonyms=True)
        describe(d, version, BROKER, "0", ["no.such.config"])


BROKER_KEYS = [
    "num.partitions", "auto.create.topics.enable", "log.retention.ms", "log.retention.bytes", "log.segment.bytes",
    "message.max.bytes", "default.replication.factor", "log.cleanup.policy", "compression.type", "broker.rack",
    "delete.topic.enable", "group.min.session.timeout.ms", "group.max.session.timeout.ms",
    "offsets.topic.num.partitions",
    "min.insync.replicas", "log.message.timestamp.type", "fetch.max.bytes", "socket.request.max.bytes",
    "offset.metadata.max.bytes", "max.incremental.fetch.session.cache.slots", "log.roll.ms", "log.roll.hours",
    "log.retention.hours", "log.retention.minutes", "offsets.retention.minutes",
]  # fmt: skip


def alter(d: Dialogue, version: int, kind: int, name: str, *pairs: tuple[str, str | None], **more: Any) -> None:
    configs = [{"Name": key, "Value": value} for key, value in pairs]
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": configs}
    d.anywhere.ask("AlterConfigs", version, {"Resources": [resource], **more})


@scenario
def alter_topic_configs(d: Dialogue) -> None:
    topic = d.topic("one")
    for version in stable_versions("AlterConfigs"):
        alter(d, version, TOPIC, topic, ("retention.ms", "1000"), ("segment.bytes", "1048576"))
        describe(d, 4, TOPIC, topic)
        alter(d, version, TOPIC, topic, ("retention.ms", "2000"))
        describe(d, 4, TOPIC, topic)
        alter(d, version, TOPIC, topic, ("retention.ms", "3000"), ValidateOnly=True)
        alter(d, version, TOPIC, topic, ("retention.ms", "-7"))
        alter(d, version, TOPIC, topic, ("retention.ms", None))
        alter(d, version, TOPIC, topic, ("retention.ms", ""))
        alter(d, version, TOPIC, topic, ("no.such.config", "1"))
        alter(d, version, TOPIC, topic, ("retention.ms", "1"), ("retention.ms", "2"))
        describe(d, 4, TOPIC, topic)
        alter(d, version, TOPIC, topic)
        describe(d, 4, TOPIC, topic)
        alter(d, version, TOPIC, f"{d.prefix}-absent", ("retention.ms", "1"))
        alter(d, version, TOPIC, "", ("retention.ms", "1"))
        alter(d, version, TOPIC, "bad name", ("retention.ms", "1"))
        for kind in (0, 3, 100, -1):
            alter(d, version, kind, "x", ("a", "b"))
        alter(d, version, BROKER, "99", ("log.retention.ms", "5"))
        alter(d, version, BROKER, "x", ("log.retention.ms", "5"))
        d.anywhere.ask("AlterConfigs", version, {"Resources": []})


def change(d: Dialogue, version: int, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
    configs = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes]
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": configs}
    d.anywhere.ask("IncrementalAlterConfigs", version, {"Resources": [resource], **more})


SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@scenario
def change_topic_configs(d: Dialogue) -> None:
    for version in (0, 1):
        topic = d.topic(f"v{version}")

        def step(
            *changes: tuple[str, int, str | None], topic: str = topic, version: int = version, **more: Any
        ) -> None:
            change(d, version, TOPIC, topic, *changes, **more)
            describe(d, 4, TOPIC, topic, ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes"])

        step(("retention.ms", SET, "1000"), ("max.message.bytes", SET, "5000"))
        step(("retention.ms", SET, "2000"), ValidateOnly=True)
        step(("retention.ms", DELETE, None))
        step(("retention.ms", DELETE, "ignored"))
        step(("segment.bytes", DELETE, None))
        step(("cleanup.policy", APPEND, "compact"))
        step(("cleanup.policy", APPEND, "compact"))
        step(("cleanup.policy", SUBTRACT, "delete"))
        step(("cleanup.policy", SUBTRACT, "delete"))
        step(("cleanup.policy", SUBTRACT, "compact"))
        step(("cleanup.policy", APPEND, "shred"))
        step(("cleanup.policy", APPEND, "delete,compact"))
        step(("retention.ms", APPEND, "5"))
        step(("retention.ms", SUBTRACT, "5"))
        step(("retention.ms", SET, None))
        step(("retention.ms", APPEND, None))
        step(("retention.ms", SET, ""))
        step(("retention.ms", SET, "-9"))
        step(("retention.ms", SET, "soon"))
        if version:
            step(("retention.ms", 4, "5"))
        step(("no.such.config", SET, "5"))
        step(("no.such.config", DELETE, None))
        step(("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        step(("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
        step(("retention.ms", SET, "77"), ("no.such.config", SET, "5"))
        step()
        change(d, version, TOPIC, f"{d.prefix}-absent", ("retention.ms", SET, "5"))
        change(d, version, TOPIC, "", ("retention.ms", SET, "5"))
        for kind in (0, 3, 100, -1):
            change(d, version, kind, "x", ("a", SET, "b"))
        change(d, version, BROKER, "99", ("log.retention.ms", SET, "5"))
        change(d, version, BROKER, "x", ("log.retention.ms", SET, "5"))
        d.anywhere.ask("IncrementalAlterConfigs", version, {"Resources": []})
        one = {"Name": "retention.ms", "ConfigOperation": SET, "Value": "9"}
        same = {"ResourceType": TOPIC, "ResourceName": topic, "Configs": [one]}
        d.anywhere.ask("IncrementalAlterConfigs", version, {"Resources": [same, same]})
        good = {"ResourceType": TOPIC, "ResourceName": topic, "Configs": [{**one, "Value": "123"}]}
        bad = {"ResourceType": TOPIC, "ResourceName": f"{d.prefix}-absent", "Configs": [one]}
        d.anywhere.ask("IncrementalAlterConfigs", version, {"Resources": [good, bad]})
        describe(d, 4, TOPIC, topic, ["retention.ms"])


@scenario
def an_altered_config_acts(d: Dialogue) -> None:
    topic = d.topic("one")
    produce(d, topic, a_batch())
    change(d, 1, TOPIC, topic, ("max.message.bytes", SET, "50"))
    produce(d, topic, a_batch())
    change(d, 1, TOPIC, topic, ("max.message.bytes", DELETE, None))
    produce(d, topic, a_batch())


@scenario
def describe_log_dirs(d: Dialogue) -> None:
    topic = d.topic("one")
    empty = d.topic("empty")
    for _ in range(3):
        produce(d, topic, a_batch())
    line = d.leader(topic)
    for version in stable_versions("DescribeLogDirs"):
        line.ask("DescribeLogDirs", version, {"Topics": [{"Topic": topic, "Partitions": [0]}]})
        line.ask("DescribeLogDirs", version, {"Topics": [{"Topic": topic, "Partitions": [0, 5]}]})
        line.ask("DescribeLogDirs", version, {"Topics": [{"Topic": topic, "Partitions": []}]})
        line.ask("DescribeLogDirs", version, {"Topics": [{"Topic": f"{d.prefix}-absent", "Partitions": [0]}]})
        line.ask("DescribeLogDirs", version, {"Topics": []})
        d.leader(empty).ask("DescribeLogDirs", version, {"Topics": [{"Topic": empty, "Partitions": [0]}]})


@scenario
def alter_replica_log_dirs(d: Dialogue) -> None:
    one, two = d.topic("one"), d.topic("two", 2)
    line = d.leader(one)
    own = line.ask("DescribeLogDirs", 4, {"Topics": []})["Results"][0]["LogDir"]

    def ask(version: int, *dirs: tuple[str, str, list[int]]) -> None:
        named = [{"Path": path, "Topics": [{"Name": name, "Partitions": found}]} for path, name, found in dirs]
        line.ask("AlterReplicaLogDirs", version, {"Dirs": named})

    for version in stable_versions("AlterReplicaLogDirs"):
        line.ask("AlterReplicaLogDirs", version, {"Dirs": []})
        line.ask("AlterReplicaLogDirs", version, {"Dirs": [{"Path": own, "Topics": []}]})
        for path in (own, "/absent", "relative", "", f"{own}/"):
            ask(version, (path, one, [0]))
            ask(version, (path, one, [0, 5, -1, 0]))
            ask(version, (path, one, []))
            ask(version, (path, f"{d.prefix}-absent", [0]))
            ask(version, (path, "bad name", [0]))
        d.leader(two, 0).ask(
            "AlterReplicaLogDirs", version, {"Dirs": [{"Path": own, "Topics": [{"Name": two, "Partitions": [0]}]}]}
        )
        ask(version, (own, one, [0]), ("/absent", one, [0]))
        ask(version, ("/absent", one, [0]), (own, one, [0]))


@scenario
def produce_idempotent_first_of_all(d: Dialogue) -> None:
    """Where no record has ever been, something is missing in front of a first sequence that is not 0."""
    identifier = d.anywhere.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})[
        "ProducerId"
    ]
    topic = d.topic("one")
    for sequence in (5, 0):
        produce(d, topic, a_batch(producer=(identifier, 0, sequence)))
