"""Dialogues about compacted topics: what may be written to them, and what is asked of a log that was cleaned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.integration.differential.dialogue import BASE_MS, Dialogue, Scenario, stable_versions
from tests.integration.differential.scenarios_admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    change,
    describe,
)
from tests.integration.differential.scenarios_data import a_batch, bounds, fetch, list_offsets, produce
from tests.integration.differential.scenarios_transactions import Id
from tests.support.raw_client import RawConnection
from tests.support.record_batches import (
    DELETE_HORIZON,
    GZIP,
    LZ4,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Record,
    read_batches,
)

SETTINGS = {
    "transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1",
    "log.cleaner.backoff.ms": "50", "log.retention.check.interval.ms": "100",
}  # fmt: skip
"""Of both brokers: cleaning begins soon."""
OF_KAFKA = {"log.initial.task.delay.ms": "50"}
CLEANED_SOON = {"cleanup.policy": "compact", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0"}
"""Of a topic. A batch that is a minute younger than a segment's first one begins the next segment."""
MINUTE_MS = 60_001
COMPACTION_SCENARIOS: dict[str, Scenario] = {}
OF_TOPICS = [
    "cleanup.policy", "delete.retention.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
]  # fmt: skip
OF_BROKERS = [
    "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.delete.retention.ms",
    "log.cleaner.enable", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.max.compaction.lag.ms", "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms", "log.cleaner.threads", "log.cleanup.policy",
]  # fmt: skip


def scenario(function: Scenario) -> Scenario:
    """Register a scenario of both brokers with `SETTINGS` under its function's name."""
    COMPACTION_SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


# ---- what may be written ------------------------------------------------------------------------------------------


@scenario
def attribute_bit_6_of_a_client(d: Dialogue) -> None:
    """The delete horizon, which only a cleaner sets."""
    for policy in ("compact", "delete"):
        for codec in (0, GZIP, ZSTD):
            topic = d.topic(f"{policy}-{codec}", configs={"cleanup.policy": policy})
            records = [Record(b"v", b"k"), Record(None, b"k", 5), Record(b"w", b"l", -3)]
            for version in (3, 9, 13):
                produce(d, topic, a_batch(records, codec=codec, attributes=DELETE_HORIZON), version=version)
            produce(d, topic, a_batch(records, codec=codec, attributes=DELETE_HORIZON, base_timestamp_ms=-1))
            for version in (4, 12):
                fetch(d, topic, version=version)
            for timestamp in (-2, -1, -3, BASE_MS - 3, BASE_MS, BASE_MS + 5):
                list_offsets(d, topic, timestamp, version=7)


@scenario
def records_without_a_key(d: Dialogue) -> None:
    for policy in ("compact", "compact,delete"):
        for codec in (0, GZIP, SNAPPY, LZ4, ZSTD):
            topic = d.topic(f"{len(policy)}-{codec}", configs={"cleanup.policy": policy})
            for version in (7, 9, 13):
                produce(d, topic, a_batch([Record(b"v")], codec=codec), version=version)
                mixed = [Record(b"v", b"k"), Record(b"v"), Record(None, b""), Record(None), Record(b"", b"x")]
                produce(d, topic, a_batch(mixed, codec=codec), version=version)
                produce(d, topic, a_batch([Record(None, b""), Record(b"v", b"")], codec=codec), version=version)
            bounds(d, topic)


@scenario
def a_topic_becomes_compacted(d: Dialogue) -> None:
    """And is none again: what was there stays, what comes is judged by the policy of now."""
    topic = d.topic("one")
    keyless, keyed = a_batch([Record(b"v")]), a_batch([Record(b"v", b"k")])
    steps: Sequence[tuple[str, int, str | None]] = [
        ("cleanup.policy", SET, "delete"), ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"), ("cleanup.policy", DELETE, None),
        ("cleanup.policy", SET, "compact"), ("cleanup.policy", SET, "compact,delete"), ("cleanup.policy", SET, ""),
    ]  # fmt: skip
    for step in steps:
        change(d, 1, TOPIC, topic, step)
        describe(d, 4, TOPIC, topic, OF_TOPICS, IncludeSynonyms=True)
        produce(d, topic, keyless)
        produce(d, topic, keyed)
        delete_records(d, topic, 1)
        bounds(d, topic)


