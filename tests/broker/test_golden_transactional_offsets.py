"""What Apache Kafka wrote for offsets in transactions is replayed to what it told then, and written to the same bytes.

``tools/golden_transactional_offsets.py`` made the file, with librdkafka's producers.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.driven_machine import CellsLog, driving
from tpc_broker.broker.coordinator_driver import MachineDriver
from tpc_broker.coordinator import GroupCoordinator, Producer, Record, Write, WriteId
from tpc_broker.kafka.records import read_batch

GOLDEN = json.loads((Path(__file__).parents[1] / "coordinator" / "golden" / "transactional_offsets.json").read_text())
STEPS = GOLDEN["steps"]
BATCHES = [bytes.fromhex(batch) for step in STEPS for batch in step["batches"]]
OPEN = [
    number
    for number, batch in enumerate(map(read_batch, BATCHES))
    if batch.is_transactional and not batch.is_control
]


def told(machine, group, *, stable):
    partitions = [("data", index) for index in range(3)]
    fetched = machine.offset_fetch(group, partitions, require_stable=stable).offsets
    return [[each.offset, each.error_code] for each in fetched]


@pytest.mark.parametrize("number", range(len(STEPS)), ids=lambda number: STEPS[number]["what"])
async def test_a_coordinator_that_loads_kafka_s_log_tells_what_kafka_told(number, autojump_clock):
    """Whenever it takes over."""
    log = CellsLog()
    for step in STEPS[: number + 1]:
        for batch in step["batches"]:
            log.add(bytes.fromhex(batch))
    async with driving(log, GroupCoordinator()) as driver:
        for group, expected in STEPS[number]["told"].items():
            assert told(driver.machine, group, stable=False) == expected["any"]
            assert told(driver.machine, group, stable=True) == expected["stable"]


def test_the_log_has_all_kinds_of_batches():
    kinds = {(batch.is_transactional, batch.is_control) for batch in map(read_batch, BATCHES)}
    assert kinds == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("number", OPEN)
def test_batches_of_transactions_are_written_as_kafka_has_them(number):
    data = BATCHES[number]
    batch = read_batch(data)
    producer, records = Producer(batch.producer_id, batch.producer_epoch), list(batch.records())
    write = Write(WriteId(1), tuple(Record(each.key, each.value) for each in records), producer=producer)
    core = SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: records[0].timestamp_ms, monotonic_ms=lambda: 0))
    [written] = MachineDriver(core, CellsLog(), GroupCoordinator(), "groups")._batches([write])
    assert but_for_its_place(written) == but_for_its_place(data)


def but_for_its_place(data):
    """In the log, and the term in which it was written."""
    return data[8:12] + data[16:]
