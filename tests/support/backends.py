"""The two backends of a ring in tests: which one this host has, and what is skipped where it refuses io_uring.

There the whole suite runs on the plain backend: `tests/conftest.py` says so once, in the environment. What is about
io_uring itself (its features, the sets of older kernels) is marked and skipped; everything else has to pass.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

import pytest

from tpc_broker._ring import lib
from tpc_broker.engine.ring import Backend, Ring, RingUnavailable

PROBE_ENTRIES: Final = 8
_IO_URING_SETUP: Final = 425
_PARAMETERS_BYTES: Final = 120
_OF_THE_HOST: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOMEM})


def _why_no_io_uring() -> str | None:
    """In the broker's words; None where there is one. It counts only if the system call itself is refused by the host:
    that our own ring cannot be set up is a defect, which must not make a run green without any test of io_uring.
    """
    try:
        Ring(PROBE_ENTRIES, backend=Backend.IO_URING).close()
    except RingUnavailable as reason:
        if _error_of_the_call() not in _OF_THE_HOST:
            raise
        return str(reason)
    return None


def _error_of_the_call() -> int:
    """Of a plain io_uring_setup(2); 0: it is allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_IO_URING_SETUP, PROBE_ENTRIES, ctypes.create_string_buffer(_PARAMETERS_BYTES))
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


WHY_NO_IO_URING: Final = _why_no_io_uring()
OURS: Final = Backend.IO_URING if WHY_NO_IO_URING is None else Backend.PLAIN
"""Of rings for which a test says nothing."""
OURS_IN_C: Final = lib.TPC_BACKEND_IO_URING if OURS is Backend.IO_URING else lib.TPC_BACKEND_PLAIN
about_io_uring: Final = pytest.mark.skipif(
    WHY_NO_IO_URING is not None, reason="about io_uring itself, which is refused here"
)


def on_io_uring(*values: Any, name: str | None = None) -> Any:
    """A set of parameters of a test that runs on io_uring, and elsewhere is skipped."""
    return pytest.param(*values, marks=about_io_uring, id=name)
