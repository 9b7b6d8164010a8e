"""Write ``tests/coordinator/golden/transactions.json``: what Apache Kafka answers and writes for transactions.

Two Kafkas of its own are started, transactional ids are driven by raw requests, and after each request the records that
``__transaction_state`` (one partition here) has got since the last one are read, and the markers in the topic of data.
Needs Java 17::

    python tools/golden_transactions.py

The file has the steps in their order, by part. A step is a request, its answer, `batches`: the record batches that came
with it, until its transaction was at rest, each a list of records, and `markers`. `later` marks what came by itself (a
timer). Bytes are hexadecimal.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.kafka_peer import KAFKA_VERSION, KafkaPeer  # noqa: E402 - after the path is set
from tests.support.raw_client import RawConnection  # noqa: E402
from tests.support.record_batches import read_batches  # noqa: E402
from tpc_broker.kafka import decode  # noqa: E402

PATH = ROOT / "tests" / "coordinator" / "golden" / "transactions.json"
OVERRIDES = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
EXPIRY_MS = 20_000
EXPIRING = {
    **OVERRIDES,
    "transactional.id.expiration.ms": str(EXPIRY_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}
PATIENCE_S = 120.0
TOPIC, PARTITIONS = "data", 3
LAST_EPOCH = 32_766


def plain(value: Any) -> Any:
    """As JSON can say it."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.hex() if isinstance(value, (bytes, memoryview)) else value


def described(key: bytes, value: bytes | None) -> dict[str, Any]:
    shown_key = decode("TransactionLogKey", 0, key[2:]).to_dict()
    shown = None if value is None else decode("TransactionLogValue", int.from_bytes(value[:2], "big"), value[2:])
    return {
        "key": key.hex(),
        "value": None if value is None else value.hex(),
        "means": {"key": plain(shown_key), "value": None if shown is None else plain(shown.to_dict())},
    }


