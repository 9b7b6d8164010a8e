"""Memory for parts of files on their way between nodes, used again and again.

A part is megabytes, and hundreds of them come a second. In memory that is new each time the first touch of its pages
costs more than the bytes: the kernel clears each one, and on a virtual machine the host may have to find it.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from tpc_broker import limits

if TYPE_CHECKING:
    from tpc_broker.native_bytes import Buffer

PREFIX_BYTES: Final = limits.BLOCK_BYTES
"""In front of a part's bytes, which begin with a block: room for what a frame has there."""
CAPACITY_BYTES: Final = PREFIX_BYTES + limits.SHIPPED_CHUNK_BYTES + limits.BLOCK_BYTES
KEPT_MAX: Final = 9
"""As many as a core that fills its replicas asks for at a time."""


class PartBuffers:
    """Of one core. What is never given back goes with its last user."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> memoryview:
        """`CAPACITY_BYTES`, from the beginning of a page on, with anything in them."""
        if self._free:
            return memoryview(self._free.pop())
        memory = mmap.mmap(-1, CAPACITY_BYTES)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(memory)

    def give(self, part: Buffer) -> None:
        """A view of what was taken, or a part that never was: nobody looks at it any more."""
        memory = part.obj if isinstance(part, memoryview) else None
        if isinstance(memory, mmap.mmap) and len(self._free) < KEPT_MAX:
            assert all(memory is not other for other in self._free), "given back twice"
            self._free.append(memory)

    def clear(self) -> None:
        """Nothing is on its way."""
        self._free.clear()


def is_of_buffer(part: Buffer) -> bool:
    """Whether a part's first byte is at the beginning of a block of memory."""
    return isinstance(part, memoryview) and isinstance(part.obj, mmap.mmap)
