"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from tests.integration.differential.dialogue import BASE_MS, Dialogue, Line, scenario, stable_versions
from tests.support.record_batches import (
    CONTROL,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Record,
    batch,
    crc32c,
    encode_record,
    old_message,
)

NO_ID = uuid.UUID(int=0)
STRANGE_ID = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
THREE = [Record(b"one", b"a"), Record(b"two", b"b", 10), Record(b"three", b"c", 20)]


def a_batch(records: list[Record] | None = None, **wrong: Any) -> bytes:
    wrong.setdefault("base_timestamp_ms", BASE_MS)
    return batch(THREE if records is None else records, **wrong)


def produce(
    d: Dialogue,
    topic: str,
    records: bytes | None,
    *,
    version: int = 9,
    partition: int = 0,
    acks: int = -1,
    line: Line | None = None,
    **more: Any,
) -> dict[str, Any]:
    data = {"PartitionData": [{"Index": partition, "Records": records}], **_named(d, topic, version)}
    values = {"Acks": acks, "TimeoutMs": 5000, "TopicData": [data], **more}
    line = line or d.leader(topic, partition)
    if acks == 0:
        line.expect_silence("Produce", version, values)
        return {}
    return line.ask("Produce", version, values)


def _named(d: Dialogue, topic: str, version: int) -> dict[str, Any]:
    if version < 13:
        return {"Name": topic}
    try:
        return {"TopicId": d.topic_id(topic)}
    except KeyError:
        return {"TopicId": STRANGE_ID}


def fetch(
    d: Dialogue, topic: str, offset: int = 0, *, version: int = 12, line: Line | None = None, **more: Any
) -> dict[str, Any]:
    one = {"Partition": more.pop("partition", 0), "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
    for key in ("CurrentLeaderEpoch", "LastFetchedEpoch", "PartitionMaxBytes", "LogStartOffset"):
        if key in more:
            one[key] = more.pop(key)
    named = _named(d, topic, version) if version >= 13 else {"Topic": topic}
    values = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 24, "Topics": [{**named, "Partitions": [one]}], **more}
    return (line or d.leader(topic, one["Partition"])).ask("Fetch", version, values)


def bounds(d: Dialogue, topic: str) -> None:
    """Compare where the log starts and ends."""
    for timestamp in (-2, -1):
        partition = {"PartitionIndex": 0, "Timestamp": timestamp}
        values = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [partition]}]}
        d.leader(topic).ask("ListOffsets", 6, values)


def aftermath(d: Dialogue, topic: str) -> None:
    """Compare the whole log."""
    bounds(d, topic)
    fetch(d, topic)


@scenario
def produce_every_version(d: Dialogue) -> None:
    for version in stable_versions("Produce"):
        topic = d.topic(f"v{version}", 2)
        for acks in (-1, 1, 0):
            produce(d, topic, a_batch(), version=version, acks=acks)
        produce(d, topic, a_batch(), version=version, partition=1)
        for acks in (2, -2, 100):
            produce(d, topic, a_batch(), version=version, acks=acks)
        produce(d, topic, a_batch(), version=version, partition=7, line=d.leader(topic))
        produce(d, topic, a_batch(), version=version, partition=-1, line=d.leader(topic))
        produce(d, f"{d.prefix}-absent", a_batch(), version=version, line=d.anywhere)
        if version < 13:
            produce(d, "bad name", a_batch(), version=version, line=d.anywhere)
        d.leader(topic).ask("Produce", version, {"Acks": -1, "TimeoutMs": 100, "TopicData": []})
        aftermath(d, topic)


@scenario
def produce_by_topic_id(d: Dialogue) -> None:
    topic = d.topic("one")
    for identifier in (d.topic_id(topic), STRANGE_ID, NO_ID):
        data = {"TopicId": identifier, "PartitionData": [{"Index": 0, "Records": a_batch()}]}
        d.leader(topic).ask("Produce", 13, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [data]})
    aftermath(d, topic)


@scenario
def produce_compressed(d: Dialogue) -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        topic = d.topic(f"codec-{codec}")
        for version in (3, 6, 7, 9):
            produce(d, topic, a_batch(codec=codec), version=version)
        aftermath(d, topic)
        for version in (4, 9, 10, 12):
            fetch(d, topic, 1, version=version)


