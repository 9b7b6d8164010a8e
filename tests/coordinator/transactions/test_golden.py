"""What Apache Kafka answered and wrote for transactions: each of its steps, played to the coordinator, and its records.

``tools/golden_transactions.py`` made the file; its steps have the requests that led to the records.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordinator.transactions.scenario import TransactionScenario, replayed
from tests.support.stored_records import stored_records
from tpc_broker.coordinator.transactions.machine import unknown_states
from tpc_broker.coordinator.transactions.messages import (
    AddPartitionsRequest,
    EndRequest,
    InitProducerIdRequest,
    ListFilter,
)
from tpc_broker.coordinator.transactions.records import (
    read_transaction,
    read_transaction_key,
    transaction_record,
)
from tpc_broker.coordinator.transactions.states import STATUS, State
from tpc_broker.coordinator.transactions.transaction import NO_PRODUCER_EPOCH, TopicPartition, Transaction, initialised
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import decode, encode

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "transactions.json").read_text())
PARTS = GOLDEN["parts"]


def of_steps(*steps):
    """What Kafka wrote in them, in its order."""
    records = [record for step in steps for batch in step["batches"] for record in batch]
    return [(bytes.fromhex(each["key"]), each["value"] and bytes.fromhex(each["value"])) for each in records]


def of_parts(*names):
    return of_steps(*(step for name in names for step in PARTS[name]))


RECORDS = of_parts(*PARTS)
OFFSETS = "__consumer_offsets"
INTENDED = {
    # KAFKA-20785, which is later than the Kafka that was asked.
    ("of_tv2", "a commit in its place"): ErrorCode.PRODUCER_FENCED,
    ("by_time", "commit by the old epoch", 5): ErrorCode.PRODUCER_FENCED,
    # An epoch that is not the open transaction's has no say in its end.
    ("of_tv2", "ahead, of an open one"): ErrorCode.PRODUCER_FENCED,
    ("of_tv2", "three behind, of an open one"): ErrorCode.PRODUCER_FENCED,
    # The end of an older client has not raised the epoch, so that nobody's lost answer is in it.
    ("by_time_at_level_1", "commit by the old epoch", 5): ErrorCode.PRODUCER_FENCED,
    ("by_time_at_level_1", "abort by the old epoch", 5): ErrorCode.PRODUCER_FENCED,
    # What is stored at level 0 does not say of which version a client was: none is of version 2 there.
    ("of_tv1_at_level_0", "a commit by a new client"): ErrorCode.NONE,
}


def intended(part, step):
    return INTENDED.get((part, step["what"], step.get("version")), INTENDED.get((part, step["what"])))


def test_each_state_is_there_in_both_versions_and_a_tombstone():
    seen = {(value[:2].hex(), value[16]) for _key, value in RECORDS if value is not None}
    assert seen == {(version, status) for version in ("0000", "0001") for status in range(6)}
    assert any(value is None for _key, value in RECORDS)


def test_records_are_read_and_written_as_kafka_has_them():
    for key, value in RECORDS:
        assert key[:2] + encode("TransactionLogKey", 0, decode("TransactionLogKey", 0, key[2:])) == key
        name = read_transaction_key(key)
        transaction = None if value is None else read_transaction(value)
        version = 0 if value is None else value[1]
        assert transaction_record(name, transaction, version) == (key, value)


def test_a_log_of_kafka_is_replayed_and_told_again():
    machine, _effects = replayed(RECORDS)
    last = dict(RECORDS)
    assert dict(stored_records(machine)) == {key: value for key, value in last.items() if value is not None}


class Player(TransactionScenario):
    """As Kafka was when it was asked: its producer ids are taken from its answers."""

    def __init__(self, level):
        super().__init__(level)
        self.ids = []

    def take_id(self):
        return self.ids.pop(0)

    def play(self, step):
        """The answer as Kafka has it, the values that were written without times, and the markers."""
        self.now += 1
        begin, marks = len(self.log), len(self.markers)
        # Whatever Kafka wrote names a producer id that was taken for it.
        written = [record["means"]["value"] for batch in step["batches"] for record in batch]
        self.ids = [each[name] for each in written if each for name in ("next_producer_id", "producer_id")]
        self.ids = [each for each in dict.fromkeys(self.ids) if each > self.next_id]
        self.next_id = max([self.next_id, *self.ids])
        answer = None
        if step.get("later"):
            self.elapse(self.machine.next_deadline_ms() - self.now)
        else:
            answer = getattr(self, step["api"])(step["request"], step["version"])
        return answer, self.log[begin:], self.markers[marks:]

    def InitProducerId(self, asked, version):  # noqa: N802
        request = InitProducerIdRequest(
            transactional_id=asked["TransactionalId"], timeout_ms=asked["TransactionTimeoutMs"],
            producer_id=asked.get("ProducerId", -1), producer_epoch=asked.get("ProducerEpoch", -1),
            knows_fenced=version >= 4,
        )  # fmt: skip
        return self.producer(self.machine.init_producer_id(request, self.token("play"), self.now))

    def EndTxn(self, asked, version):  # noqa: N802
        request = EndRequest(
            transactional_id=asked["TransactionalId"], producer_id=asked["ProducerId"],
            producer_epoch=asked["ProducerEpoch"], commit=asked["Committed"], client_version=2 if version >= 5 else 0,
            knows_fenced=version >= 2,
        )  # fmt: skip
        answer = self.producer(self.machine.end(request, self.token("play"), self.now))
        return answer if version >= 5 else {"ErrorCode": answer["ErrorCode"]}

    def producer(self, effects):
        self.run(effects)
        answer = self.replies[f"play {self.tokens}"]
        return {
            "ErrorCode": answer.error_code, "ProducerId": answer.producer_id, "ProducerEpoch": answer.producer_epoch
        }  # fmt: skip

    def added(self, asked, version, partitions, **more):
        request = AddPartitionsRequest(
            transactional_id=asked["TransactionalId"], producer_id=asked["ProducerId"],
            producer_epoch=asked["ProducerEpoch"], partitions=tuple(partitions), knows_fenced=version >= 2, **more,
        )  # fmt: skip
        token = self.token("play")
        self.run(self.machine.add_partitions(request, token, self.now))
        return self.replies[token]

    def AddOffsetsToTxn(self, asked, version):  # noqa: N802
        return {"ErrorCode": self.added(asked, version, [TopicPartition(OFFSETS, 0)]).error_code}

    def AddPartitionsToTxn(self, asked, version):  # noqa: N802
        if version < 4:
            asked = {name.removeprefix("V3AndBelow"): value for name, value in asked.items()}
            return {"ResultsByTopicV3AndBelow": self.of_one(asked, version)}
        [one] = asked["Transactions"]
        more = {"client_version": 2, "verify_only": one["VerifyOnly"]}
        result = {"TransactionalId": one["TransactionalId"], "TopicResults": self.of_one(one, version, **more)}
        return {"ErrorCode": 0, "ResultsByTransaction": [result]}

    def of_one(self, asked, version, **more):
        [topic] = asked["Topics"]
        partitions = [TopicPartition(topic["Name"], index) for index in topic["Partitions"]]
        answer = self.added(asked, version, partitions, **more)
        told = [{"PartitionIndex": each.partition, "PartitionErrorCode": answer.error_of(each)} for each in partitions]
        return [{"Name": topic["Name"], "ResultsByPartition": told}]

    def DescribeTransactions(self, asked, _version):  # noqa: N802
        told = []
        for name in asked["TransactionalIds"]:
            found = self.machine.describe(name)
            topics = {}
            for topic, index in found.partitions:
                topics.setdefault(topic, []).append(index)
            told.append({
                "ErrorCode": found.error_code, "TransactionalId": name, "TransactionState": found.state,
                "TransactionTimeoutMs": found.timeout_ms, "TransactionStartTimeMs": found.start_ms,
                "ProducerId": found.producer_id, "ProducerEpoch": found.producer_epoch,
                "Topics": [{"Topic": topic, "Partitions": indexes} for topic, indexes in topics.items()],
            })  # fmt: skip
        return {"TransactionStates": told}

    def ListTransactions(self, asked, _version):  # noqa: N802
        pattern = asked.get("TransactionalIdPattern") or ""
        wanted = ListFilter(
            states=frozenset(asked["StateFilters"]), producer_ids=frozenset(asked["ProducerIdFilters"]),
            longer_than_ms=asked.get("DurationFilter", -1),
        )  # fmt: skip
        matches = {"": bool, "list": lambda name: name == "list", "list-.*": lambda name: name.startswith("list-")}
        found = [
            one for part in self.machine.list_transactions(wanted, self.now)
            for one in part if matches[pattern](one.transactional_id)
        ]  # fmt: skip
        return {
            "ErrorCode": 0,
            "UnknownStateFilters": unknown_states(asked["StateFilters"]),
            "TransactionStates": [
                {"TransactionalId": one.transactional_id, "ProducerId": one.producer_id, "TransactionState": one.state}
                for one in found
            ],
        }

    def raise_epoch(self, step):
        """As many InitProducerId have brought it there."""
        found = self.stored(step["name"])
        new = initialised(found, step["pid"], step["epoch"], found.timeout_ms, self.now)
        record = transaction_record(step["name"], new)
        self.log.append(record)
        self.machine.replay(record.key, record.value)


def meaning(record):
    """Without times, and partitions in no order: Kafka has them in that of its hash maps."""
    key, value = record
    name = read_transaction_key(key)
    if value is None:
        return name
    found = read_transaction(value)
    has_begun = found.start_ms != -1
    return name, value[:2], has_begun, replace(
        found, last_update_ms=0, start_ms=0, partitions=tuple(sorted(found.partitions))
    )  # fmt: skip


def without_order(value):
    """Lists in any order, no times, and without the id by which Kafka was found to be ready."""
    if isinstance(value, dict):
        times = {"ThrottleTimeMs", "TransactionStartTimeMs"}
        return {name: without_order(each) for name, each in value.items() if name not in times}
    if isinstance(value, list):
        left = [each for each in value if not isinstance(each, dict) or each.get("TransactionalId") != "probe"]
        return sorted((without_order(each) for each in left), key=repr)
    return int(value) if isinstance(value, ErrorCode) else value


LEVELS = {part: int(part[-1]) if "level" in part else 2 for part in PARTS if part != "by_expiry"}


@pytest.mark.parametrize("part", LEVELS)
def test_the_coordinator_does_what_kafka_did(part):
    player = Player(LEVELS[part])
    if "level" in part:
        set_up(player, PARTS[part])
    if part == "of_lists":
        set_up_lists(player)
    seen = set()
    for step in PARTS[part]:
        if step["what"] == "raised":
            player.raise_epoch(step)
            continue
        if step["what"] == "by a bad pattern":
            continue
        if intended(part, step) is not None:
            assert player.play({**step, "batches": []})[0]["ErrorCode"] is intended(part, step), step["what"]
            seen.add(step["what"])
            if step["batches"]:
                take_over(player, step)
            continue
        answer, records, markers = player.play(step)
        if answer is not None:
            assert without_order(answer) == without_order(
                {name: each for name, each in step["answer"].items() if name in answer}
            ), step["what"]
        assert [meaning(each) for each in records] == [meaning(each) for each in of_steps(step)], step["what"]
        told = sorted(
            (one.partition.partition, one.producer_id, one.producer_epoch, bytes([0, 0, 0, one.commit]).hex())
            for one in markers
            if one.partition.topic != OFFSETS
        )
        assert told == sorted(
            (one["partition"], one["producer_id"], one["producer_epoch"], one["key"]) for one in step["markers"]
        ), step["what"]
    assert seen == {key[1] for key in INTENDED if key[0] == part}


def take_over(player, step):
    """Kafka went another way: go on as it did."""
    for key, value in of_steps(step):
        player.log.append((key, value))
        player.machine.replay(key, value)


def set_up(player, steps):
    """Ids that an earlier part has left."""
    name = steps[0]["request"]["TransactionalId"]
    first = steps[0]["batches"][0][0]["means"]["value"]
    player.next_id = first["producer_id"] - 1
    if first["producer_epoch"] > 0:
        old = Transaction(first["producer_id"], first["producer_epoch"] - 1, State.EMPTY, 60_000, player.now)
        record = transaction_record(name, old, 0)
        player.log.append(record)
        player.machine.replay(*record)
        player.next_id += 1


def set_up_lists(player):
    """What the parts before have left, and a time behind all of it."""
    for key, value in of_parts("of_tv2", "by_time", "of_tv1"):
        player.machine.replay(key, value)
        player.now = max(player.now, read_transaction(value).last_update_ms + 1)


def test_the_numbers_of_states_are_kafkas():
    assert [state.value for state in sorted(STATUS, key=STATUS.get)] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip
    assert NO_PRODUCER_EPOCH == -1
