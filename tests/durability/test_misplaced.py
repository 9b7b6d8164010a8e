"""Partitions that another core has than the metadata say: the metadata are older than the partitions' places."""

from __future__ import annotations

import uuid

import pytest
import trio

from tests.durability.test_repair import RECORDS, consume, create, numbered, produce, repair, values
from tests.support.broker_process import TpcBroker
from tests.support.plain_disk import PlainDisk
from tests.support.waiting import eventually
from tpc_broker.model import CoreId
from tpc_broker.storage.recovery.handover import hand_over, recover_all
from tpc_broker.storage.recovery.lost_and_found import METADATA_PARTITION

pytestmark = pytest.mark.crash


@pytest.fixture
def broker(tmp_path):
    one = TpcBroker(tmp_path / "broker", cores_count=2)
    one.start()
    yield one
    one.kill()


def exchange(broker) -> None:
    """Each core gets the other's partitions, and the metadata hear nothing of it."""

    async def main():
        disk = PlainDisk()
        recovered = await recover_all(disk, broker.data_folder, lambda: uuid.uuid4().bytes)

        def owner_of(key, core):
            return core if key == METADATA_PARTITION else CoreId(1 - core)

        moved = await hand_over(
            disk, broker.data_folder, recovered, owner_of, cores_count=2, new_journal_id=lambda: uuid.uuid4().bytes
        )
        assert moved == 2

    trio.run(main)


def produce_at_last(broker, partition, some) -> None:
    eventually(lambda: produce(broker, partition, some) is None, "it is taken", pause_s=0)


@pytest.mark.parametrize("records", [0, RECORDS])
def test_what_another_core_has_than_the_metadata_say_stays_there(broker, records):
    """Empty ones too: two cores that wrote into one folder would damage it at the next start."""
    create(broker)
    for partition in (0, 1):
        assert produce(broker, partition, values(0, records)) is None
    broker.stop()
    exchange(broker)
    broker.start()
    for number in range(2):
        for partition in (0, 1):
            produce_at_last(broker, partition, [b"value %d" % (records + number)])
        broker.kill()
        broker.start()
    for partition in (0, 1):
        assert consume(broker, partition) == numbered(0, records + 2)
    assert broker.log_text().count("they follow it") == 2
    broker.stop()
    assert "nothing is offline" in repair(broker).stdout