@scenario
def produce_damaged(d: Dialogue) -> None:
    topic = d.topic("one")
    good = a_batch()
    for version in (3, 8, 9, 13):
        for name, records in damaged_batches(good).items():
            produce(d, topic, records, version=version)
            if version == 9:
                d.note("label", 0, name, "")
    bounds(d, topic)


def damaged_batches(good: bytes) -> dict[str, bytes]:
    def resealed(position: int, new: bytes) -> bytes:
        """The batch with other bytes at a place after the CRC, and the CRC made right again."""
        changed = bytearray(good)
        changed[position : position + len(new)] = new
        return bytes(changed[:17]) + struct.pack(">I", crc32c(changed[21:])) + bytes(changed[21:])

    return {
        "bad crc": a_batch(crc=1),
        "last byte flipped": good[:-1] + bytes([good[-1] ^ 1]),
        "too many records claimed": a_batch(records_count=5),
        "too few records claimed": a_batch(records_count=1),
        "no records claimed": a_batch(records_count=0),
        "negative records count": a_batch(records_count=-1),
        "last offset delta too large": a_batch(last_offset_delta=9),
        "last offset delta too small": a_batch(last_offset_delta=0),
        "negative last offset delta": a_batch(last_offset_delta=-1),
        "empty": b"",
        "ten bytes": good[:10],
        "header only": good[:61],
        "cut short": good[:-3],
        "length too large": a_batch(batch_length=5000),
        "length too small": a_batch(batch_length=20),
        "length zero": a_batch(batch_length=0),
        "length negative": a_batch(batch_length=-5),
        "zeros": b"\0" * 100,
        "ones": b"\xff" * 100,
        "two batches": good + good,
        "batch and rubbish": good + b"rubbish",
        "base offset not zero": a_batch(base_offset=55),
        "codec 5": resealed(21, b"\0\x05"),
        "codec 7": resealed(21, b"\0\x07"),
        "unused attribute": resealed(21, b"\x01\0"),
        "log append time claimed": a_batch(attributes=LOG_APPEND_TIME),
        "control batch": a_batch(attributes=CONTROL),
        "delete horizon": a_batch(attributes=64),
        "magic 3": a_batch(magic=3),
        "magic -1": a_batch(magic=-1),
        "record longer than the batch": a_batch([Record(b"x")], payload=b"\x7f" + encode_record(Record(b"x"), 0)[1:]),
        "payload after the records": a_batch(
            payload=b"".join(encode_record(one, index) for index, one in enumerate(THREE)) + b"zzz"
        ),
        "max timestamp wrong": a_batch(max_timestamp_ms=5),
        "negative timestamp": a_batch(base_timestamp_ms=-5),
        "no timestamp": a_batch([Record(b"x")], base_timestamp_ms=-1),
        "far future": a_batch(base_timestamp_ms=BASE_MS + 90 * 86_400_000),
        "three hours ahead": a_batch(base_timestamp_ms=BASE_MS + 3 * 3_600_000),
        "records null key and value": a_batch([Record(None, None)]),
    }


@scenario
def produce_damaged_inside_a_compression(d: Dialogue) -> None:
    """What only decompression shows."""
    good = a_batch()
    resealed = bytearray(good)
    resealed[21:23] = b"\0\x01"
    resealed[17:21] = struct.pack(">I", crc32c(bytes(resealed[21:])))
    for number, records in enumerate((a_batch(codec=GZIP, payload=b"no records at all"), bytes(resealed))):
        for version in (3, 9):
            topic = d.topic(f"t{number}-{version}")
            produce(d, topic, records, version=version)
            bounds(d, topic)


@scenario
def produce_offsets_that_repeat_inside_a_batch(d: Dialogue) -> None:
    topic = d.topic("one")
    produce(d, topic, a_batch(payload=b"".join(encode_record(one, 0) for one in THREE)))
    bounds(d, topic)


@scenario
def produce_accepted_leaves_what_kafka_leaves(d: Dialogue) -> None:
    """After each damaged batch the log is as Kafka's: nothing behind a refusal."""
    for place, (name, records) in enumerate(damaged_batches(a_batch()).items()):
        topic = d.topic(f"d{place}")
        d.note("label", 0, name, "")
        produce(d, topic, records)
        bounds(d, topic)


@scenario
def produce_old_formats(d: Dialogue) -> None:
    topic = d.topic("one")
    for version in (3, 7, 9, 11):
        for magic in (0, 1):
            produce(d, topic, old_message(b"old", magic), version=version)
    bounds(d, topic)


