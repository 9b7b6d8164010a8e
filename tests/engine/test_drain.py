"""The end of a core with many partitions: what it costs is counted, not timed."""

from __future__ import annotations

import uuid
from collections import Counter
from unittest import mock

from tests.engine.in_place_core import held, on_core, recovered_copy
from tests.log.log_batches import batch
from tpc_broker.engine.disk import RingDisk
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition

PARTITIONS = 200
OPERATIONS = ("close", "truncate", "fdatasync", "fsync_directory", "rename", "open")
TOPIC = TopicId(uuid.UUID(int=78))


async def written_partitions(bench):
    """Partitions that were all made, and first written, just now; what each holds."""
    config = load_settings("", ()).topic_config({}, is_internal=False)
    keys = [TopicPartition(TOPIC, PartitionIndex(index)) for index in range(PARTITIONS)]
    await bench.storage.prepare([(key, "many") for key in keys])
    results, wanted = [], {}
    for key in keys:
        files = await bench.storage.open(key, "many", config)
        await bench.storage.begin_epoch(files)
        handle = bench.storage.register(files, config, is_internal=False)
        data = batch(0, [str(key).encode()], epoch=files.leader_epoch)
        await bench.storage.make_room(files, handle, len(data))
        results.append((handle, bench.plane.append(handle, data)))
        wanted[key] = {0: data[21:]}
    for handle, result in results:
        await bench.plane.wait_committed(handle, result.end_offset, result.leader_epoch)
    return wanted


def counted(counts: Counter[str]):
    """Patches that count what is asked of the disk one by one."""
    def count(name):
        plain = getattr(RingDisk, name)

        def counting(self, *arguments, **named):
            counts[name] += 1
            return plain(self, *arguments, **named)

        return mock.patch.object(RingDisk, name, counting)

    return [count(name) for name in OPERATIONS]


def test_a_drain_does_few_things_one_by_one(tmp_path):
    async def body(bench):
        wanted = await written_partitions(bench)
        await bench.storage.write_behind()
        counts: Counter[str] = Counter()
        patches = counted(counts)
        for patch in patches:
            patch.start()
        try:
            assert await bench.storage.drain()
        finally:
            for patch in patches:
                patch.stop()
        assert counts.total() < PARTITIONS / 4, counts
        for path in (bench.files.folder.path.parent).glob("many-*/*.log"):
            assert path.stat().st_blocks * 512 <= 4096, "reserved space was not given back"
        recovered = await recovered_copy(bench, tmp_path / "drained")
        assert not recovered.offline
        assert recovered.report.commits_count == 0, "something was left to be replayed"
        for key, held_before in wanted.items():
            assert await held(recovered.storages[key]) == held_before
        await recovered.close()

    on_core(tmp_path, body)
