"""Memory of a job."""

import mmap

import pytest

from tpc_broker.cleaner.memory import HUGE_PAGE_BYTES, map_memory


@pytest.mark.parametrize("size", [mmap.PAGESIZE, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + mmap.PAGESIZE])
def test_what_is_not_needed_any_more_is_given_back(size):
    """What other processes might share would still be there."""
    memory = map_memory(size)
    assert len(memory) == size
    memory[size - 1] = 1
    memory.madvise(mmap.MADV_DONTNEED)
    assert memory[size - 1] == 0