@scenario
def produce_too_large(d: Dialogue) -> None:
    small = d.topic("small", configs={"max.message.bytes": "200"})
    for size in (100, 120, 130, 140, 1000):
        produce(d, small, a_batch([Record(b"x" * size)]))
    produce(d, small, a_batch([Record(b"x" * 10_000)], codec=GZIP))
    aftermath(d, small)
    usual = d.topic("usual")
    for size in (1_048_400, 1_048_588, 1_100_000):
        produce(d, usual, a_batch([Record(bytes(size))]))
    bounds(d, usual)


@scenario
def produce_several_partitions(d: Dialogue) -> None:
    """One answer per partition, right or wrong, in one request."""
    topic = d.topic("one", 1)
    for version in (3, 8, 9, 12):
        parts = [{"Index": 0, "Records": a_batch()}, {"Index": 5, "Records": a_batch()}]
        bad = [{"Index": 0, "Records": a_batch(crc=3)}]
        data = [{"Name": topic, "PartitionData": parts}, {"Name": f"{d.prefix}-absent", "PartitionData": bad}]
        d.leader(topic).ask("Produce", version, {"Acks": -1, "TimeoutMs": 5000, "TopicData": data})
    twice = {"Name": topic, "PartitionData": [{"Index": 0, "Records": a_batch()}, {"Index": 0, "Records": a_batch()}]}
    d.leader(topic).ask("Produce", 9, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [twice]})
    aftermath(d, topic)


@scenario
def produce_without_acks_and_an_error(d: Dialogue) -> None:
    """The only way to say it is to close the connection."""
    topic = d.topic("one")
    produce(d, topic, a_batch(crc=1), acks=0)
    produce(d, f"{d.prefix}-absent", a_batch(), acks=0, line=d.anywhere)
    produce(d, topic, a_batch(), acks=0, partition=9, line=d.leader(topic))
    produce(d, topic, a_batch(), acks=0)
    produce(d, topic, a_batch())
    aftermath(d, topic)


@scenario
def produce_to_a_compacted_topic(d: Dialogue) -> None:
    topic = d.topic("one", configs={"cleanup.policy": "compact"})
    for version in (7, 8, 9, 13):
        produce(d, topic, a_batch([Record(b"v", b"k")]), version=version)
        produce(d, topic, a_batch([Record(b"v")]), version=version)
        produce(
            d, topic, a_batch([Record(b"v", b"k"), Record(b"v"), Record(None, b"k"), Record(None)]), version=version
        )
        produce(d, topic, a_batch([Record(b"v", b"k"), Record(b"v")], codec=GZIP), version=version)
    aftermath(d, topic)


@scenario
def produce_with_append_time(d: Dialogue) -> None:
    topic = d.topic("one", configs={"message.timestamp.type": "LogAppendTime"})
    for version in (3, 9, 13):
        produce(d, topic, a_batch(), version=version)
    produce(d, topic, a_batch(codec=GZIP))
    produce(d, topic, a_batch(base_timestamp_ms=BASE_MS + 90 * 86_400_000))
    aftermath(d, topic)


@scenario
def produce_with_time_limits(d: Dialogue) -> None:
    limits = {"message.timestamp.before.max.ms": "7200000", "message.timestamp.after.max.ms": "60000000"}
    topic = d.topic("one", configs=limits)
    hour_ms = 3_600_000
    for hours in (0, 1, 5, -3, 100):
        for version in (7, 9):
            produce(d, topic, a_batch([Record(b"x"), Record(b"y", None, hours * hour_ms)]), version=version)
            produce(d, topic, a_batch(base_timestamp_ms=BASE_MS + hours * hour_ms), version=version)
    aftermath(d, topic)


@scenario
def produce_to_internal_topics(d: Dialogue) -> None:
    d.coordinator(f"{d.prefix}-g")
    for version in (3, 9):
        produce(d, "__consumer_offsets", a_batch(), version=version)


