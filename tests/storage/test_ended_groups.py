"""Logs of replicas that are to be replicas no more, in a copy: where they end, and what they forget."""

from __future__ import annotations

from tests.storage.checkpointed_core import DATA, CheckpointedCore
from tests.support.cleaned_copies import swap_copy
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.storage.recovery.ended_groups import end_groups, remove, write_recovered
from tpc_broker.storage.recovery.recovery import recover_core


async def test_a_log_ends_where_it_was_committed_and_forgets_its_group():
    world = CheckpointedCore(3, partitions=3)
    await world.open()
    for _ in range(8):
        await world.append()
    await world.checkpoint()
    for _ in range(4):
        await world.append()
    recovered = await recover_core(world.disk, DATA, 0, new_journal_id=bytes(16))
    cut, kept, gone = (partition.key for partition in world.partitions)
    for storage in recovered.storages.values():
        storage.notes, storage.voted_for = {1: b"a marker's", VOTE_NOTE: b"a vote's"}, 2
    ends = {key: storage.written_end_offset for key, storage in recovered.storages.items()}
    assert ends[cut] > 3
    await remove(recovered, DATA, [gone])
    assert await end_groups(recovered, {cut: ends[cut] - 2, kept: ends[kept] + 7}) == {kept: ends[kept]}
    await write_recovered(recovered)
    await recovered.close()
    again = await recover_core(world.disk, DATA, 0, new_journal_id=bytes(16))
    assert {key: storage.written_end_offset for key, storage in again.storages.items()} == {
        cut: ends[cut] - 2, kept: ends[kept],
    }  # fmt: skip
    for key, storage in again.storages.items():
        assert (storage.notes, storage.voted_for) == ({}, -1)
        assert storage.checkpointed.committed_end_offset == storage.written_end_offset
        acknowledged = next(one for one in world.partitions if one.key == key).acknowledged
        assert await world_batches(storage) == [data for base, data in acknowledged
                                                if base < storage.written_end_offset]  # fmt: skip
    await again.close()


async def test_what_was_cleaned_since_it_was_asked_what_is_committed_stays():
    """A backup of a node asks before it takes its moment: a log may go on, and be cleaned, in between."""
    world = CheckpointedCore(3, partitions=1)
    await world.open()
    for _ in range(8):
        await world.append()
    await world.checkpoint()
    recovered = await recover_core(world.disk, DATA, 0, new_journal_id=bytes(16))
    [(key, storage)] = recovered.storages.items()
    await storage.roll()
    storage.mark_checkpointed(await storage.capture())
    await swap_copy(storage, storage.segments[:1])
    end = storage.cleaned.end_offset
    assert 2 < end < storage.written_end_offset
    assert await end_groups(recovered, {key: end - 2}) == {}
    assert storage.written_end_offset == end
    await recovered.close()


async def world_batches(storage) -> list[bytes]:
    found, offset = [], 0
    while offset < storage.written_end_offset:
        data = await storage.read(offset, 1)
        size = int.from_bytes(data[8:12], "big") + 12
        found.append(bytes(data[:size]))
        offset += 1
    return found
