"""Write-behind past the page cache as the core does it."""

from tpc_broker.storage.segments import segment_appender as storage_module
from tpc_broker.storage.segments.files import aligned_buffer


async def append_past_the_page_cache(storage, batches):
    """How many of the batches are in the files now; 0: they are too short for a direct write."""
    data, block_bytes = b"".join(batches), storage_module.DIRECT_BLOCK_BYTES
    reach = storage.direct_reach(len(data))
    if not reach:
        return 0
    place = storage.active.size_bytes % block_bytes
    staging = aligned_buffer(place + len(data), lambda: None)[place:]
    staging[: len(data)] = data
    ends = [sum(map(len, batches[: number + 1])) for number in range(len(batches))]
    whole = max([end for end in ends if end <= reach], default=0)
    before = storage.written_end_offset
    assert await storage.append_direct(storage.active, staging[:reach], whole)
    offset, count = before, 0
    while offset < storage.written_end_offset:
        offset += int.from_bytes(batches[count][23:27], "big") + 1
        count += 1
    return count
