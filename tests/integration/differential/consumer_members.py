"""Members of consumer groups of KIP-848, as scenarios speak for them: by heartbeats, and by waiting with heartbeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.integration.differential.dialogue import Dialogue, Scenario

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.max.size": "4",
}
"""Of both brokers: sessions that end soon, groups that are soon full."""

REBALANCE_TIMEOUT_MS = 120_000
_COORDINATORS_COUNT = 50

Answer = dict[str, Any]
CONSUMER_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario of both brokers with `SETTINGS` under its function's name."""
    name = function.__name__.replace("_", "-")
    assert name not in CONSUMER_SCENARIOS, name
    CONSUMER_SCENARIOS[name] = function
    return function


def beat(d: Dialogue, group: str, member: str, epoch: int, version: int = 1, **more: Any) -> Answer:
    return d.coordinator(group).ask("ConsumerGroupHeartbeat", version, beating(group, member, epoch, **more))


def beating(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    return {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, **more}


def join(d: Dialogue, group: str, member: str, *names: str, version: int = 1, **more: Any) -> Answer:
    return beat(d, group, member, 0, version, **{**subscribing(*names), **more})


def subscribing(*names: str) -> dict[str, Any]:
    """What a first heartbeat has to say."""
    return {"RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS, "SubscribedTopicNames": list(names), "TopicPartitions": []}


def matching(pattern: str) -> dict[str, Any]:
    """The same with a pattern."""
    return {"RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS, "SubscribedTopicRegex": pattern, "TopicPartitions": []}


def beat_until(
    d: Dialogue, holds: Callable[[Answer], bool], group: str, member: str, epoch: int, **more: Any
) -> Answer:
    """Heartbeats until an answer is what is waited for; only that one is compared."""
    values = beating(group, member, epoch, **more)
    answers: list[Answer] = []

    def comes() -> bool:
        answers.append(d.guide_coordinator(group, "ConsumerGroupHeartbeat", 1, values))
        return holds(answers[-1])

    d.until(comes)
    d.note("ConsumerGroupHeartbeat", 1, values, answers[-1])
    return answers[-1]


def is_told(answer: Answer) -> bool:
    return answer["Assignment"] is not None


def is_refused(answer: Answer) -> bool:
    return answer["ErrorCode"] != 0


def at_epoch(epoch: int) -> Callable[[Answer], bool]:
    return lambda answer: answer["MemberEpoch"] == epoch


def owned(answer: Answer) -> list[dict[str, Any]]:
    """As a member says it of what it was told."""
    return answer["Assignment"]["TopicPartitions"]


def partitions(d: Dialogue, topic: str, *indexes: int) -> list[dict[str, Any]]:
    return [{"TopicId": d.topic_id(topic), "Partitions": list(indexes)}]


def describe(d: Dialogue, group: str, version: int = 1, **more: Any) -> Answer:
    return d.coordinator(group).ask("ConsumerGroupDescribe", version, {"GroupIds": [group], **more})


def setting(d: Dialogue, group: str, name: str, value: str) -> None:
    """Of one group; waits until it is obeyed, which is not compared."""
    resource = {"ResourceType": 32, "ResourceName": group}
    config = {"Name": name, "ConfigOperation": 0, "Value": value}
    asked = {"Resources": [{**resource, "Configs": [config]}]}
    [done] = d.guide("IncrementalAlterConfigs", 1, asked)["Responses"]
    assert done["ErrorCode"] == 0, done
    shown = {"Resources": [{**resource, "ConfigurationKeys": [name]}]}
    d.until(lambda: d.guide("DescribeConfigs", 4, shown)["Results"][0]["Configs"][0]["Value"] == value)
    d.settle()


def assigned_at_once(d: Dialogue, group: str) -> None:
    """With the default interval a join within a second of the last assignment is told nothing."""
    setting(d, group, "consumer.assignment.interval.ms", "0")


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFF_FFFF
    return value & 0x7FFF_FFFF


def until_known(d: Dialogue, group: str, topic: str) -> None:
    """Kafka's coordinators hear of a topic later than its broker: until a member of a group with the same coordinator
    is given it. Ours must know it when it answers.
    """
    if d.peer.name != "kafka":
        return
    place = _java_hash(group) % _COORDINATORS_COUNT
    names = (f"probe-{number}-{topic}" for number in itertools.count())
    probe = next(name for name in names if _java_hash(name) % _COORDINATORS_COUNT == place)

    def given() -> bool:
        joined = d.guide_coordinator(
            probe, "ConsumerGroupHeartbeat", 1, beating(probe, "probe", 0, **subscribing(topic))
        )
        d.guide_coordinator(probe, "ConsumerGroupHeartbeat", 1, beating(probe, "probe", -1))
        return bool(joined["Assignment"]["TopicPartitions"])

    d.until(given)