@scenario
def produce_idempotent(d: Dialogue) -> None:
    topic = d.topic("one")
    identifier = d.anywhere.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})[
        "ProducerId"
    ]

    def send(sequence: int, epoch: int = 0, count: int = 3, producer: int = identifier, version: int = 9) -> None:
        records = [Record(b"v%d" % index) for index in range(count)]
        produce(d, topic, a_batch(records, producer=(producer, epoch, sequence)), version=version)

    send(0)
    send(0)
    send(3)
    send(3)
    send(0)
    send(7)
    send(6, count=1)
    for sequence in range(7, 14):
        send(sequence, count=1)
    send(7, count=1)
    send(9, count=1)
    send(9, count=2)
    send(13, count=1)
    send(14, epoch=1, count=1)
    send(0, epoch=1, count=1)
    send(14, epoch=0, count=1)
    send(5, epoch=3, count=1)
    send(0, epoch=-1)
    send(-1)
    send(-1, epoch=1)
    send(1, epoch=1, version=3)
    send(1, epoch=1, version=13)
    aftermath(d, topic)


@scenario
def produce_idempotent_from_strangers(d: Dialogue) -> None:
    """A producer id that a partition with records does not know: any first sequence is taken."""
    identifier = d.anywhere.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})[
        "ProducerId"
    ]
    for place, triple in enumerate(((0, 5), (2, 0), (0, 2**31 - 1), (5, 77))):
        topic = d.topic(f"t{place}")
        produce(d, topic, a_batch())
        produce(d, topic, a_batch(producer=(identifier, *triple)))
        produce(d, topic, a_batch(producer=(identifier, *triple)))
        produce(d, topic, a_batch(producer=(identifier, triple[0], triple[1] + 3 if triple[1] < 99 else 2)))
        aftermath(d, topic)


@scenario
def produce_sequence_wraps(d: Dialogue) -> None:
    identifier = d.anywhere.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})[
        "ProducerId"
    ]
    topic = d.topic("one")
    top = 2**31 - 1
    produce(d, topic, a_batch())
    for sequence in (top - 2, 0, 3, top - 2):
        produce(d, topic, a_batch(producer=(identifier, 0, sequence)))
    other = d.topic("other")
    produce(d, other, a_batch())
    for sequence in (top - 1, 1, top - 1):
        produce(d, other, a_batch(producer=(identifier, 0, sequence)))
    aftermath(d, other)


@scenario
def produce_transactional(d: Dialogue) -> None:
    topic = d.topic("one")
    for version in (3, 9, 11):
        produce(d, topic, a_batch(), version=version, TransactionalId="t")
        transactional = a_batch(attributes=TRANSACTIONAL, producer=(4711, 0, 0))
        produce(d, topic, transactional, version=version, TransactionalId="t")
        produce(d, topic, transactional, version=version)
    bounds(d, topic)


# ---- fetch --------------------------------------------------------------------------------------------------------


def _filled(d: Dialogue, name: str = "one", batches_count: int = 4) -> str:
    topic = d.topic(name)
    for number in range(batches_count):
        records = [Record(b"%d-%d" % (number, index), None, index) for index in range(3)]
        data = {
            "Name": topic,
            "PartitionData": [{"Index": 0, "Records": a_batch(records, base_timestamp_ms=BASE_MS + number * 1000)}],
        }
        d.leader(topic).ask("Produce", 9, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [data]})
    return topic


@scenario
def fetch_every_version(d: Dialogue) -> None:
    topic = _filled(d)
    absent = f"{d.prefix}-absent"
    for version in stable_versions("Fetch"):
        for offset in (0, 1, 3, 5, 11, 12, 13, 1000, -1, -5):
            fetch(d, topic, offset, version=version)
        fetch(d, topic, 0, version=version, partition=5, line=d.leader(topic))
        fetch(d, topic, 0, version=version, partition=-1, line=d.leader(topic))
        fetch(d, absent, 0, version=version, line=d.anywhere)
        fetch(d, topic, 0, version=version, IsolationLevel=1)
        d.leader(topic).ask("Fetch", version, {"MaxWaitMs": 0, "MinBytes": 0, "Topics": []})
        if version < 13:
            fetch(d, "", 0, version=version, line=d.anywhere)
            fetch(d, "bad name", 0, version=version, line=d.anywhere)


@scenario
def fetch_with_an_isolation_that_does_not_exist(d: Dialogue) -> None:
    topic = _filled(d)
    for version in stable_versions("Fetch"):
        fetch(d, topic, 0, version=version, IsolationLevel=7)


