"""Write-behind past the page cache as the core does it, and a disk that holds it to its rules."""

import errno
import os

from tests.storage.fake_disk import FakeDisk
from tpc_broker._bytes import ffi
from tpc_broker.storage import segment_appender as storage_module
from tpc_broker.storage.files import aligned_buffer


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


class DirectDisk(FakeDisk):
    """Refuses what Linux refuses of direct writes, and knows which blocks were written in which way."""

    def __init__(self, *, refuses=None, **settings):
        super().__init__(**settings)
        self.refuses = refuses
        self.direct = set()
        self.blocks = {}

    async def open(self, path, flags, mode=0o644):
        if flags & os.O_DIRECT and self.refuses == "open":
            raise OSError(errno.EINVAL, str(path))
        fd = await super().open(path, flags, mode)
        if flags & os.O_DIRECT:
            self.direct.add(fd)
        return fd

    def _written(self, fd, position, length):
        way = "direct" if fd in self.direct else "cached"
        for block in range(position // 4096, -(-(position + length) // 4096)):
            self.blocks.setdefault((id(self.descriptors[fd]), block), set()).add(way)

    async def write_at(self, fd, data, position):
        if fd in self.direct:
            address = int(ffi.cast("uintptr_t", ffi.from_buffer(data)))
            assert address % 4096 == position % 4096 == len(data) % 4096 == 0, (address, position, len(data))
            if self.refuses == "write":
                raise OSError(errno.EINVAL, "direct write")
        await super().write_at(fd, data, position)

    async def writev(self, fd, buffers, position):
        self._written(fd, position, sum(map(len, buffers)))
        await super().writev(fd, buffers, position)

    def ways(self):
        """How often blocks were written in which ways."""
        found = [tuple(sorted(ways)) for ways in self.blocks.values()]
        return {ways: found.count(ways) for ways in set(found)}
