"""Dialogues about transactional ids, and about what readers of committed records get."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.dialogue import Dialogue, Line, Scenario, stable_versions
from tests.integration.differential.scenarios_data import a_batch, fetch, list_offsets, produce
from tests.support.raw_client import RawConnection
from tests.support.record_batches import TRANSACTIONAL

SETTINGS = {
    "transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}  # fmt: skip
"""Of both brokers."""
TIMEOUT_MS = 60_000
AGAIN = (14, 15, 16, 51)
"""The coordinator is not there yet, or the transaction before has not ended."""
TRANSACTION_SCENARIOS: dict[str, Scenario] = {}

Answer = dict[str, Any]


def scenario(function: Scenario) -> Scenario:
    """Register a scenario of both brokers with `SETTINGS` under its function's name."""
    TRANSACTION_SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


class Id:
    """A transactional id of a scenario; `producer` is what an answer has told last."""

    def __init__(self, d: Dialogue, name: str = "t") -> None:
        self.d, self.name = d, f"{d.prefix}-{name}"
        self.producer: Answer = {"ProducerId": -1, "ProducerEpoch": -1}

    def _port(self) -> int:
        """The coordinator's."""
        found: Answer = {}
        asked = {"KeyType": 1, "CoordinatorKeys": [self.name]}

        def is_there() -> bool:
            found.update(self.d.guide("FindCoordinator", 4, asked)["Coordinators"][0])
            return not found["ErrorCode"]

        self.d.until(is_there)
        return int(found["Port"])

    @property
    def line(self) -> Line:
        return self.d.line(self._port())

    def guide(self, api: str, version: int, values: Answer) -> Answer:
        """Ask the coordinator something that is not part of what is compared."""
        with RawConnection("127.0.0.1", self._port()) as guide:
            return guide.ask(api, version, values)

    def settle(self) -> None:
        """Until no transaction ends any more."""

        def is_at_rest() -> bool:
            answer = self.guide("DescribeTransactions", 0, {"TransactionalIds": [self.name]})
            (state,) = answer["TransactionStates"]
            return state["ErrorCode"] not in AGAIN and not state["TransactionState"].startswith("Prepare")

        self.d.until(is_at_rest)

    def init(self, version: int = 5, timeout_ms: int = TIMEOUT_MS, **named: Any) -> Answer:
        self.settle()
        asked = {"TransactionalId": self.name, "TransactionTimeoutMs": timeout_ms, "ProducerId": -1,
                 "ProducerEpoch": -1, **named}  # fmt: skip
        return self._took(self.line.ask("InitProducerId", version, asked))

    def _took(self, answer: Answer) -> Answer:
        if not answer.get("ErrorCode", -1) and answer.get("ProducerId", -1) != -1:
            self.producer = {"ProducerId": answer["ProducerId"], "ProducerEpoch": answer["ProducerEpoch"]}
        return answer

    def add(self, version: int, topics: dict[str, list[int]], *, verify_only: bool = False, **named: Any) -> Answer:
        self.settle()
        rows = [{"Name": name, "Partitions": indexes} for name, indexes in topics.items()]
        one = {"TransactionalId": self.name, **self.producer, **named}
        if version < 4:
            asked: Answer = {f"V3AndBelow{key}": value for key, value in one.items()} | {"V3AndBelowTopics": rows}
        else:
            asked = {"Transactions": [{**one, "VerifyOnly": verify_only, "Topics": rows}]}
        return self.line.ask("AddPartitionsToTxn", version, asked)

    def end(self, version: int = 5, *, commit: bool = True, **named: Any) -> Answer:
        self.settle()
        asked = {"TransactionalId": self.name, **self.producer, "Committed": commit, **named}
        return self._took(self.line.ask("EndTxn", version, asked))

    def offsets(self, version: int, group: str, **named: Any) -> Answer:
        self.settle()
        asked = {"TransactionalId": self.name, **self.producer, "GroupId": group, **named}
        return self.line.ask("AddOffsetsToTxn", version, asked)

    def describe(self) -> None:
        self.settle()
        self.line.ask("DescribeTransactions", 0, {"TransactionalIds": [self.name, f"{self.name}-absent", ""]})


