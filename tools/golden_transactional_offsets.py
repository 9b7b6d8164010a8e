"""Write ``tests/coordinator/golden/transactional_offsets.json``: what Apache Kafka writes for offsets in transactions.

A Kafka of its own is started, librdkafka's transactional producers send offsets of groups, and after each step the
batches that ``__consumer_offsets`` (one partition here) has got since the last one are read as they are, and all groups
are asked for their offsets, stable ones and any. Needs Java 17::

    python tools/golden_transactional_offsets.py

The file has the steps in their order: `what` was done, the `batches` that came with it (hexadecimal), and what Kafka
`told` then: by group, and by whether stable offsets were asked for, (offset, error code) of each partition.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.kafka_peer import KAFKA_VERSION, KafkaPeer  # noqa: E402 - after the path is set
from tests.support.raw_client import RawConnection  # noqa: E402
from tpc_broker.kafka.records import read_batches  # noqa: E402

PATH = ROOT / "tests" / "coordinator" / "golden" / "transactional_offsets.json"
TOPIC, PARTITIONS = "data", 3
GROUPS = ("g", "h")
PATIENCE_S = 60.0
OVERRIDES = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


class Recorder:
    def __init__(self, port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self.connection = RawConnection("127.0.0.1", port)
        self.steps: list[dict[str, Any]] = []
        self.offset = 0
        self.producers: dict[str, confluent_kafka.Producer] = {}
        self.members = {
            group: confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
            for group in GROUPS
        }

    def until(self, action: Callable[[], Any]) -> Any:
        """What it returns, as soon as that is true."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (found := action()):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        return found

    def topic(self) -> None:
        wanted = {"Name": TOPIC, "NumPartitions": PARTITIONS, "ReplicationFactor": 1}
        self.connection.ask("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})
        self.until(lambda: self.plain_commit(1, "probe") == 0)
        self.fetched()

    def fetched(self) -> list[str]:
        """The batches that are new."""
        found: list[str] = []
        while True:
            partition = {"Partition": 0, "FetchOffset": self.offset, "PartitionMaxBytes": 1 << 20}
            topics = [{"Topic": "__consumer_offsets", "Partitions": [partition]}]
            answer = self.connection.ask("Fetch", 11, {"MaxBytes": 1 << 20, "ReplicaId": -1, "Topics": topics})
            batches = list(read_batches(answer["Responses"][0]["Partitions"][0]["Records"] or b""))
            if not batches:
                return found
            found += [batch.data.hex() for batch in batches]
            self.offset = batches[-1].last_offset + 1

    def told(self, group: str, *, stable: bool) -> list[tuple[int, int]]:
        wanted = [{"Name": TOPIC, "PartitionIndexes": list(range(PARTITIONS))}]
        asked = {"Groups": [{"GroupId": group, "MemberId": None, "Topics": wanted}], "RequireStable": stable}
        [answer] = self.connection.ask("OffsetFetch", 9, asked)["Groups"]
        found = {one["PartitionIndex"]: one for one in answer["Topics"][0]["Partitions"]}
        return [(found[index]["CommittedOffset"], found[index]["ErrorCode"]) for index in range(PARTITIONS)]

    def step(self, what: str, action: Callable[[], Any]) -> None:
        action()
        told = {
            group: {"any": self.told(group, stable=False), "stable": self.told(group, stable=True)} for group in GROUPS
        }
        self.steps.append({"what": what, "batches": self.fetched(), "told": told})

    # ---- clients ----------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        if name not in self.producers:
            self.producers[name] = confluent_kafka.Producer(
                {"bootstrap.servers": self.bootstrap, "transactional.id": name}
            )
            self.producers[name].init_transactions(PATIENCE_S)
        self.producers[name].begin_transaction()

    def send(self, name: str, group: str, *offsets: tuple[int, int]) -> None:
        wanted = [confluent_kafka.TopicPartition(TOPIC, *each) for each in offsets]
        metadata = self.members[group].consumer_group_metadata()
        self.producers[name].send_offsets_to_transaction(wanted, metadata, PATIENCE_S)

    def end(self, name: str, *, commit: bool) -> None:
        producer = self.producers[name]
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)

        def is_complete() -> bool:
            [found] = self.connection.ask("DescribeTransactions", 0, {"TransactionalIds": [name]})["TransactionStates"]
            return bool(found["TransactionState"].startswith("Complete"))

        self.until(is_complete)

    def plain_commit(self, offset: int, group: str, index: int = 0) -> int:
        partition = {"PartitionIndex": index, "CommittedOffset": offset, "CommittedMetadata": ""}
        topics = [{"Name": TOPIC, "Partitions": [partition]}]
        answer = self.connection.ask("OffsetCommit", 8, {"GroupId": group, "Topics": topics})
        error: int = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
        return error


def record(r: Recorder) -> None:
    def in_one(name: str, group: str, *offsets: tuple[int, int]) -> None:
        r.begin(name)
        r.send(name, group, *offsets)

    r.step("a plain commit", lambda: r.plain_commit(5, "g"))
    r.step("offsets in a transaction", lambda: in_one("a", "g", (0, 10), (1, 11)))
    r.step("the same partition once more", lambda: r.send("a", "g", (1, 12)))
    r.step("of another group", lambda: r.send("a", "h", (2, 13)))
    r.step("commit", lambda: r.end("a", commit=True))
    r.step("offsets in the next one", lambda: in_one("a", "g", (0, 20), (2, 21)))
    r.step("abort", lambda: r.end("a", commit=False))
    r.step("offsets, once more", lambda: in_one("a", "g", (0, 30), (1, 31)))
    r.step("a plain commit that comes later", lambda: r.plain_commit(29, "g"))
    r.step("offsets of another producer", lambda: in_one("b", "g", (1, 40), (2, 41)))
    r.step("the later one commits", lambda: r.end("b", commit=True))
    r.step("the earlier one commits", lambda: r.end("a", commit=True))
    r.step("two producers", lambda: (in_one("a", "h", (0, 50)), in_one("b", "h", (0, 60))))
    r.step("the earlier one commits first", lambda: r.end("a", commit=True))
    r.step("the later one aborts", lambda: r.end("b", commit=False))
    r.step("one that stays open", lambda: in_one("a", "g", (0, 70)))
    r.step("a group with something pending is deleted", lambda: delete(r, "g"))
    r.step("it commits", lambda: r.end("a", commit=True))
    r.step("and one that stays open at the end", lambda: in_one("b", "h", (0, 80), (1, 81)))


def delete(r: Recorder, group: str) -> None:
    answer = r.connection.ask("DeleteGroups", 2, {"GroupsNames": [group]})
    assert answer["Results"][0]["ErrorCode"] == 0, answer


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = KafkaPeer(Path(folder), OVERRIDES)
        peer.start()
        try:
            recorder = Recorder(peer.ports[0])
            recorder.topic()
            record(recorder)
        finally:
            peer.stop()
    steps = ",\n".join(json.dumps(step) for step in recorder.steps)
    text = f'{{"kafka": {json.dumps(KAFKA_VERSION)}, "steps": [\n{steps}\n]}}\n'
    PATH.write_text(text)
    sys.stdout.write(f"{PATH}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
