"""A transactional producer of the second protocol (KIP-890), made by hand, and reading what is committed the same way.

It does what Java's does: goes where Metadata and FindCoordinator send it, sends again what may be sent again, adds
nothing to a transaction by itself, takes the next epoch from the answer of EndTxn. One batch at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from tests.log.log_batches import batch
from tests.support.raw_client import RawConnection
from tests.support.record_batches import CONTROL, read_batches
from tpc_broker.error_codes import ErrorCode

T = TypeVar("T")
ANSWER_S: Final = 10.0
PAUSE_S: Final = 0.02
AGAIN: Final = frozenset({
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION,
})  # fmt: skip
ABORTABLE: Final = frozenset({
    ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
})  # fmt: skip
TRANSACTION, GROUP = 1, 0
COMMITTED_ONLY: Final = 1


class AbortableError(Exception):
    """The transaction can only be aborted."""


class FencedError(Exception):
    """The producer is of no more use."""


class _AskAgain(Exception):  # noqa: N818 (it says what to do)
    """Somewhere else perhaps, or later."""


class Lines:
    """Connections by address; one that fails is given up."""

    def __init__(self, bootstrap: str) -> None:
        self._first = itertools.cycle(bootstrap.split(","))
        self._lines: dict[str, RawConnection] = {}

    def ask(self, address: str, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        try:
            if address not in self._lines:
                host, port = address.rsplit(":", 1)
                self._lines[address] = RawConnection(host, int(port), ANSWER_S)
            return self._lines[address].ask(api, version, values)
        except (OSError, struct.error) as problem:
            self._drop(address)
            raise _AskAgain(f"{address}: {problem!r}") from problem

    def ask_any(self, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        return self.ask(next(self._first), api, version, values)

    def _drop(self, address: str) -> None:
        with contextlib.suppress(KeyError):
            self._lines.pop(address).close()

    def close(self) -> None:
        for address in list(self._lines):
            self._drop(address)


class RawProducer:
    """`hangs_s`: after which a call that comes to nothing is a `TimeoutError`."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int, hangs_s: float) -> None:
        self.name, self.timeout_ms, self.hangs_s = name, timeout_ms, hangs_s
        self.producer_id = self.epoch = -1
        self._lines = Lines(bootstrap)
        self._coordinators: dict[tuple[int, str], str] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self._sequences: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._lines.close()

    def init(self) -> None:
        def once() -> None:
            answer = self._of_coordinator(TRANSACTION, self.name, "InitProducerId", 5, {
                "TransactionalId": self.name, "TransactionTimeoutMs": self.timeout_ms, "ProducerId": -1,
                "ProducerEpoch": -1,
            })  # fmt: skip
            self._judge(answer["ErrorCode"])
            self.producer_id, self.epoch = answer["ProducerId"], answer["ProducerEpoch"]

        self._until_done(once, "InitProducerId")

    def produce(self, topic: str, partition: int, value: bytes, sequence: int) -> dict[str, Any]:
        """A request that is not sent yet."""
        producer = self.producer_id, self.epoch, sequence
        records = batch(0, [value], producer=producer, transactional=True, timestamp=int(time.time() * 1000))
        return {
            "TransactionalId": self.name, "Acks": -1, "TimeoutMs": 5_000,
            "TopicData": [{"Name": topic, "PartitionData": [{"Index": partition, "Records": records}]}],
        }  # fmt: skip

    def write(self, topic: str, partition: int, value: bytes) -> int:
        """Its offset; -1 where the leader had it already and does not say where."""
        sequence = self._sequences.get((topic, partition), 0)
        asked = self.produce(topic, partition, value, sequence)

        def once() -> int:
            address = self._leader(topic, partition)
            try:
                answer = self._lines.ask(address, "Produce", 12, asked)
                (result,) = answer["Responses"][0]["PartitionResponses"]
                if result["ErrorCode"] != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    self._judge(result["ErrorCode"])
            except _AskAgain:
                self._leaders.pop((topic, partition), None)
                raise
            return int(result["BaseOffset"])

        offset = self._until_done(once, "Produce")
        self._sequences[topic, partition] = sequence + 1
        return offset

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        place = {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedLeaderEpoch": -1,
                 "CommittedMetadata": ""}  # fmt: skip
        asked = {
            "TransactionalId": self.name, "GroupId": group, "ProducerId": self.producer_id,
            "ProducerEpoch": self.epoch, "GenerationId": -1, "MemberId": "", "GroupInstanceId": None,
            "Topics": [{"Name": topic, "Partitions": [place]}],
        }  # fmt: skip

        def once() -> None:
            answer = self._of_coordinator(GROUP, group, "TxnOffsetCommit", 5, asked)
            self._judge(answer["Topics"][0]["Partitions"][0]["ErrorCode"], GROUP, group)

        self._until_done(once, "TxnOffsetCommit")

    def end(self, *, commit: bool) -> None:
        asked = {"TransactionalId": self.name, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch,
                 "Committed": commit}  # fmt: skip

        def once() -> None:
            answer = self._of_coordinator(TRANSACTION, self.name, "EndTxn", 5, asked)
            if answer["ErrorCode"] == ErrorCode.INVALID_PRODUCER_EPOCH:
                raise FencedError("EndTxn: INVALID_PRODUCER_EPOCH")
            self._judge(answer["ErrorCode"])
            self.producer_id, self.epoch = answer["ProducerId"], answer["ProducerEpoch"]
            self._sequences.clear()

        self._until_done(once, "EndTxn")

    def _judge(self, code: int, kind: int = TRANSACTION, key: str = "") -> None:
        if code in AGAIN:
            self._coordinators.pop((kind, key or self.name), None)
            raise _AskAgain(ErrorCode(code).name)
        if code in ABORTABLE:
            raise AbortableError(ErrorCode(code).name)
        if code:
            raise FencedError(ErrorCode(code).name)

    def _until_done(self, once: Callable[[], T], what: str) -> T:
        give_up_at = time.monotonic() + self.hangs_s
        while True:
            try:
                return once()
            except (AbortableError, FencedError) as problem:
                raise type(problem)(f"{what}: {problem}") from problem
            except _AskAgain as problem:
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"{what}: {problem}") from problem
                time.sleep(PAUSE_S)

    def _of_coordinator(self, kind: int, key: str, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        if (kind, key) not in self._coordinators:
            found = self._lines.ask_any("FindCoordinator", 4, {"KeyType": kind, "CoordinatorKeys": [key]})
            one = found["Coordinators"][0]
            if one["ErrorCode"]:
                raise _AskAgain(ErrorCode(one["ErrorCode"]).name)
            self._coordinators[kind, key] = f"{one['Host']}:{one['Port']}"
        try:
            return self._lines.ask(self._coordinators[kind, key], api, version, values)
        except _AskAgain:
            self._coordinators.pop((kind, key), None)
            raise

    def _leader(self, topic: str, partition: int) -> str:
        if (topic, partition) not in self._leaders:
            found = self._lines.ask_any("Metadata", 9, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})
            brokers = {one["NodeId"]: f"{one['Host']}:{one['Port']}" for one in found["Brokers"]}
            for each in found["Topics"][0]["Partitions"]:
                if each["LeaderId"] in brokers:
                    self._leaders[topic, each["PartitionIndex"]] = brokers[each["LeaderId"]]
        if (topic, partition) not in self._leaders:
            raise _AskAgain("it is not led")
        return self._leaders[topic, partition]


