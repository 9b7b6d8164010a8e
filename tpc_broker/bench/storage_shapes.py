"""One core's storage without a network: `python -m tpc_broker.bench.storage_shapes FOLDER [REPEATS]` prints JSON.

The broker's own journal, data plane and segments, as a core assembles them, driven in this process; maintenance
(write-behind, checkpoints) runs beside it as it does in a core. Per shape 10,000 records of so many bytes:

- *append*: in batches that were built before, as clients build them; the time ends when the last one is durable;
- *read-stream*: from the first offset to the last in reads of 1 MiB, every batch with its CRC checked and its records
  decoded and counted; too few or too many end the run.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.bench.kafka_requests import record_batch
from tpc_broker.broker.partition import Partition
from tpc_broker.engine import trio_ring
from tpc_broker.engine.backend import ring_options
from tpc_broker.engine.data_directory import DataDirectory
from tpc_broker.log.batch import BATCH_HEADER_BYTES, walk_headers
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.native_bytes import ffi, find_batches_end, lib
from tpc_broker.options import CoreOptions
from tpc_broker.process.assembly import CoreAssembly, open_assembly

if TYPE_CHECKING:
    from tpc_broker.native_bytes import Buffer

RECORDS: Final = 10_000
SHAPES: Final = (12, 140, 560, 1_120, 2_940, 11_760)
"""Bytes of a record's value."""
_BATCH_RECORDS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 512 * 1024
_READ_BYTES: Final = 1 << 20
_JOURNAL_GROWS_S: Final = 20.0
_NO_FD: Final = -1


class Shape(NamedTuple):
    """Medians over the repeats, in thousands of records per second, with the time of one append."""

    value_bytes: int
    batches: int
    append_krecords_per_s: float
    append_ms: float
    read_krecords_per_s: float


def _options(data: Path) -> CoreOptions:
    return CoreOptions(
        core=CoreId(0), cores=1, data=str(data), listeners=(), listen_fds=(), mailbox_fd=_NO_FD, control_fd=_NO_FD,
        mailbox_names=(), cpu=None, settings="", overrides=(),
        log_style="text", log_level="warning", supervisor_pid=0,
    )  # fmt: skip


async def _open_partition(assembly: CoreAssembly, topic: str) -> Partition:
    config = load_settings().topic_config({})
    topic_id = TopicId(uuid.uuid4())
    key = TopicPartition(topic_id, PartitionIndex(0))
    files = await assembly.storage.open(key, topic, config)
    await assembly.storage.begin_epoch(files)
    handle = assembly.storage.register(files, config, is_internal=False)
    return Partition(
        topic_id, topic, PartitionIndex(0), config, plane=assembly.plane, storage=assembly.storage,  # type: ignore[arg-type]
        files=files, handle=handle, is_internal=False,
    )  # fmt: skip


async def _append(assembly: CoreAssembly, partition: Partition, batch: bytes, batches: int) -> float:
    """Seconds until all are durable."""
    began = time.perf_counter()
    result = None
    for _ in range(batches):
        while (result := assembly.plane.append(partition.handle, batch)) is None:
            await assembly.storage.make_room(partition.files, partition.handle, len(batch))
            await trio.lowlevel.checkpoint()
        assert result.error_code == 0
        await trio.lowlevel.checkpoint()  # a turn of the core, as after a request: the journal writes what there is
    assert result is not None
    await assembly.plane.wait_committed(partition.handle, result.end_offset, result.leader_epoch)
    return time.perf_counter() - began


def _count(data: Buffer) -> int:
    """Records of whole batches: CRCs are checked, and each record is decoded, in C."""
    assert data
    assert find_batches_end(data, -1)[0] == len(data)
    position = ffi.new("size_t *")
    out, counted = ffi.new("tpc_record[]", _BATCH_RECORDS_MAX), 0
    for header, place in walk_headers(data):
        position[0] = place + BATCH_HEADER_BYTES
        end = place + header.size_bytes
        taken = lib.tpc_records_read(ffi.from_buffer(data), end, position, out, _BATCH_RECORDS_MAX)
        assert taken == header.records_count
        assert position[0] == end
        counted += taken
    return counted


async def _read(partition: Partition, first: int, end: int) -> float:
    """Seconds to read and count all of [first, end)."""
    began = time.perf_counter()
    offset = first
    while offset < end:
        buffers, _size = await partition.read(offset, end, _READ_BYTES, at_least_one=True)
        counted = sum(_count(bytes(buffer)) for buffer in buffers)
        assert counted, f"nothing at {offset} though there is something up to {end}"
        offset += counted
    assert offset == end, f"{offset - end} records too many"
    return time.perf_counter() - began


async def _measure(assembly: CoreAssembly, value_bytes: int, repeats: int) -> Shape:
    partition = await _open_partition(assembly, f"shape-{value_bytes}")
    per_batch = max(1, min(_BATCH_RECORDS_MAX, _BATCH_BYTES_MAX // value_bytes))
    batches = -(-RECORDS // per_batch)
    records = batches * per_batch
    batch = record_batch(per_batch, value_bytes)
    appends, reads = [], []
    for _ in range(repeats):
        await assembly.storage.make_room(partition.files, partition.handle, (len(batch) + 64) * batches)
        first = partition.bounds().log_end_offset
        appends.append(await _append(assembly, partition, batch, batches))
        reads.append(await _read(partition, first, first + records))
    append_s, read_s = statistics.median(appends), statistics.median(reads)
    return Shape(
        value_bytes, batches, round(records / append_s / 1000, 1), round(append_s * 1000, 3),
        round(records / read_s / 1000, 1),
    )  # fmt: skip


async def measure(data: Path, repeats: int) -> list[Shape]:
    async with open_assembly(_options(data)) as assembly, trio.open_nursery() as nursery:
        nursery.start_soon(assembly.storage.run_maintenance)
        await _until_grown(data)
        shapes = [await _measure(assembly, value_bytes, repeats) for value_bytes in SHAPES]
        nursery.cancel_scope.cancel()
    return shapes


async def _until_grown(data: Path) -> None:
    """The journal's blocks are written once before they count; that is not to be measured."""
    journal = data / "journals" / "0000.journal"
    blocks, grown_by = -1, time.monotonic() + _JOURNAL_GROWS_S
    while time.monotonic() < grown_by and journal.stat().st_blocks != blocks:
        blocks = journal.stat().st_blocks
        await trio.sleep(0.5)


def main(arguments: list[str]) -> None:
    data = Path(arguments[0]) / "storage-shapes"
    try:
        with DataDirectory.open(data):
            rounds = int(arguments[1]) if len(arguments) > 1 else 15
            shapes = trio_ring.run(measure, data, rounds, options=ring_options())
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print(json.dumps([shape._asdict() for shape in shapes]))


if __name__ == "__main__":
    main(sys.argv[1:])
