"""A machine is loaded from the last record of each key: as all records in their order say, soon, and in short steps."""

from __future__ import annotations

import random
from itertools import chain, pairwise

import pytest
import trio

from tests.coordinator.scenario import Opened
from tests.coordinator.test_compacted_logs import Offsets, state_of
from tests.support.driven_machine import RUNS, CellsLog, LongLog, driving, least_steps_ms
from tpc_broker.broker import log_replay
from tpc_broker.broker.log_replay import replayed
from tpc_broker.coordinator import GroupCoordinator, Producer, TransactionEnd
from tpc_broker.coordinator.latest import UNDIVIDED, LatestRecords
from tpc_broker.coordinator.messages import MarkerResponse
from tpc_broker.coordinator.records import CommittedOffset, OffsetKey, offset_record
from tpc_broker.errors import RecordsDamagedError
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.key_values import KeyValues
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch
from tpc_broker.metadata.cleaner_settings import CleanerSettings
from tpc_broker.model import Offset


def batches_of(log, chance):
    """Of the entries of a scenario's log, as they are written."""
    base_offset, plain = 0, []

    def flushed():
        nonlocal base_offset, plain
        if plain:
            codec = chance.choice([Compression.NONE, Compression.NONE, Compression.GZIP])
            yield build_batch(plain, base_offset=base_offset, compression=codec)
        base_offset, plain = base_offset + len(plain), []

    for entry in log:
        if isinstance(entry, (Opened, TransactionEnd)):
            yield from flushed()
            producer = entry.producer._asdict()
            if isinstance(entry, Opened):
                record = Record(entry.record.value, entry.record.key, 0)
                yield build_batch([record], base_offset=base_offset, is_transactional=True, base_sequence=0, **producer)
            else:
                kind = ControlType.COMMIT if entry.commit else ControlType.ABORT
                yield control_batch(kind, base_offset=base_offset, coordinator_epoch=0, timestamp_ms=0, **producer)
            base_offset += 1
            continue
        plain.append(Record(entry.value, entry.key, 0))
        if chance.random() < 0.3:
            yield from flushed()
    yield from flushed()


@pytest.mark.parametrize("seed", range(30))
def test_what_is_loaded_is_what_every_record_in_its_order_gives(seed, monkeypatch):
    """Offsets in transactions and plain ones; steps that end anywhere."""
    history, chance = Offsets(seed), random.Random(seed)
    monkeypatch.setattr(log_replay, "LOAD_STEP", chance.choice([1, 2, 7, 256]))
    for _ in range(150):
        history.step()
    machine = history.s.new_machine()
    latest = LatestRecords(machine)
    batches = list(batches_of(history.s.log, chance))
    cuts = [0, *sorted(chance.choices(range(len(batches) + 1), k=chance.choice([0, 3, 30]))), len(batches)]
    stretches = [replayed(b"".join(batches[begin:end]), latest) for begin, end in pairwise(cuts)]
    for _step in chain(*stretches, latest.given()):
        pass
    machine.finish_loading(history.s.now)
    history.s.start()
    assert state_of(machine) == state_of(history.s.machine)


def test_an_offset_of_kafka_before_its_keys_had_type_1_is_older_than_any_other():
    machine = GroupCoordinator()
    latest = LatestRecords(machine)
    for partition in range(20):
        key, value = offset_record(OffsetKey("g", "t", partition), CommittedOffset(Offset(1)))
        newer = offset_record(OffsetKey("g", "t", partition), CommittedOffset(Offset(2))).value
        latest.take([(b"\0\0" + key[2:], value), (key, newer if partition else None)])
    for _step in latest.given():
        pass
    machine.finish_loading(0)
    assert {one.partition: one.offset for one in machine.offset_fetch("g").offsets} == dict.fromkeys(range(1, 20), 2)


class CountedKey(bytes):
    """Counts how often one of all was looked at."""

    looked_at = 0

    def startswith(self, prefix, *where):
        CountedKey.looked_at += 1
        return super().startswith(prefix, *where)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("is_open", [False, True])