class Shown(NamedTuple):
    """By one read_committed Fetch: every batch with its records, up to `next_offset`."""

    next_offset: int
    last_stable_offset: int
    records: list[tuple[int, int, bytes]]
    """Offset, producer id, value: aborted ones too."""
    aborted: list[tuple[int, int]]
    """Producer id, first offset."""
    aborts: list[tuple[int, int]]
    """Offset of the marker, producer id."""


def fetch_committed(line: RawConnection, topic: str, partition: int, offset: int, *, max_bytes: int) -> Shown | int:
    """What one Fetch shows of a partition, or its error."""
    wanted = {
        "Partition": partition, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "LastFetchedEpoch": -1,
        "LogStartOffset": -1, "PartitionMaxBytes": max_bytes,
    }  # fmt: skip
    asked = {
        "ReplicaId": -1, "MaxWaitMs": 20, "MinBytes": 1, "MaxBytes": max_bytes, "IsolationLevel": COMMITTED_ONLY,
        "SessionId": 0, "SessionEpoch": -1, "Topics": [{"Topic": topic, "Partitions": [wanted]}],
        "ForgottenTopicsData": [], "RackId": "",
    }  # fmt: skip
    answer = line.ask("Fetch", 12, asked)
    if answer["ErrorCode"]:
        return int(answer["ErrorCode"])
    (found,) = answer["Responses"][0]["Partitions"]
    if found["ErrorCode"]:
        return int(found["ErrorCode"])
    shown = Shown(
        offset, found["LastStableOffset"], [],
        [(one["ProducerId"], one["FirstOffset"]) for one in found["AbortedTransactions"] or ()], [],
    )  # fmt: skip
    for each in read_batches(found["Records"] or b""):
        assert each["crc_right"], each["base_offset"]
        producer_id = each["producer"][0]
        if each["attributes"] & CONTROL:
            (_version, kind) = struct.unpack(">hh", each["records"][0][2])
            if kind == 0:
                shown.aborts.append((each["base_offset"], producer_id))
        else:
            shown.records.extend(
                (each["base_offset"] + delta, producer_id, value)
                for delta, _stamp, _key, value, _headers in each["records"]
            )
        shown = shown._replace(next_offset=each["base_offset"] + each["last_offset_delta"] + 1)
    return shown