@scenario
def fetch_with_limits_below_zero(d: Dialogue) -> None:
    topic = _filled(d)
    for version in (4, 11, 12, 16):
        fetch(d, topic, 0, version=version, PartitionMaxBytes=-1)
        fetch(d, topic, 4, version=version, MaxBytes=-1)


@scenario
def fetch_by_strange_ids(d: Dialogue) -> None:
    topic = _filled(d)
    for version in range(13, 19):
        for identifier in (STRANGE_ID, NO_ID):
            one = {"TopicId": identifier, "Partitions": [{"Partition": 0, "PartitionMaxBytes": 1000}]}
            known = {"TopicId": d.topic_id(topic), "Partitions": [{"Partition": 0, "PartitionMaxBytes": 1000}]}
            common = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20}
            d.leader(topic).ask("Fetch", version, {**common, "Topics": [one]})
            d.leader(topic).ask("Fetch", version, {**common, "Topics": [known, one]})


@scenario
def fetch_limits(d: Dialogue) -> None:
    topic = _filled(d)
    size = 61 + 3 * 10
    for version in (4, 11, 12, 16):
        for limit in (0, 1, 10, size - 1, size, size + 1, 2 * size + 40, 10_000):
            fetch(d, topic, 0, version=version, PartitionMaxBytes=limit)
            fetch(d, topic, 4, version=version, MaxBytes=limit)
        fetch(d, topic, 0, version=version, MaxBytes=1, PartitionMaxBytes=1)


@scenario
def fetch_two_partitions_under_one_limit(d: Dialogue) -> None:
    """The first partition's first batch comes whatever the limit says, the second's only when there is room."""
    topic = d.topic("pair", assigned_to=[0, 0])
    for partition in (0, 1):
        produce(d, topic, a_batch(), partition=partition)
    size = len(a_batch())
    for limit in (1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 10 * size):
        parts = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 10 * size} for index in (0, 1)]
        values = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": limit, "Topics": [{"Topic": topic, "Partitions": parts}]}
        d.leader(topic).ask("Fetch", 11, values)
        values["MinBytes"] = 1
        d.leader(topic).ask("Fetch", 4, values)


@scenario
def fetch_waits(d: Dialogue) -> None:
    """Long polls: at the end of the log, for more bytes than there are, and woken by a produce."""
    topic = _filled(d)
    fetch(d, topic, 12, MaxWaitMs=100, MinBytes=1)
    fetch(d, topic, 0, MaxWaitMs=100, MinBytes=1 << 20)
    fetch(d, topic, 99, MaxWaitMs=5000, MinBytes=1)
    fetch(d, topic, 0, MaxWaitMs=5000, MinBytes=1)
    for version in (4, 12, 17):
        waiting = d.leader(topic, name="waiting")
        named = {"TopicId": d.topic_id(topic)} if version >= 13 else {"Topic": topic}
        end = 12 + (0 if version == 4 else 3 if version == 12 else 6)
        one = {**named, "Partitions": [{"Partition": 0, "FetchOffset": end, "PartitionMaxBytes": 1000}]}
        waiting.send("Fetch", version, {"MaxWaitMs": 5000, "MinBytes": 1, "MaxBytes": 1000, "Topics": [one]})
        produce(d, topic, a_batch())
        waiting.receive()


@scenario
def fetch_epochs(d: Dialogue) -> None:
    topic = _filled(d)
    for version in (9, 11, 12, 14, 16):
        for relative in (-1, 0, 1, 100):
            fetch(d, topic, 0, version=version, CurrentLeaderEpoch=d.epoch(relative))
        fetch(d, topic, 0, version=version, CurrentLeaderEpoch=-5)
    for version in (12, 16):
        for relative in (-1, 0, 1, 7):
            for offset in (0, 12, 50):
                fetch(d, topic, offset, version=version, LastFetchedEpoch=d.epoch(relative))


@scenario
def fetch_as_a_follower(d: Dialogue) -> None:
    topic = _filled(d)
    for version in (4, 11, 12, 14):
        for replica in (0, 1, 77, -2, -3):
            fetch(d, topic, 0, version=version, ReplicaId=replica)
    for version in (15, 17):
        for replica in (-2, -3):
            fetch(d, topic, 0, version=version, ReplicaState={"ReplicaId": replica, "ReplicaEpoch": -1})


@scenario
def fetch_sessions(d: Dialogue) -> None:
    for version in (7, 11, 12, 13, 17):
        _one_session(d, _filled(d, f"v{version}", batches_count=2), version)