@scenario
def ids_that_begin(d: Dialogue) -> None:
    for version in stable_versions("InitProducerId"):
        one = Id(d, f"v{version}")
        one.init(version)
        one.init(version)
        if version >= 3:
            before = dict(one.producer)
            one.init(version, **before)
            one.init(version, **before)
            one.init(version, **{**before, "ProducerEpoch": before["ProducerEpoch"] + 5})
            one.init(version, ProducerId=before["ProducerId"] + 1000, ProducerEpoch=0)
            one.init(version, ProducerId=before["ProducerId"])
        one.describe()
    other = Id(d, "times")
    for timeout_ms in (900_001, 0, -1, 900_000, 1):
        other.init(timeout_ms=timeout_ms)


@scenario
def transactions_of_each_version(d: Dialogue) -> None:
    topic = d.topic("data", 2)
    for added, ended in ((0, 0), (1, 1), (2, 2), (3, 3), (3, 4), (4, 5), (5, 5)):
        for commit in (True, False):
            one = Id(d, f"v{added}-{ended}-{commit}")
            one.init()
            one.add(added, {topic: [0]})
            one.add(added, {topic: [0, 1]})
            one.describe()
            before = dict(one.producer)
            one.end(ended, commit=commit)
            one.describe()
            one.end(ended, commit=commit, **before)
            one.end(ended, commit=not commit, **before)
            one.end(ended, commit=commit)
            one.end(ended, commit=not commit)
            one.describe()


@scenario
def ends_of_nothing(d: Dialogue) -> None:
    for version in stable_versions("EndTxn"):
        for commit in (True, False):
            one = Id(d, f"v{version}-{commit}")
            one.producer = {"ProducerId": 5, "ProducerEpoch": 0}
            one.end(version, commit=commit)
            one.init()
            one.end(version, commit=commit)
            one.end(version, commit=commit, ProducerId=one.producer["ProducerId"] + 1000)
            one.end(version, commit=commit, ProducerEpoch=one.producer["ProducerEpoch"] + 1)
            one.describe()
        nobody = {"TransactionalId": "", "ProducerId": 1, "ProducerEpoch": 0, "Committed": True}
        d.anywhere.ask("EndTxn", version, nobody)


@scenario
def partitions_that_cannot_be_added(d: Dialogue) -> None:
    topic = d.topic("data", 2)
    for version in stable_versions("AddPartitionsToTxn"):
        one = Id(d, f"v{version}")
        one.add(version, {topic: [0]}, ProducerId=5, ProducerEpoch=0)
        one.init()
        one.init()
        one.add(version, {topic: [0, 7], f"{d.prefix}-absent": [0]})
        one.add(version, {topic: [-1]})
        one.add(version, {topic: [0]}, ProducerEpoch=one.producer["ProducerEpoch"] - 1)
        one.add(version, {topic: [0]}, ProducerEpoch=one.producer["ProducerEpoch"] + 1)
        one.add(version, {topic: [0]}, ProducerId=one.producer["ProducerId"] + 1000)
        one.add(version, {})
        one.describe()
        if version < 4:
            one.add(version, {"__transaction_state": [0], topic: [0]})
            one.add(version, {"__consumer_offsets": [0]})
        else:
            one.add(version, {topic: [0]}, verify_only=True)
            one.add(version, {topic: [0]})
            one.add(version, {topic: [0, 1]}, verify_only=True)
        one.describe()


@scenario
def offsets_that_are_added(d: Dialogue) -> None:
    d.coordinator(f"{d.prefix}-g")
    for version in stable_versions("AddOffsetsToTxn"):
        one = Id(d, f"v{version}")
        one.offsets(version, f"{d.prefix}-g", ProducerId=5, ProducerEpoch=0)
        one.init()
        one.offsets(version, f"{d.prefix}-g")
        one.offsets(version, f"{d.prefix}-g", ProducerEpoch=7)
        one.describe()
        one.end(3)
        one.describe()


@scenario
def a_new_instance_while_a_transaction_is_open(d: Dialogue) -> None:
    topic = d.topic("data")
    one = Id(d)
    one.init()
    one.add(5, {topic: [0]})
    before = dict(one.producer)
    one.init()
    one.init()
    for version in stable_versions("EndTxn"):
        one.end(version, **before)
    for version in stable_versions("AddPartitionsToTxn"):
        one.add(version, {topic: [0]}, **before)
    for version in stable_versions("AddOffsetsToTxn"):
        one.offsets(version, "g", **before)
    for version in (3, 4, 5):
        one.init(version, **before)
    one.describe()