def test_keys_are_looked_at_in_short_steps(is_open):
    """Also where none of them is given: of the oldest type there is none."""
    machine, count = GroupCoordinator(), 20_000
    latest = LatestRecords(machine)
    records = [offset_record(OffsetKey("g", "t", each), CommittedOffset(Offset(each))) for each in range(count)]
    if is_open:
        for each, record in enumerate(records):
            latest.take_open(each // 4, 0, [record])
    else:
        latest.take((CountedKey(record.key), record.value) for record in records)
    CountedKey.looked_at = pieces = longest = 0
    for piece in latest.given():
        pieces += piece
        longest, CountedKey.looked_at = max(longest, CountedKey.looked_at), 0
    assert longest < count // 100
    assert pieces >= count + count // 20, "what is looked at counts too"


@pytest.mark.parametrize("commit", [True, False])
def test_a_large_transaction_ends_in_short_steps(commit):
    count, machine = 20_000, GroupCoordinator()
    latest = LatestRecords(machine)
    records = (offset_record(OffsetKey("g", "t", each), CommittedOffset(Offset(1))) for each in range(count))
    latest.take_open(1, 0, records)
    pieces = list(latest.take_end(1, commit=commit))
    assert sum(pieces) == count
    assert max(pieces) <= UNDIVIDED
    for _step in latest.given():
        pass
    assert machine.statistics().offsets_count == count * commit


OFFSETS, RECORDS = 100_000, 1_000_000
IN_TRANSACTION = 4
"""Offsets that a transaction commits; its marker is one more record."""


def offsets_of_groups(records_count=RECORDS):
    """Records of 100,000 offsets of 1,000 groups, as consumers and transactions write them, and their number."""
    chance, records = random.Random(1), []
    for number in range(OFFSETS):
        key = OffsetKey(f"an-application-{number % 1_000}", "a-topic-with-a-name", number // 1_000)
        record = offset_record(key, CommittedOffset(Offset(number), metadata=""))
        records.append(Record(record.value, record.key, 0))
    return [*records, *(chance.choice(records) for _ in range(records_count - OFFSETS))]


def plain(records):
    return (build_batch(records[begin : begin + 20]) for begin in range(0, len(records), 20))


def in_transactions(records, producer_id=1):
    producer = {"producer_id": producer_id, "producer_epoch": 0}
    end = control_batch(ControlType.COMMIT, coordinator_epoch=0, timestamp_ms=0, **producer)
    for begin in range(0, len(records), IN_TRANSACTION + 1):
        yield build_batch(records[begin : begin + IN_TRANSACTION], is_transactional=True, base_sequence=0, **producer)
        yield end


def of_two_producers(records):
    """Each writes its transactions of four between those of the other."""
    batches = [[*in_transactions(records)], [*in_transactions(records, producer_id=2)]]
    return chain.from_iterable(zip(*batches, strict=True))


@pytest.mark.parametrize("written", [in_transactions, of_two_producers])
def test_transactions_that_commit_soon_are_read_as_plain_records_are(written, monkeypatch):
    """Hundreds at a time: a step for each, and one for its marker, took twice as long as all that they hold."""
    taken = []
    take = KeyValues.take
    monkeypatch.setattr(KeyValues, "take", lambda walk, *what, **more: taken.append(1) or take(walk, *what, **more))
    records = offsets_of_groups(OFFSETS)[:5_000]
    latest = LatestRecords(GroupCoordinator())
    for _step in replayed(b"".join(written(records)), latest):
        pass
    assert not latest.has_open
    assert len(taken) < len(records) // 50


def test_a_batch_that_unpacks_to_more_than_it_may_is_not_unpacked():
    record = Record(bytes(10_000), b"k", 0)
    data, machine = build_batch([record], compression=Compression.GZIP), GroupCoordinator()
    with pytest.raises(DecodeError):
        list(replayed(data, LatestRecords(machine), 9_000))
    list(replayed(data, LatestRecords(machine), 11_000))


async def test_a_load_asks_the_settings_how_much_a_batch_may_unpack_to():
    log = CellsLog()
    log.add(build_batch([Record(bytes(10_000), b"k", 0)], compression=Compression.GZIP))
    async with driving(log) as driver:
        assert driver.machine.cells
    with pytest.raises(ExceptionGroup) as raised:
        async with driving(log, settings=CleanerSettings(max_decompressed_message_bytes=9_000)):
            pass
    assert raised.group_contains(RecordsDamagedError)


@pytest.mark.machine
@pytest.mark.parametrize("written", [plain, in_transactions])
async def test_a_million_records_of_100_000_offsets_are_loaded_in_two_seconds(written):
    """Of a processor's time; and no step is above a millisecond, but for a few that the machine itself held up."""
    log = LongLog(written(offsets_of_groups()))

    async def load():
        async with driving(log, GroupCoordinator()) as driver:
            statistics = driver.machine.statistics()
        assert 0.7 * OFFSETS < statistics.offsets_count <= OFFSETS

    steps_ms = await least_steps_ms(load)
    assert sum(steps_ms) < 2_000
    assert steps_ms[4] < 1


@pytest.mark.machine
async def test_a_transaction_of_100_000_offsets_is_loaded_and_ends_in_short_steps():
    records, producer = offsets_of_groups()[:OFFSETS], Producer(1, 0)
    batches = [
        build_batch(records[begin : begin + 20], is_transactional=True, base_sequence=0, **producer._asdict())
        for begin in range(0, OFFSETS, 20)
    ]
    logs = [LongLog(batches) for _run in range(RUNS)]
    end = TransactionEnd(producer, commit=True, coordinator_epoch=0)

    async def load_and_end():
        async with driving(logs.pop(), GroupCoordinator()) as driver:
            await driver.call(MarkerResponse, lambda token, _now_ms: driver.machine.marker(end, token))
            while driver.machine.statistics().offsets_count < OFFSETS:
                await trio.sleep(0.01)

    assert (await least_steps_ms(load_and_end))[4] < 1