def _one_session(d: Dialogue, topic: str, version: int) -> None:
    line = d.leader(topic)
    named = {"TopicId": d.topic_id(topic)} if version >= 13 else {"Topic": topic}

    def part(offset: int, index: int = 0) -> dict[str, Any]:
        return {**named, "Partitions": [{"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}]}

    def ask(session: int, epoch: int, *topics: dict, **more: Any) -> dict:
        values = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "SessionId": session, "SessionEpoch": epoch}
        return line.ask("Fetch", version, {**values, "Topics": list(topics), **more})

    session = ask(0, 0, part(0)).get("SessionId", 0)
    ask(session, 1)
    ask(session, 2, part(6))
    ask(session, 3)
    ask(session, 3)
    ask(session, 9)
    ask(session, 4, part(0))
    ask(session, 5, part(6, index=4))
    ask(session, 6)
    ask(session, 7, part(99))
    ask(session, 8)
    ask(session, 9, part(6))
    produce(d, topic, a_batch([Record(b"new")]))
    ask(session, 10)
    trim = {"Partitions": [{"PartitionIndex": 0, "Offset": 3}], "Name": topic}
    line.ask("DeleteRecords", 1, {"Topics": [trim], "TimeoutMs": 5000})
    ask(session, 11)
    ask(session, 12, ForgottenTopicsData=[{**named, "Partitions": [0, 4]}])
    ask(session, 13, part(0))
    ask(session, -1)
    ask(session, 14)
    ask(12345, 1)
    ask(12345, 0, part(6))
    ask(0, 5, part(6))
    ask(0, -1, part(6))
    ask(0, 0)


@scenario
def fetch_sessions_by_id(d: Dialogue) -> None:
    topic = _filled(d, batches_count=2)
    for version in (13, 15, 18):
        line = d.leader(topic)
        good = {
            "TopicId": d.topic_id(topic),
            "Partitions": [{"Partition": 0, "FetchOffset": 6, "PartitionMaxBytes": 9999}],
        }
        strange = {**good, "TopicId": STRANGE_ID}
        common = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20}
        session = line.ask("Fetch", version, {**common, "Topics": [good, strange]}).get("SessionId", 0)
        session = line.ask("Fetch", version, {**common, "SessionId": 0, "SessionEpoch": 0, "Topics": [good]})[
            "SessionId"
        ]
        line.ask("Fetch", version, {**common, "SessionId": session, "SessionEpoch": 1, "Topics": [strange]})
        line.ask("Fetch", version, {**common, "SessionId": session, "SessionEpoch": 2, "Topics": []})
        line.ask("Fetch", version, {**common, "SessionId": session, "SessionEpoch": -1, "Topics": []})


# ---- offsets ------------------------------------------------------------------------------------------------------


def list_offsets(d: Dialogue, topic: str, timestamp: int, *, version: int = 6, partition: int = 0, **more: Any) -> None:
    one = {"PartitionIndex": partition, "Timestamp": timestamp}
    if "CurrentLeaderEpoch" in more:
        one["CurrentLeaderEpoch"] = more.pop("CurrentLeaderEpoch")
    values = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [one]}], **more}
    d.leader(topic, partition).ask("ListOffsets", version, values)


