"""Batches of an answer as records: what C cuts out against the plain decoder, whatever the batches are like."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.client.consumer.decoding import Part
from tpc_broker.client.consumer.rows import RowReader
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Record
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import ControlType, build_batch, control_batch, read_batches
from tpc_broker.kafka.records import Record as Written
from tpc_broker.native_bytes import crc32c

WHERE: Final = TopicPartition("orders", 3)
sized = st.none() | st.binary(max_size=12) | st.just(b"x" * 300)
records_lists = st.lists(
    st.builds(
        Written,
        value=sized,
        key=sized,
        timestamp_ms=st.integers(-1, 2**40),
        headers=st.lists(st.tuples(st.text(max_size=4), sized), max_size=3).map(tuple) | st.just(()),
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches one behind the other, with gaps between and, as after a cleaning, within them."""
    offset = draw(st.integers(0, 2**40))
    data = b""
    for given_records in draw(st.lists(records_lists, min_size=1, max_size=5)):
        offset += draw(st.integers(0, 3))
        kept, at = [], offset
        for record in given_records:
            at += draw(st.integers(0, 2)) if kept else 0
            kept.append(record._replace(offset=at))
            at += 1
        data += build_batch(
            kept,
            base_offset=offset,
            compression=draw(st.sampled_from(Compression)),
            partition_leader_epoch=draw(st.integers(0, 2)),
        )
        offset = at + draw(st.integers(0, 2))
    return data


def read(part: Part, records_max: int, rows: RowReader | None = None) -> list[Record]:
    rows = rows or RowReader(4)
    found: list[Record] = []
    while (piece := part.read(rows, records_max)) is not None:
        assert 0 < piece.records_count <= records_max
        assert piece.taken_count == 0
        records = list(piece.records)
        assert [piece.offset(index) for index in range(len(records))] == [record.offset for record in records]
        assert piece.taken_count == piece.records_count == len(records)
        assert piece.next_offset > records[-1].offset
        assert {record.leader_epoch for record in records} == {piece.leader_epoch}
        found += records
    return found


def plain(data: bytes, from_offset: int) -> list[Record]:
    return [
        Record(*WHERE, one.offset, one.timestamp_ms, one.key, one.value, one.headers, one.leader_epoch)
        for batch in read_batches(data)
        for one in batch.records()
        if one.offset >= from_offset
    ]


@settings(deadline=None)
@given(logs(), st.integers(1, 9), st.integers(0, 20), st.integers(0, 80))
def test_records_are_those_of_the_plain_decoder(data: bytes, records_max: int, skipped: int, cut: int) -> None:
    begin = next(iter(read_batches(data))).base_offset + skipped
    whole = data[: len(data) - cut]
    part = Part(WHERE, begin, memoryview(whole))
    assert read(part, records_max) == plain(whole, begin)


@settings(deadline=None)
@given(logs(), st.data())
def test_damage_is_told_behind_the_records_before_it(data: bytes, draw: st.DataObject) -> None:
    batches = list(read_batches(data))
    damaged = draw.draw(st.sampled_from(range(len(batches))))
    begin = sum(len(batch.data) for batch in batches[:damaged])
    place = begin + draw.draw(st.integers(21, len(batches[damaged].data) - 1))
    changed = bytearray(data)
    changed[place] ^= 1 << draw.draw(st.integers(0, 7))
    part = Part(WHERE, 0, memoryview(bytes(changed)))
    rows = RowReader(100)
    found: list[Record] = []
    with pytest.raises(DamagedDataError, match=f"orders-3, offset {batches[damaged].base_offset}"):
        while (piece := part.read(rows, 100)) is not None:
            found += piece.records
    assert found == plain(data[:begin], 0)
    with pytest.raises(DamagedDataError):
        part.read(rows, 100)


@settings(deadline=None)
@given(logs(), st.data())
def test_a_malformed_record_is_told_and_never_a_crash(data: bytes, draw: st.DataObject) -> None:
    """The CRC is right: whoever wrote it wrote nonsense."""
    batches = list(read_batches(data))
    damaged = draw.draw(st.sampled_from(range(len(batches))))
    begin = sum(len(batch.data) for batch in batches[:damaged])
    end = begin + len(batches[damaged].data)
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(begin + 23, end - 1))] = draw.draw(st.integers(0, 255))
    changed[begin + 17 : begin + 21] = crc32c(changed[begin + 21 : end]).to_bytes(4, "big")
    part = Part(WHERE, 0, memoryview(bytes(changed)))
    try:
        found = read(part, 5)
    except DamagedDataError:
        return
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))


