"""Reading a broker back after a crash, and holding it against the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.durability.conftest import against_kafka
from tests.durability.ledger import Identity, Ledger, Moment, Partition
from tests.durability.workload import client_settings, describe, found_progress
from tests.support.waiting import LOOK_S, eventually, patiently


def when_led(ask: Callable[[], Any]) -> Any:
    """The answer of `ask`, repeated while a broker that has just started refuses it with a retriable error."""

    def answer() -> tuple[Any] | None:
        try:
            return (ask(),)
        except KafkaException as problem:
            if not problem.args[0].retriable() and problem.args[0].code() not in _STARTING:
                raise
            return None

    return eventually(answer, "an answer", not_yet=())[0]  # type: ignore[index]


_STARTING = {
    KafkaError._TIMED_OUT,  # one request of the client's; the deadline here is longer
    KafkaError._UNKNOWN_PARTITION,  # what librdkafka makes of a partition that has no leader yet
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}


@dataclass
class StoredPartition:
    """Everything a broker serves of one partition."""

    log_start_offset: int
    high_watermark: int
    records: list[tuple[int, bytes]]


def read_everything(bootstrap: str, partitions: list[Partition]) -> dict[Partition, StoredPartition]:
    """Read partitions from their beginning to the high watermark that they have now."""
    consumer = Consumer(
        client_settings(
            bootstrap,
            **{
                "group.id": "read-back",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "queued.max.messages.kbytes": 65536,
            },
        )
    )
    try:
        found = {}
        for topic, index in partitions:
            asked = partial(consumer.get_watermark_offsets, TopicPartition(topic, index), timeout=LOOK_S)
            low, high = when_led(asked)
            found[topic, index] = StoredPartition(low, high, [])
        consumer.assign([TopicPartition(*key, one.log_start_offset) for key, one in found.items()])
        open_ones = {key for key, one in found.items() if one.high_watermark > one.log_start_offset}
        for _ in patiently(lambda: f"{sorted(map(describe, open_ones))} read to the end"):
            if not open_ones:
                break
            for message in consumer.consume(1000, 0.2):
                key = message.topic(), message.partition()
                error = message.error()
                if error is None:
                    found[key].records.append((message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(key)
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise AssertionError(f"{describe(key)}: {error}")
        return found
    finally:
        consumer.close()


def problems_of_records(
    stored: dict[Partition, StoredPartition], ledger: Ledger, moment: Moment, *, everything: bool, relaxed: bool = False
) -> list[str]:
    """How a broker's records contradict what clients were told before a moment; empty when they do not.

    `everything`: the producers were answered for all they sent, so all of it must be there. `relaxed`: records that
    were acknowledged may be missing, but nothing that a reader saw, and nothing may be doubled, swapped or invented.
    """
    problems: list[str] = []
    for key in ledger.partitions:
        problems += _problems_of_partition(key, stored[key], ledger, moment, everything=everything, relaxed=relaxed)
    return problems


def _problems_of_partition(
    key: Partition, stored: StoredPartition, ledger: Ledger, moment: Moment, *, everything: bool, relaxed: bool
) -> list[str]:
    name, problems = describe(key), []
    offsets = [offset for offset, _ in stored.records]
    if offsets != list(range(stored.log_start_offset, stored.high_watermark)):
        gap = next((at for at, offset in enumerate(offsets) if offset != stored.log_start_offset + at), len(offsets))
        problems.append(
            f"{name}: offsets are not contiguous from {stored.log_start_offset} to {stored.high_watermark}: "
            f"place {gap} holds {offsets[gap : gap + 3]}"
        )
    if stored.log_start_offset != 0:
        problems.append(f"{name}: the log starts at {stored.log_start_offset}, nobody deleted anything")
    identities: dict[int, Identity] = {}
    next_sequence: dict[int, int] = {}
    for offset, value in stored.records:
        try:
            identity = Identity.of(value)
        except ValueError as problem:
            problems.append(f"{name} offset {offset}: {problem}")
            continue
        identities[offset] = identity
        expected = next_sequence.get(identity.producer, 0)
        if (identity.topic, identity.partition) != key:
            problems.append(f"{name} offset {offset}: {identity} belongs elsewhere")
        elif identity.sequence < expected or (identity.sequence > expected and not relaxed):
            what = "a duplicate or a swap" if identity.sequence < expected else "a hole or a swap"
            problems.append(
                f"{name} offset {offset}: producer {identity.producer} record {identity.sequence} where "
                f"{expected} was due: {what}"
            )
        next_sequence[identity.producer] = identity.sequence + 1
    for (partition, producer), count in list(ledger.sent.items()):
        if partition == key and everything and next_sequence.get(producer, 0) != count:
            problems.append(f"{name}: {next_sequence.get(producer, 0)} of {count} records of producer {producer}")
        if partition == key and next_sequence.get(producer, 0) > count + 1:
            problems.append(f"{name}: producer {producer} sent {count} records, {next_sequence[producer]} are there")
    for kind, entries, length in (
        ("acknowledged", ledger.acknowledged[key], moment.acknowledged.get(key, 0)),
        ("seen by a reader", ledger.observed[key], moment.observed.get(key, 0)),
    ):
        if relaxed and kind == "acknowledged":
            continue
        lost = [(offset, one) for offset, one in entries[:length] if identities.get(offset) != one]
        if lost:
            offset, identity = lost[0]
            problems.append(
                f"{name}: {len(lost)} of {length} records that were {kind} are not at their offset; first {identity} "
                f"at {offset}, there is {identities.get(offset)} (end {stored.high_watermark})"
            )
    return problems


def problems_of_progress(bootstrap: str, ledger: Ledger, moment: Moment) -> list[str]:
    """How committed offsets, settings, topics and log starts contradict what was acknowledged before a moment."""
    found = when_led(partial(found_progress, bootstrap, *ledger.partitions[0]))
    names = ["committed", "altered", *([] if against_kafka() else ["trimmed"])]  # Kafka loses log starts
    problems = [
        f"{name}: acknowledged up to {moment.progress[name]}, asked for {ledger.progress[name].attempted}, "
        f"found {found[name]}"
        for name in names
        if not ledger.progress[name].holds(found[name], moment.progress[name])
    ]
    made, deleted = ledger.progress["made"], ledger.progress["deleted"]
    must = set(range(deleted.attempted + 1, moment.progress["made"] + 1))
    may = set(range(moment.progress["deleted"] + 1, made.attempted + 1))
    if must - found["topics"]:
        problems.append(f"topics that were created are gone: {sorted(must - found['topics'])}")
    if found["topics"] - may:
        problems.append(f"topics are there that were deleted or never asked for: {sorted(found['topics'] - may)}")
    return problems


def compare(bootstrap: str, ledger: Ledger, moment: Moment, *, everything: bool) -> list[str]:
    """All problems of a broker that was opened after a crash."""
    stored = read_everything(bootstrap, ledger.partitions)
    return [
        *problems_of_records(stored, ledger, moment, everything=everything),
        *problems_of_progress(bootstrap, ledger, moment),
    ]
