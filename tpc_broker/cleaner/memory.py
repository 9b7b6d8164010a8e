"""Memory for a job's map and its pieces."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024
"""What is as large has huge pages, if there are any: a map of keys is read at random, and all of it is made anew for
each job.
"""


def map_memory(size: int) -> mmap.mmap:
    """Zeros, of this process alone: what is shared, as mmap.mmap() has it by default, gets no huge pages, and is not
    given back by MADV_DONTNEED.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES:
        with suppress(OSError):  # a kernel without
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
