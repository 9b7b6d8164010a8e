"""Which descriptors this process has open, and how many more it may have."""

from __future__ import annotations

import gc
import os
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_descriptors() -> set[int]:
    """What is garbage is closed first, else it would go while somebody counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return {int(link.name) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)}


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """So many can be opened within, whichever numbers are taken."""
    taken, (soft, hard) = open_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(len(taken) + count + 1) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
