"""The metadata log's driver on core 0, over a log in memory."""

from __future__ import annotations

from types import SimpleNamespace

import trio
import trio.testing

from tpc_broker.broker.metadata_service import MetadataService
from tpc_broker.broker.view import ClusterView
from tpc_broker.kafka.records import Record, build_batch, read_batches
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ProducerIdsReserved, encode_record
from tpc_broker.model import CoreId, NodeId, Offset

CORE = CoreId(0)


class Log:
    """A partition with one record a batch; its reader waits until it is let go."""

    def __init__(self, records) -> None:
        self.records = list(records)
        self.may_be_read = trio.Event()

    def bounds(self):
        return SimpleNamespace(log_start_offset=0, high_watermark=len(self.records))

    async def read_bytes(self, offset, _upto, _bytes_max):
        await self.may_be_read.wait()
        batch = bytearray(build_batch([Record(encode_record(self.records[offset]))]))
        batch[:8] = Offset(offset).to_bytes(8)
        return bytes(batch)

    async def append_durably(self, batch):
        self.records += [record for one in read_batches(batch) for record in one.records()]


async def test_nothing_is_decided_before_the_whole_log_is_loaded() -> None:
    """Another core may ask for producer ids while core 0 still reads: what the log says was given out stays so."""
    log = Log([ProducerIdsReserved(CORE, 1000 * number, 1000) for number in range(3)])
    view = ClusterView(NodeId(0), 1, (), None)
    seen: list[int] = []

    async def apply(_before: ClusterImage, after: ClusterImage) -> None:
        view.image = after

    def decide(image: ClusterImage):
        seen.append(image.next_producer_id)
        return [], None

    service = MetadataService(CORE, view, SimpleNamespace(serve=lambda *_: None), apply)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.load, log)
        nursery.start_soon(service.change, decide)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        log.may_be_read.set()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        await service.apply_loaded()
    assert seen == [3000]