@scenario
def list_offsets_every_version(d: Dialogue) -> None:
    topic = _filled(d)
    empty = d.topic("empty")
    for version in stable_versions("ListOffsets"):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -100, 0, BASE_MS, BASE_MS + 1, BASE_MS + 2, BASE_MS + 3,
                          BASE_MS + 1000, BASE_MS + 3002, BASE_MS + 3003, BASE_MS + 10**9):  # fmt: skip
            list_offsets(d, topic, timestamp, version=version)
            list_offsets(d, empty, timestamp, version=version)
        list_offsets(d, topic, -1, version=version, partition=4)
        list_offsets(d, f"{d.prefix}-absent", -1, version=version)
        list_offsets(d, "bad name", -1, version=version)
        list_offsets(d, topic, -1, version=version, IsolationLevel=1)
        list_offsets(d, topic, BASE_MS, version=version, IsolationLevel=1)
        for replica in (0, 5, -2, -3):
            list_offsets(d, topic, -1, version=version, ReplicaId=replica)
        if version >= 4:
            for relative in (-1, 0, 1, 50):
                list_offsets(d, topic, -1, version=version, CurrentLeaderEpoch=d.epoch(relative))
        d.anywhere.ask("ListOffsets", version, {"ReplicaId": -1, "Topics": []})
        same = [{"PartitionIndex": 0, "Timestamp": -1}, {"PartitionIndex": 0, "Timestamp": -2}]
        d.leader(topic).ask("ListOffsets", version, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": same}]})


@scenario
def list_offsets_inside_compressed_batches(d: Dialogue) -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        topic = d.topic(f"codec-{codec}")
        steps = [0, 50, 20, 70, 70, 10]
        for number in range(3):
            records = [Record(b"r", None, step) for step in steps]
            produce(d, topic, a_batch(records, codec=codec, base_timestamp_ms=BASE_MS + 100 * number))
        for step in (-1, 0, 1, 20, 50, 51, 70, 71, 100, 150, 169, 170, 171, 250, 270, 271):
            list_offsets(d, topic, BASE_MS + step, version=7)
        list_offsets(d, topic, -3, version=7)


@scenario
def list_offsets_with_times_out_of_order(d: Dialogue) -> None:
    topic = d.topic("one")
    for start in (500, 100, 900, 300):
        produce(d, topic, a_batch(base_timestamp_ms=BASE_MS + start))
    for step in (0, 100, 101, 300, 500, 521, 600, 900, 915, 920, 921):
        list_offsets(d, topic, BASE_MS + step, version=8)
    list_offsets(d, topic, -3, version=8)


@scenario
def list_offsets_with_append_time(d: Dialogue) -> None:
    topic = d.topic("one", configs={"message.timestamp.type": "LogAppendTime"})
    produce(d, topic, a_batch())
    list_offsets(d, topic, BASE_MS, version=1)
    list_offsets(d, topic, 2**62, version=7)


@scenario
def offset_for_leader_epoch(d: Dialogue) -> None:
    topic = _filled(d)
    empty = d.topic("empty")

    def ask(version: int, full: str, epoch: int, current: int = -1, partition: int = 0, replica: int = -1) -> None:
        one = {"Partition": partition, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
        values = {"ReplicaId": replica, "Topics": [{"Topic": full, "Partitions": [one]}]}
        d.leader(full, partition).ask("OffsetForLeaderEpoch", version, values)

    for version in stable_versions("OffsetForLeaderEpoch"):
        for relative in (-1, 0, 1, 99):
            ask(version, topic, d.epoch(relative))
            ask(version, empty, d.epoch(relative))
            ask(version, topic, d.epoch(0), current=d.epoch(relative))
        ask(version, topic, -5)
        ask(version, topic, d.epoch(0), partition=3)
        ask(version, f"{d.prefix}-absent", 0)
        for replica in (0, 3, -2):
            ask(version, topic, d.epoch(0), replica=replica)
        d.anywhere.ask("OffsetForLeaderEpoch", version, {"ReplicaId": -1, "Topics": []})


@scenario
def delete_records(d: Dialogue) -> None:
    def delete(version: int, full: str, offset: int, partition: int = 0) -> None:
        one = {"Name": full, "Partitions": [{"PartitionIndex": partition, "Offset": offset}]}
        d.leader(full, partition).ask("DeleteRecords", version, {"Topics": [one], "TimeoutMs": 5000})

    for version in stable_versions("DeleteRecords"):
        topic = _filled(d, f"v{version}")
        for offset in (0, 2, 1, 4, 4, 13, -2, -5):
            delete(version, topic, offset)
        bounds(d, topic)
        for offset in (0, 3, 4, 5, 11):
            fetch(d, topic, offset)
        list_offsets(d, topic, BASE_MS, version=7)
        list_offsets(d, topic, -3, version=7)
        delete(version, topic, -1)
        bounds(d, topic)
        fetch(d, topic, 12)
        fetch(d, topic, 4)
        list_offsets(d, topic, BASE_MS, version=7)
        produce(d, topic, a_batch())
        aftermath(d, topic)
        fetch(d, topic, 12)
        delete(version, topic, 5, partition=3)
        delete(version, f"{d.prefix}-absent", 5)
        d.anywhere.ask("DeleteRecords", version, {"Topics": [], "TimeoutMs": 5000})
    compacted = d.topic("compacted", configs={"cleanup.policy": "compact"})
    delete(2, compacted, 0)
    delete(2, compacted, -1)
