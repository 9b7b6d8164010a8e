"""Transactions of a cluster: markers go to leaders on all nodes, and an end is gone through with whoever fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cluster_nodes import Cluster, cluster, create_topic, eventually, leaders
from tests.support.raw_client import Closed, RawConnection
from tpc_broker.model import BrokerId, core_of, node_of

pytestmark = pytest.mark.cluster

PARTITIONS = 6


class RefusedError(AssertionError):
    """Asked for in vain: it is tried again."""


def ask(made: Cluster, broker: int, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
    node = made[node_of(BrokerId(broker))]
    try:
        with RawConnection(node.host, node.ports[core_of(BrokerId(broker))]) as client:
            return client.ask(api, version, values)
    except (Closed, OSError) as problem:
        raise RefusedError(str(problem)) from problem


class Producer:
    """A transactional id, asked for at its coordinator, wherever that is."""

    def __init__(self, made: Cluster, name: str) -> None:
        self.made, self.name = made, name
        self.producer_id = self.epoch = -1
        self.asks_first = 1

    def coordinator(self) -> int:
        found = ask(
            self.made, self.made[self.asks_first].broker_id, "FindCoordinator", 4,
            {"KeyType": 1, "CoordinatorKeys": [self.name]},
        )["Coordinators"][0]  # fmt: skip
        if found["ErrorCode"]:
            raise RefusedError(found)
        return int(found["NodeId"])

    def asked(self, api: str, version: int, **values: Any) -> dict[str, Any]:
        """As soon as it is not refused."""

        def once() -> dict[str, Any]:
            named = {"TransactionalId": self.name, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch}
            answer = ask(self.made, self.coordinator(), api, version, {**named, **values})
            if answer["ErrorCode"]:
                raise RefusedError(answer)
            return answer

        return eventually(once, f"{api} is done")

    def begin(self) -> None:
        answer = self.asked("InitProducerId", 5, TransactionTimeoutMs=60_000, ProducerId=-1, ProducerEpoch=-1)
        self.producer_id, self.epoch = answer["ProducerId"], answer["ProducerEpoch"]

    def add_all(self, topic: str) -> None:
        def once() -> bool:
            one = {
                "TransactionalId": self.name, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch,
                "VerifyOnly": False, "Topics": [{"Name": topic, "Partitions": list(range(PARTITIONS))}],
            }  # fmt: skip
            answer = ask(self.made, self.coordinator(), "AddPartitionsToTxn", 5, {"Transactions": [one]})
            (result,) = answer["ResultsByTransaction"][0]["TopicResults"]
            codes = {each["PartitionErrorCode"] for each in result["ResultsByPartition"]}
            return codes == {0}

        eventually(once, "all partitions are in the transaction")

    def state(self) -> str:
        answer = ask(
            self.made, self.coordinator(), "DescribeTransactions", 0, {"TransactionalIds": [self.name]}
        )["TransactionStates"][0]  # fmt: skip
        return str(answer["TransactionState"])


def nodes_that_lead(made: Cluster, topic: str) -> set[int]:
    found = leaders(made.bootstrap, topic).values()
    return {-1} if -1 in found else {node_of(BrokerId(each)) for each in found}


def told_producers(made: Cluster, topic: str, index: int) -> list[dict[str, Any]]:
    """As the partition's leader knows them."""
    asked = {"Topics": [{"Name": topic, "PartitionIndexes": [index]}]}
    answer = ask(made, leaders(made.bootstrap, topic)[index], "DescribeProducers", 0, asked)
    (found,) = answer["Topics"][0]["Partitions"]
    assert not found["ErrorCode"], found
    return list(found["ActiveProducers"])


def marked(made: Cluster, topic: str, producer_id: int) -> list[int]:
    """Of each partition the epoch of the producer's last marker."""
    return [
        each["ProducerEpoch"]
        for index in range(PARTITIONS)
        for each in told_producers(made, topic, index)
        if each["ProducerId"] == producer_id and each["CoordinatorEpoch"] >= 0
    ]


def test_a_transaction_ends_on_all_nodes_also_when_its_coordinator_is_killed(tmp_path):
    with cluster(tmp_path, count=3) as made:
        made.start()
        create_topic(made.bootstrap, "data", PARTITIONS, replicas=3)
        eventually(lambda: nodes_that_lead(made, "data") == {1, 2, 3}, "each node leads some")
        producer = Producer(made, "t")
        producer.begin()
        producer.add_all("data")
        assert producer.asked("EndTxn", 5, Committed=True)["ProducerEpoch"] == 1
        eventually(lambda: producer.state() == "CompleteCommit", "its markers are on all nodes")
        assert marked(made, "data", producer.producer_id) == [1] * PARTITIONS

        producer.epoch = 1
        producer.add_all("data")
        coordinator = node_of(BrokerId(producer.coordinator()))
        other, left = (number for number in (1, 2, 3) if number != coordinator)
        made.kill(other)
        producer.asks_first = left
        assert producer.asked("EndTxn", 5, Committed=False)["ProducerEpoch"] == 2
        made.kill(coordinator)
        made.start(other, coordinator)
        eventually(lambda: producer.state() == "CompleteAbort", "the next coordinator writes what is missing")
        eventually(lambda: marked(made, "data", producer.producer_id) == [2] * PARTITIONS, "everywhere")