def transactional(offset: int, producer_id: int, value: bytes, compression: Compression = Compression.NONE) -> bytes:
    return build_batch(
        [Written(value, None, 1), Written(value, None, 1)],
        base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True,
        compression=compression, partition_leader_epoch=0,
    )  # fmt: skip


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=offset,
        partition_leader_epoch=0,
    )  # fmt: skip


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("records_max", [1, 100])
def test_aborted_records_are_left_out(compression: Compression, records_max: int) -> None:
    data = b"".join((
        transactional(0, 1, b"kept", compression),
        transactional(2, 2, b"aborted", compression),
        build_batch([Written(b"plain")], base_offset=4, compression=compression, partition_leader_epoch=0),
        marker(5, 2, ControlType.ABORT),
        transactional(6, 2, b"later", compression),
        marker(8, 1, ControlType.COMMIT),
        marker(9, 2, ControlType.COMMIT),
    ))  # fmt: skip
    part = Part(WHERE, 0, memoryview(data), [(2, 2)])
    assert [record.value for record in read(part, records_max)] == [b"kept", b"kept", b"plain", b"later", b"later"]
    assert part.next_offset == 10
    part = Part(WHERE, 0, memoryview(data), [(2, 2)], Isolation.READ_UNCOMMITTED)
    values = [record.value for record in read(part, records_max)]
    assert values == [b"kept", b"kept", b"aborted", b"aborted", b"plain", b"later", b"later"]
    assert part.next_offset == 10


def test_markers_alone_move_the_position() -> None:
    part = Part(WHERE, 5, memoryview(marker(5, 1, ControlType.COMMIT) + marker(6, 2, ControlType.ABORT)))
    assert read(part, 10) == []
    assert part.next_offset == 7


def test_a_record_with_more_headers_than_there_is_room_for() -> None:
    headers = tuple((f"h{number}", b"%d" % number) for number in range(20_000))
    data = build_batch([Written(b"a", headers=headers), Written(b"b")], partition_leader_epoch=0)
    first, second = read(Part(WHERE, 0, memoryview(data)), 1)
    assert (first.headers, second.headers) == (headers, ())


def test_names_of_headers_that_are_no_text() -> None:
    data = bytearray(build_batch([Written(b"a", headers=(("xy", b"1"),))], partition_leader_epoch=0))
    at = data.index(b"xy")
    data[at : at + 2] = b"\xff\xfe"
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    [record] = read(Part(WHERE, 0, memoryview(bytes(data))), 10)
    assert [name.encode(errors="surrogateescape") for name, _value in record.headers] == [b"\xff\xfe"]


def test_append_time_is_that_of_the_batch() -> None:
    data = bytearray(build_batch([Written(b"a", None, 5), Written(b"b", None, 9)], partition_leader_epoch=0))
    data[22] |= 8
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    assert [record.timestamp for record in read(Part(WHERE, 0, memoryview(bytes(data))), 10)] == [9, 9]


def test_a_batch_that_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpc_broker.client.consumer.decoding.DECOMPRESSED_BYTES_MAX", 10_000)
    data = build_batch([Written(b"x" * 2_000_000)], compression=Compression.GZIP, partition_leader_epoch=0)
    with pytest.raises(DamagedDataError, match="exceeds 10000 bytes"):
        Part(WHERE, 0, memoryview(data)).read(RowReader(10), 10)


def test_a_part_outlives_the_answer_it_came_in() -> None:
    data = b"".join(build_batch([Written(b"a")], base_offset=at, partition_leader_epoch=0) for at in range(3))
    frame: Any = bytearray(data)
    part = Part(WHERE, 0, memoryview(frame))
    rows = RowReader(10)
    first = part.read(rows, 1)
    assert first is not None
    part.keep_apart()
    frame[:] = bytes(len(frame))
    assert [record.offset for record in [*first.records, *read(part, 10)]] == [0, 1, 2]
