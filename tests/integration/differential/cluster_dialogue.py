"""The dialogue with three nodes: brokers have the same ids on both sides, so who they are is compared, too.

What each side chooses by itself is not: where replicas go that nobody has placed, who leads the metadata, epochs. A
scenario places its replicas, and waits until all of them are in sync and led by the one that is to lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.integration.differential.dialogue import Dialogue, Normaliser, Scenario

BROKERS = (1024, 2048, 3072)
CLUSTER_SCENARIOS: dict[str, Scenario] = {}


class ClusterNormaliser(Normaliser):
    def body(self, values: dict[str, Any]) -> dict[str, Any]:
        if self._api == "DescribeQuorum":  # in one order, before incarnations are numbered
            values.get("Nodes", []).sort(key=lambda node: node["NodeId"])
            for topic in values["Topics"]:
                for partition in topic["Partitions"]:
                    partition["CurrentVoters"].sort(key=lambda voter: voter["ReplicaId"])
        return super().body(values)

    def _value(self, key: str, value: Any, around: dict[str, Any]) -> Any:
        if key in ("IsrNodes", "OfflineReplicas") and value is not None:
            return sorted(value)
        if key == "ReplicaNodes":
            return value
        return super()._value(key, value, around)

    def _scalar(self, key: str, value: Any) -> Any:
        if key in ("LeaderId", "NodeId", "BrokerId"):
            return value
        if key == "LeaderEpoch" and self._api != "DescribeQuorum":
            return "<epoch>" if value >= 0 else value
        return super()._scalar(key, value)

    def _one_broker(self, values: dict[str, Any]) -> dict[str, Any]:
        values["Brokers"] = sorted(values["Brokers"], key=lambda broker: broker.get("NodeId", broker.get("BrokerId")))
        return values

    def _DescribeQuorum(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (named after the API)
        values = super()._DescribeQuorum(values)
        for topic in values["Topics"]:
            for partition in topic["Partitions"]:
                partition["LeaderId"] = "<broker>" if partition["LeaderId"] in BROKERS else partition["LeaderId"]
        return values


@dataclass
class ClusterDialogue(Dialogue):
    normaliser: type[Normaliser] | None = ClusterNormaliser

    def placed(self, name: str, *replicas: list[int], configs: dict[str, str] | None = None) -> str:
        """A topic whose partitions have these brokers, led by their first ones; not compared."""
        full = f"{self.prefix}-{name}"
        wanted = {
            "Name": full, "NumPartitions": -1, "ReplicationFactor": -1,
            "Assignments": [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in enumerate(replicas)],
            "Configs": [{"Name": key, "Value": value} for key, value in (configs or {}).items()],
        }  # fmt: skip
        [made] = self.guide("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 60_000})["Topics"]
        assert made["ErrorCode"] == 0, made
        self.topic_ids[made["TopicId"]] = full
        self.wait_placed(full, *replicas)
        return full

    def parts(self, full: str) -> list[dict[str, Any]]:
        """What Metadata say of a topic's partitions, in their order."""
        [found] = self.guide("Metadata", 12, {"Topics": [{"Name": full}], "AllowAutoTopicCreation": False})["Topics"]
        return sorted(found["Partitions"], key=lambda part: part["PartitionIndex"])

    def wait_placed(self, full: str, *replicas: list[int], leaders: list[int] | None = None) -> None:
        """Until that is where they are, in sync and led by the first ones, or by `leaders`."""
        wanted = [(ids, sorted(ids), ids[0]) for ids in replicas]
        if leaders is not None:
            wanted = [(*rest, leader) for (*rest, _first), leader in zip(wanted, leaders, strict=True)]

        def holds() -> bool:
            parts = self.parts(full)
            return wanted == [(one["ReplicaNodes"], sorted(one["IsrNodes"]), one["LeaderId"]) for one in parts]

        self.until(holds)
        self.settle()


def cluster_scenario(function: Scenario) -> Scenario:
    """Register a scenario under its function's name."""
    name = function.__name__.replace("_", "-")
    assert name not in CLUSTER_SCENARIOS, name
    CLUSTER_SCENARIOS[name] = function
    return function