class Recorder:
    def __init__(self, port: int) -> None:
        self.connection = RawConnection("127.0.0.1", port)
        self.steps: list[dict[str, Any]] = []
        self.offset = 0
        self.data_offsets = [0] * PARTITIONS

    # ---- the logs ---------------------------------------------------------------------------------------------------

    def read(self, topic: str, index: int, offset: int) -> tuple[list[dict[str, Any]], int]:
        found: list[dict[str, Any]] = []
        while True:
            partition = {"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            topics = [{"Topic": topic, "Partitions": [partition]}]
            answer = self.connection.ask("Fetch", 11, {"MaxBytes": 1 << 20, "ReplicaId": -1, "Topics": topics})
            batches = read_batches(answer["Responses"][0]["Partitions"][0]["Records"] or b"")
            if not batches:
                return found, offset
            found += batches
            offset = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1

    def fetched(self) -> list[list[dict[str, Any]]]:
        """The batches that are new."""
        batches, self.offset = self.read("__transaction_state", 0, self.offset)
        return [[described(key, value) for _, _, key, value, _ in batch["records"]] for batch in batches]

    def markers(self) -> list[dict[str, Any]]:
        found = []
        for index in range(PARTITIONS):
            batches, self.data_offsets[index] = self.read(TOPIC, index, self.data_offsets[index])
            for batch in batches:
                if batch["attributes"] & 0x20:
                    [(_, _, key, value, _)] = batch["records"]
                    found.append({
                        "partition": index, "producer_id": batch["producer"][0],
                        "producer_epoch": batch["producer"][1], "key": key.hex(), "value": value.hex(),
                    })  # fmt: skip
        return found

    def state(self, name: str) -> dict[str, Any]:
        answer = self.connection.ask("DescribeTransactions", 0, {"TransactionalIds": [name]})
        found: dict[str, Any] = answer["TransactionStates"][0]
        return found

    def wait_for(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not holds(found := self.state(name)):
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)

    def later(self, what: str) -> None:
        """What has come by itself since the last request, as a step when there is any."""
        batches, markers = self.fetched(), self.markers()
        if batches or markers:
            self.steps.append({"what": what, "later": True, "batches": batches, "markers": markers})

    # ---- requests ---------------------------------------------------------------------------------------------------

    def ask(self, what: str, name: str, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        answer = self.connection.ask(api, version, values)
        self.wait_for(name, lambda found: not found["TransactionState"].startswith("Prepare"))
        step = {"what": what, "api": api, "version": version, "request": plain(values), "answer": plain(answer)}
        self.steps.append({**step, "batches": self.fetched(), "markers": self.markers()})
        return answer

    def init(self, what: str, name: str, pid: int = -1, epoch: int = -1, **more: int) -> tuple[int, int]:
        """`more`: timeout_ms, version."""
        version = more.get("version", 5)
        values: dict[str, Any] = {"TransactionalId": name, "TransactionTimeoutMs": more.get("timeout_ms", 60_000)}
        if version >= 3:
            values |= {"ProducerId": pid, "ProducerEpoch": epoch}
        answer = self.ask(what, name, "InitProducerId", version, values)
        return answer["ProducerId"], answer["ProducerEpoch"]

    def init_retried(self, what: str, name: str, pid: int = -1, epoch: int = -1) -> tuple[int, int]:
        """Of an open transaction: refused, and then taken."""
        self.init(what, name, pid, epoch)
        return self.init(f"{what}, again", name, pid, epoch)

    def end(self, what: str, name: str, pid: int, epoch: int, **how: Any) -> tuple[int, int]:
        """`how`: commit, version."""
        commit, version = how["commit"], how.get("version", 5)
        values = {"TransactionalId": name, "ProducerId": pid, "ProducerEpoch": epoch, "Committed": commit}
        answer = self.ask(what, name, "EndTxn", version, values)
        return answer.get("ProducerId", -1), answer.get("ProducerEpoch", -1)

    def add(self, what: str, name: str, pid: int, epoch: int, *indexes: int, **how: Any) -> None:
        """`how`: version, verify."""
        version, verify = how.get("version", 5), how.get("verify", False)
        topics = [{"Name": TOPIC, "Partitions": list(indexes)}]
        if version >= 4:
            one = {"TransactionalId": name, "ProducerId": pid, "ProducerEpoch": epoch, "VerifyOnly": verify}
            self.ask(what, name, "AddPartitionsToTxn", version, {"Transactions": [{**one, "Topics": topics}]})
            return
        values = {
            "V3AndBelowTransactionalId": name, "V3AndBelowProducerId": pid, "V3AndBelowProducerEpoch": epoch,
            "V3AndBelowTopics": topics,
        }  # fmt: skip
        self.ask(what, name, "AddPartitionsToTxn", version, values)

    def add_offsets(self, what: str, name: str, pid: int, epoch: int, version: int = 4) -> None:
        values = {"TransactionalId": name, "ProducerId": pid, "ProducerEpoch": epoch, "GroupId": "g"}
        self.ask(what, name, "AddOffsetsToTxn", version, values)

    def describe(self, what: str, *names: str) -> None:
        self.ask(what, names[0], "DescribeTransactions", 0, {"TransactionalIds": list(names)})

    def bump_to(self, name: str, pid: int, epoch: int, wanted: int) -> int:
        """Its epoch, raised by as many InitProducerId as it takes, of which only the last is a step."""
        while epoch < wanted - 1:
            named = {"TransactionalId": name, "ProducerId": pid, "ProducerEpoch": epoch}
            values = {**named, "TransactionTimeoutMs": 60_000}
            answer = self.connection.ask("InitProducerId", 5, values)
            assert answer["ErrorCode"] == 0, answer
            epoch = answer["ProducerEpoch"]
        self.fetched()
        self.steps.append({"what": "raised", "name": name, "pid": pid, "epoch": epoch, "batches": [], "markers": []})
        return self.init("one before", name, pid, epoch)[1]

    def topic(self, name: str, count: int) -> None:
        wanted = {"Name": name, "NumPartitions": count, "ReplicationFactor": 1}
        self.connection.ask("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            [found] = self.connection.ask("Metadata", 12, {"Topics": [{"Name": name}]})["Topics"]
            if sum(one["ErrorCode"] == 0 for one in found["Partitions"]) == count:
                return
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)

    def wait_for_coordinators(self) -> None:
        for kind, name, api in ((1, "probe", "transactions"), (0, "g", "groups")):
            give_up_at = time.monotonic() + PATIENCE_S
            while True:
                asked = {"CoordinatorKeys": [name], "KeyType": kind}
                if self.connection.ask("FindCoordinator", 6, asked)["Coordinators"][0]["ErrorCode"] == 0:
                    break
                assert time.monotonic() < give_up_at, api
                time.sleep(0.1)
        asked = {"TransactionalId": "probe", "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
        give_up_at = time.monotonic() + PATIENCE_S
        while self.connection.ask("InitProducerId", 5, asked)["ErrorCode"]:
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        self.fetched()


# ---- what is recorded ---------------------------------------------------------------------------------------------


def of_tv2(r: Recorder) -> None:
    """A client of transactions' version 2: every state, every answer."""
    name = "two"
    r.add("partitions of an unknown id", name, 7, 0, 0)
    r.add("verified of an unknown id", name, 7, 0, 0, verify=True)
    r.end("end of an unknown id", name, 7, 0, commit=True)
    r.describe("an unknown id", name, "")
    pid, e = r.init("a new id", name)
    r.init("again, without an epoch", name)
    _, e = r.init("again, with the epoch", name, pid, 1)
    r.init("the same again", name, pid, 1)
    r.init("two behind", name, pid, 0)
    r.init("two behind, by an old client", name, pid, 0, version=3)
    r.init("ahead", name, pid, 9)
    r.init("another producer id", name, pid + 1000, e)
    r.end("commit of an empty one", name, pid, e, commit=True)
    r.end("abort of an empty one, one behind", name, pid, e - 1, commit=False)
    _, e = r.end("abort of an empty one", name, pid, e, commit=False)
    r.end("the abort again", name, pid, e - 1, commit=False)
    r.end("a commit in its place", name, pid, e - 1, commit=True)
    r.end("a commit after the abort", name, pid, e, commit=True)
    _, e = r.end("an abort after the abort", name, pid, e, commit=False)
    in_a_transaction(r, name, pid, e)


def in_a_transaction(r: Recorder, name: str, pid: int, e: int) -> None:
    """Of a client of version 2, from CompleteAbort on."""
    r.add("verified of an aborted one", name, pid, e, 0, verify=True)
    r.add("partitions", name, pid, e, 0, 1)
    r.add("the same partitions", name, pid, e, 1, 0)
    r.add("verified", name, pid, e, 0, 2, verify=True)
    r.add("another partition", name, pid, e, 2)
    r.add("one behind", name, pid, e - 1, 2)
    r.add("verified one behind", name, pid, e - 1, 2, verify=True)
    r.add("ahead", name, pid, e + 1, 2)
    r.add("another producer id", name, pid + 1000, e, 2)
    r.add("verified of another producer id", name, pid + 1000, e, 2, verify=True)
    r.add_offsets("offsets", name, pid, e)
    r.describe("an open one", name)
    r.end("one behind", name, pid, e - 1, commit=True)
    r.end("ahead", name, pid, e + 1, commit=True)
    r.end("another producer id", name, pid + 1000, e, commit=True)
    _, e = r.end("commit", name, pid, e, commit=True)
    r.end("the commit again", name, pid, e - 1, commit=True)
    r.end("an abort in its place", name, pid, e - 1, commit=False)
    r.end("a commit without partitions", name, pid, e, commit=True)
    r.add("verified after the commit", name, pid, e, 0, verify=True)
    _, e = r.end("an abort without partitions after the commit", name, pid, e, commit=False)
    r.add("partitions", name, pid, e, 0)
    _, e = r.end("abort", name, pid, e, commit=False)
    r.describe("an aborted one", name)
    by_others(r, name, pid, e)


def by_others(r: Recorder, name: str, pid: int, e: int) -> None:
    """InitProducerId of open transactions."""
    r.init("with the epoch before", name, pid, e - 1)
    _, e = r.init("with the epoch", name, pid, e)
    r.add("partitions", name, pid, e, 0)
    pid, e = r.init_retried("without an epoch, of an open one", name)
    r.add("partitions", name, pid, e, 0)
    pid, e = r.init_retried("with the epoch, of an open one", name, pid, e)
    r.add("partitions", name, pid, e, 0)
    r.init("ahead, of an open one", name, pid, e + 5)
    pid, e = r.init("with the epoch", name, pid, e + 1)
    r.add("partitions", name, pid, e, 0)
    r.init("three behind, of an open one", name, pid, e - 3)
    pid, e = r.init("three behind, again", name, pid, e - 3)
    pid, e = r.init("without an epoch", name)
    r.add("partitions of version 4", name, pid, e, 0, version=4)
    r.end("commit by an old client", name, pid, e, commit=True, version=4)
    r.end("the commit again", name, pid, e, commit=True, version=4)
    r.end("an abort by a new client", name, pid, e, commit=False)


def by_time(r: Recorder) -> None:
    for version, name in ((5, "timed"), (4, "timed-old")):
        pid, e = r.init("a new id", name, timeout_ms=300)
        r.add("partitions", name, pid, e, 0, version=5 if version == 5 else 3)
        r.wait_for(name, lambda found: found["TransactionState"] == "CompleteAbort")
        r.later("time is over")
        r.end("commit by the old epoch", name, pid, e, commit=True, version=version)
        r.end("abort by the old epoch", name, pid, e, commit=False, version=version)
        r.end("commit by the new epoch", name, pid, e + 1, commit=True, version=version)
        r.describe("by time", name)
        r.init("with the old epoch", name, pid, e)
        r.init("with the old epoch again", name, pid, e)
    r.init("too long", "timed", timeout_ms=900_001)
    r.init("no time", "timed", timeout_ms=0)


def of_tv1(r: Recorder) -> None:
    """A client of before: the epoch stays."""
    name = f"one-{len(r.steps)}"
    pid, e = r.init("a new id", name, version=1)
    r.end("commit of an empty one", name, pid, e, commit=True, version=3)
    r.end("abort of an empty one", name, pid, e, commit=False, version=3)
    r.add("verified, not open", name, pid, e, 0, version=4, verify=True)
    r.add("partitions", name, pid, e, 0, 2, version=3)
    r.add("one ahead", name, pid, e + 1, 1, version=3)
    r.add("one ahead, by an older client", name, pid, e + 1, 1, version=1)
    r.add("verified", name, pid, e, 0, version=4, verify=True)
    r.add_offsets("offsets", name, pid, e, version=3)
    r.add_offsets("offsets, one ahead, by an older client", name, pid, e + 1, version=1)
    r.end("commit", name, pid, e, commit=True, version=4)
    r.end("the commit again", name, pid, e, commit=True, version=4)
    r.end("an abort in its place", name, pid, e, commit=False, version=4)
    r.end("a commit by a new client", name, pid, e, commit=True, version=5)
    r.add("partitions", name, pid, e, 1, version=2)
    r.end("abort", name, pid, e, commit=False, version=1)
    r.end("the abort again", name, pid, e, commit=False, version=1)
    r.end("a commit in its place", name, pid, e, commit=True, version=1)
    r.end("one ahead, by an old client", name, pid, e + 1, commit=True, version=1)
    pid, e = r.init("without an epoch", name, version=2)
    r.add("partitions", name, pid, e, 1, version=3)
    pid, e = r.init_retried("without an epoch, of an open one", name)
    pid, e = r.init("with the epoch", name, pid, e, version=3)
    pid, e = r.init("with the epoch before", name, pid, e - 1, version=3)
    r.add("partitions", name, pid, e, 1, version=3)
    pid, e = r.init_retried("with the epoch, of an open one", name, pid, e)


def of_last_epochs(r: Recorder) -> None:
    name = "last"
    pid, e = r.init("a new id", name)
    e = r.bump_to(name, pid, e, LAST_EPOCH)
    r.add("partitions", name, pid, e, 0)
    new_pid, _ = r.end("commit with the last epoch", name, pid, e, commit=True)
    r.describe("it has a new producer id", name)
    r.end("the commit again", name, pid, e, commit=True)
    r.end("an abort in its place", name, pid, e, commit=False)
    r.add("partitions of the old producer id", name, pid, e, 0)
    e = r.bump_to(name, new_pid, 0, LAST_EPOCH)
    r.add("partitions", name, new_pid, e, 0)
    r.init_retried("without an epoch, of an open one with the last epoch", name)
    name = "last-init"
    pid, e = r.init("a new id", name)
    e = r.bump_to(name, pid, e, LAST_EPOCH)
    r.init("with the last epoch", name, pid, e)
    r.init("the same again", name, pid, LAST_EPOCH)
    name = "last-fence"
    pid, e = r.init("a new id", name)
    e = r.bump_to(name, pid, e, LAST_EPOCH)
    r.add("partitions", name, pid, e, 0)
    r.init_retried("with the last epoch, of an open one", name, pid, e)
    name = "last-time"
    pid, e = r.init("a new id", name)
    e = r.bump_to(name, pid, e, LAST_EPOCH - 1)
    pid, e = r.init("less time", name, pid, e, timeout_ms=300)
    r.add("partitions", name, pid, e, 0)
    r.wait_for(name, lambda found: found["TransactionState"] == "CompleteAbort")
    r.later("time is over at the last epoch")
    r.init("with the last epoch", name, pid, e)
    r.init("without an epoch", name)


def of_lists(r: Recorder) -> None:
    def listed(what: str, version: int, **filters: Any) -> None:
        asked = {"StateFilters": [], "ProducerIdFilters": [], **filters}
        r.ask(what, "probe", "ListTransactions", version, asked)

    pid, e = r.init("a new id", "list-a")
    r.init("another", "list-b")
    r.add("partitions", "list-a", pid, e, 0)
    listed("all", 0)
    listed("of a state", 0, StateFilters=["Ongoing"])
    listed("of unknown states", 0, StateFilters=["ongoing", "Nothing", "Dead", "PrepareEpochFence"])
    listed("of a producer id", 0, ProducerIdFilters=[pid])
    listed("of a time", 1, DurationFilter=1_000_000)
    listed("of no time", 1, DurationFilter=0)
    listed("by a pattern", 2, DurationFilter=-1, TransactionalIdPattern="list-.*")
    listed("by half a pattern", 2, DurationFilter=-1, TransactionalIdPattern="list")
    listed("by no pattern", 2, DurationFilter=-1, TransactionalIdPattern="")
    listed("by a bad pattern", 2, DurationFilter=-1, TransactionalIdPattern="(")
    r.end("abort", "list-a", pid, e, commit=False)


def of_level(r: Recorder, level: int) -> None:
    asked = {"timeoutMs": 10_000, "FeatureUpdates": [
        {"Feature": "transaction.version", "MaxVersionLevel": level, "UpgradeType": 2}
    ], "ValidateOnly": False}  # fmt: skip
    answer = r.connection.ask("UpdateFeatures", 1, asked)
    assert answer["ErrorCode"] == 0, answer
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        told = r.connection.ask("ApiVersions", 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
        levels = {each["Name"]: each["MaxVersionLevel"] for each in told["FinalizedFeatures"]}
        if levels.get("transaction.version", 0) == level:
            return
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def by_expiry(r: Recorder) -> None:
    pid, e = r.init("a new id", "gone-a")
    r.add("partitions", "gone-a", pid, e, 0, version=3)
    r.end("commit", "gone-a", pid, e, commit=True, version=3)
    r.init("another", "gone-b")
    for name in ("gone-a", "gone-b"):
        r.wait_for(name, lambda found: found["ErrorCode"] == 105)
    r.later("they are gone")


def recorded(overrides: dict[str, str], parts: dict[str, Callable[[Recorder], None]]) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        peer = KafkaPeer(Path(folder), overrides)
        peer.start()
        try:
            recorder = Recorder(peer.ports[0])
            recorder.topic(TOPIC, PARTITIONS)
            recorder.wait_for_coordinators()
            for name, part in parts.items():
                recorder.steps = []
                part(recorder)
                found[name] = recorder.steps
        finally:
            peer.stop()
    return found


def at_level(level: int, part: Callable[[Recorder], None]) -> Callable[[Recorder], None]:
    def run(recorder: Recorder) -> None:
        of_level(recorder, level)
        part(recorder)

    return run


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    parts = recorded(OVERRIDES, {
        "of_tv2": of_tv2, "by_time": by_time, "of_tv1": of_tv1, "of_lists": of_lists,
        "of_last_epochs": of_last_epochs,
    })  # fmt: skip
    parts |= recorded(EXPIRING, {
        "of_tv1_at_level_1": at_level(1, of_tv1), "by_time_at_level_1": by_time,
        "of_tv1_at_level_0": at_level(0, of_tv1), "by_expiry": by_expiry,
    })  # fmt: skip
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]"
        for name, steps in parts.items()
    ]
    text = f'{{"kafka": {json.dumps(KAFKA_VERSION)}, "parts": {{\n' + ",\n".join(lines) + "\n}}\n"
    PATH.write_text(text)
    sys.stdout.write(f"{PATH}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