@scenario
def committed_records(d: Dialogue) -> None:
    """Of two transactions that were aborted, one that was committed, and one that is open and the last."""
    topic = d.topic("data")

    def send(one: Id) -> None:
        producer = (one.producer["ProducerId"], one.producer["ProducerEpoch"], 0)
        records = a_batch(attributes=TRANSACTIONAL, producer=producer)
        produce(d, topic, records, version=9, TransactionalId=one.name)

    def read(end: int) -> None:
        for isolation in (0, 1):
            for offset in range(end + 2):
                fetch(d, topic, offset, version=12, IsolationLevel=isolation)
            for timestamp in (-1, -2, 0):
                list_offsets(d, topic, timestamp, version=7, IsolationLevel=isolation)

    produce(d, topic, a_batch())
    for number, commit in enumerate((False, True, False)):
        one = Id(d, f"{number}")
        one.init()
        one.add(3, {topic: [0]})
        send(one)
        read(3 + 4 * number + 3)
        one.end(3, commit=commit)
        one.settle()
        read(3 + 4 * number + 4)
    one = Id(d, "open")
    one.init()
    one.add(3, {topic: [0]})
    send(one)
    produce(d, topic, a_batch())
    read(21)
    for version in stable_versions("Fetch"):
        fetch(d, topic, 4, version=version, IsolationLevel=1)


@scenario
def lists_of_ids(d: Dialogue) -> None:
    topic = d.topic("data")
    open_one, done, empty = Id(d, "open"), Id(d, "done"), Id(d, "empty")
    for each in (open_one, done, empty):
        each.init()
    for each in (open_one, done):
        each.add(5, {topic: [0]})
    done.end()
    done.settle()
    pattern = f"{d.prefix}-.*"

    def listed(version: int = 2, **filters: Any) -> None:
        if version == 2:
            filters = {"TransactionalIdPattern": pattern, **filters}
        d.ask_every_broker("ListTransactions", version, filters, "TransactionStates")

    listed()
    for states in (["Ongoing"], ["Empty", "CompleteCommit"], ["Dead"]):
        listed(StateFilters=states)
    listed(ProducerIdFilters=[open_one.producer["ProducerId"]])
    listed(ProducerIdFilters=[open_one.producer["ProducerId"]], StateFilters=["Empty"])
    for longer_ms in (3_600_000, 0, -1, -2):
        listed(DurationFilter=longer_ms, StateFilters=["Empty"])
    listed(DurationFilter=3_600_000)
    listed(TransactionalIdPattern=f"{d.prefix}-(open|done)")
    listed(TransactionalIdPattern=f"{d.prefix}-ope")


@scenario
def markers_of_a_tool(d: Dialogue) -> None:
    """By what an administrator ends a transaction that hangs."""
    topic = d.topic("data", 2)
    for version in stable_versions("WriteTxnMarkers"):
        own = {"TransactionalId": None, "TransactionTimeoutMs": TIMEOUT_MS, "ProducerId": -1, "ProducerEpoch": -1}
        producer_id = d.anywhere.ask("InitProducerId", 4, own)["ProducerId"]

        def write(epoch: int, coordinator_epoch: int, marker_version: int = 0, *, commit: bool = False, **topics: Any):
            named = topics or {topic: [0]}
            marker = {
                "ProducerId": producer_id, "ProducerEpoch": epoch, "TransactionResult": commit,  # noqa: B023
                "CoordinatorEpoch": coordinator_epoch, "TransactionVersion": marker_version,
                "Topics": [{"Name": name, "PartitionIndexes": indexes} for name, indexes in named.items()],
            }  # fmt: skip
            if version < 2:  # noqa: B023
                del marker["TransactionVersion"]
            d.leader(topic).ask("WriteTxnMarkers", version, {"Markers": [marker]})  # noqa: B023

        write(0, 3)
        write(0, 3, commit=True)
        write(0, 2)
        write(1, 4)
        write(0, 4)
        write(1, 4, 2)
        write(2, 4, 2)
        write(2, 4, 2)
        write(1, 5, 2)
        write(2, 5, **{f"{d.prefix}-absent": [0]})
        write(2, 5, **{topic: [9]})
        d.leader(topic).ask("DescribeProducers", 0, {"Topics": [{"Name": topic, "PartitionIndexes": [0]}]})
        d.leader(topic).ask("WriteTxnMarkers", version, {"Markers": []})