@scenario
def records_of_compacted_topics_are_deleted(d: Dialogue) -> None:
    for policy in ("compact", "compact,delete", "delete,compact", "delete", ""):
        topic = d.topic(policy.replace(",", "-") or "none", configs={"cleanup.policy": policy})
        produce(d, topic, a_batch())
        for version in stable_versions("DeleteRecords"):
            for offset in (0, 1, -1, 7):
                delete_records(d, topic, offset, version)
        bounds(d, topic)


def delete_records(d: Dialogue, topic: str, offset: int, version: int = 2) -> None:
    one = {"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": offset}]}
    d.leader(topic).ask("DeleteRecords", version, {"Topics": [one], "TimeoutMs": 5000})


# ---- settings -----------------------------------------------------------------------------------------------------


@scenario
def settings_of_compaction(d: Dialogue) -> None:
    topic = d.topic("one", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3"})
    describe(d, 4, TOPIC, topic, OF_TOPICS, IncludeSynonyms=True, IncludeDocumentation=True)
    describe(d, 4, BROKER, "0", OF_BROKERS, IncludeSynonyms=True, IncludeDocumentation=True)
    values = {
        "min.cleanable.dirty.ratio": ("0", "1", "1.01", "-0.1", "x"), "delete.retention.ms": ("0", "-1", "5"),
        "min.compaction.lag.ms": ("0", "-1", "60000"), "max.compaction.lag.ms": ("0", "1", "59999", "60000"),
    }  # fmt: skip
    for name, given in values.items():
        for value in given:
            change(d, 1, TOPIC, topic, (name, SET, value))
    describe(d, 4, TOPIC, topic, OF_TOPICS, IncludeSynonyms=True)


@scenario
def settings_of_the_cleaner(d: Dialogue) -> None:
    """Of all brokers, changed while they run; and back."""
    values = {
        "log.cleaner.backoff.ms": ("100", "-1"), "log.cleaner.dedupe.buffer.size": ("20000000", "1000", "1"),
        "log.cleaner.delete.retention.ms": ("5000", "-1"), "log.cleaner.io.buffer.load.factor": ("0.5", "x"),
        "log.cleaner.io.buffer.size": ("262144", "1", "-1"), "log.cleaner.io.max.bytes.per.second": ("1000000.0", "x"),
        "log.cleaner.max.compaction.lag.ms": ("1000000", "0"), "log.cleaner.min.cleanable.ratio": ("0.6", "2", "-1"),
        "log.cleaner.min.compaction.lag.ms": ("7", "-1"), "log.cleaner.threads": ("2", "3", "0", "100"),
        "log.cleaner.enable": ("false",), "log.cleanup.policy": ("compact", "shred"),
    }  # fmt: skip
    for name, given in values.items():
        for value in given:
            change(d, 1, BROKER, "", (name, SET, value), ValidateOnly=True)
            change(d, 1, BROKER, "0", (name, SET, value), ValidateOnly=True)


# ---- what is asked of a log that was cleaned ----------------------------------------------------------------------


class CleanedTopic:
    """A compacted topic whose segments end where a scenario says."""

    def __init__(self, d: Dialogue, name: str, configs: dict[str, str] | None = None) -> None:
        self.d = d
        self.name = d.topic(name, configs=CLEANED_SOON | (configs or {}))
        self.now_ms = BASE_MS
        self.step_ms = 1000

    def write(self, *batches: list[Record], version: int = 9, **more: Any) -> None:
        """Each of them in a request of its own; `step_ms` apart."""
        for records in batches:
            self.now_ms += self.step_ms
            produce(self.d, self.name, a_batch(records, base_timestamp_ms=self.now_ms, **more), version=version)

    def end_segment(self) -> None:
        """With the next batch."""
        self.now_ms += MINUTE_MS

    def wait_cleaned(self, offsets: Sequence[int]) -> None:
        """Until these are the first offsets of all batches below the active segment."""
        self.d.until(lambda: self.first_offsets()[: len(offsets)] == list(offsets))

    def first_offsets(self) -> list[int]:
        """Of all batches."""
        found: list[int] = []
        asked = {"Topics": [{"Name": self.name}], "AllowAutoTopicCreation": False}
        answer = self.d.guide("Metadata", 12, asked)
        ports = {broker["NodeId"]: broker["Port"] for broker in answer["Brokers"]}
        port = ports[answer["Topics"][0]["Partitions"][0]["LeaderId"]]
        end, offset = -1, 0
        with RawConnection("127.0.0.1", port) as leader:
            while offset != end:
                part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
                topics = [{"Topic": self.name, "Partitions": [part]}]
                limits = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 24}
                [topic] = leader.ask("Fetch", 12, {**limits, "Topics": topics})["Responses"]
                end = topic["Partitions"][0]["HighWatermark"]
                batches = read_batches(topic["Partitions"][0]["Records"] or b"")
                found += [one["base_offset"] for one in batches]
                offset = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1 if batches else end
        return found

    def ask_everywhere(self, end: int, *, versions: Sequence[int] = (12,)) -> None:
        """What Fetch answers from each offset, ListOffsets for each time, and for each epoch where it ends."""
        for version in versions:
            for offset in range(end + 2):
                fetch(self.d, self.name, offset, version=version)
                fetch(self.d, self.name, offset, version=version, IsolationLevel=1)
        for timestamp in (-1, -2, -3, -4):
            list_offsets(self.d, self.name, timestamp, version=8)
            list_offsets(self.d, self.name, timestamp, version=8, IsolationLevel=1)
        for timestamp in range(self.now_ms - 300_000, self.now_ms + 3000, 1000):
            list_offsets(self.d, self.name, timestamp, version=7)
        for relative in (-1, 0, 1):
            one = {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": self.d.epoch(relative)}
            values = {"ReplicaId": -1, "Topics": [{"Topic": self.name, "Partitions": [one]}]}
            self.d.leader(self.name).ask("OffsetForLeaderEpoch", 4, values)

    def describe_producers(self) -> None:
        asked = {"Topics": [{"Name": self.name, "PartitionIndexes": [0]}]}
        self.d.leader(self.name).ask("DescribeProducers", 0, asked)


def _keyed(*keys: str, value: bytes | None = b"v") -> list[Record]:
    return [Record(value, key.encode()) for key in keys]


@scenario
def gaps_of_a_cleaned_log(d: Dialogue) -> None:
    """Batches that are gone, batches with holes, a tombstone; at the beginning, between, and at the end."""
    for codec in (0, LZ4):
        topic = CleanedTopic(d, f"codec-{codec}")
        topic.write(_keyed("a", "a"), _keyed("a", "b", "c"), _keyed("a"), _keyed("d"), codec=codec)
        topic.end_segment()
        topic.write(_keyed("b", value=None), _keyed("c", "a", "e"), _keyed("f"), codec=codec)
        topic.end_segment()
        topic.write(_keyed("f"), _keyed("e"), codec=codec)
        topic.end_segment()
        topic.write(_keyed("g"), _keyed("g"), codec=codec)
        topic.wait_cleaned([6, 7, 8, 12, 13, 14])
        topic.ask_everywhere(16, versions=(4, 12))


@scenario
def a_cleaned_log_goes_on(d: Dialogue) -> None:
    """A second cleaning of what was cleaned; the tombstone of the first one is gone then."""
    topic = CleanedTopic(d, "one", {"delete.retention.ms": "0"})
    topic.write(_keyed("a", "b"), _keyed("a", value=None), _keyed("c"), _keyed("c"))
    topic.end_segment()
    topic.write(_keyed("d"), _keyed("d"))
    topic.wait_cleaned([0, 2, 4, 5, 6])
    topic.end_segment()
    topic.write(_keyed("d"))
    topic.wait_cleaned([0, 4, 6, 7])
    topic.ask_everywhere(8)
    topic.end_segment()
    topic.write(_keyed("b", "c"))
    topic.end_segment()
    topic.write(_keyed("e"))
    topic.wait_cleaned([7, 8, 10])
    topic.ask_everywhere(11)


@scenario
def records_are_deleted_from_a_cleaned_log(d: Dialogue) -> None:
    """Up to an offset in a gap, and within a batch that has holes."""
    topic = CleanedTopic(d, "one", {"cleanup.policy": "compact,delete"})
    topic.write(_keyed("a"), _keyed("b", "c", "d"), _keyed("e"), _keyed("f"), _keyed("c", "e"))
    topic.end_segment()
    topic.write(_keyed("z"))
    topic.wait_cleaned([0, 1, 5, 6, 8])
    for offset in (0, 2, 4, 5, 7, 8, 9, -1):
        delete_records(d, topic.name, offset)
        bounds(d, topic.name)
        for at in range(10):
            fetch(d, topic.name, at)


@scenario
def a_cleaned_log_with_producers(d: Dialogue) -> None:
    """The last batch of an idempotent producer stays, without its records; what it sends again is known."""
    topic = CleanedTopic(d, "one")
    identifier = d.leader(topic.name).ask("InitProducerId", 4, {"TransactionalId": None})["ProducerId"]

    def send(sequence: int, *keys: str) -> None:
        topic.write(_keyed(*keys), producer=(identifier, 0, sequence))

    send(0, "a")
    send(1, "b", "c")
    topic.write(_keyed("a", "b", "c"))
    topic.end_segment()
    topic.write(_keyed("d"))
    topic.wait_cleaned([1, 3, 6])
    topic.ask_everywhere(7)
    topic.describe_producers()
    for sequence, keys in ((1, "bc"), (0, "a"), (2, "d"), (7, "e")):
        send(sequence, *keys)
    topic.ask_everywhere(9)


@scenario
def a_cleaned_log_with_transactions(d: Dialogue) -> None:
    """One is committed, one aborted, and their markers."""
    topic = CleanedTopic(d, "one", {"delete.retention.ms": "0", "message.timestamp.after.max.ms": "99999999"})
    topic.now_ms += 99 * MINUTE_MS  # so that no marker, which has the time of now, begins a segment
    for commit in (True, False):
        one = Id(d, f"t-{commit}".lower())
        one.init()
        for keys in (("a", "b"), ("c",)):
            place = (one.producer["ProducerId"], one.producer["ProducerEpoch"], 0 if len(keys) == 2 else 2)
            topic.now_ms += 1000
            records = a_batch(_keyed(*keys), attributes=TRANSACTIONAL, producer=place, base_timestamp_ms=topic.now_ms)
            produce(d, topic.name, records, version=12, TransactionalId=one.name)
        one.end(commit=commit)
        one.settle()
    topic.write(_keyed("b"), _keyed("d"))
    topic.ask_everywhere(10)
    topic.describe_producers()
    topic.end_segment()
    topic.write(_keyed("e"))
    topic.wait_cleaned([0, 2, 3, 7, 8, 9, 10])
    topic.ask_everywhere(11)
    for end in range(12, 17):  # the cleaning of each round is seen by the record of the round before, which goes
        topic.end_segment()
        topic.write(_keyed("f"))
        topic.wait_cleaned([0, 2, 3, 7, 8, 9, 10, *range(max(11, end - 2), end)])
    topic.ask_everywhere(16)
    topic.describe_producers()
