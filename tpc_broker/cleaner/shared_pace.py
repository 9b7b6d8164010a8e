"""`log.cleaner.io.max.bytes.per.second` for all cleaners of a node together: a file in memory that they share.

It has the rate and the moment at which everything that was asked for so far is paid for. Who wants to read or write
more adds to that moment under a lock, and goes on when what it added is paid for too: the sum is the rate whatever the
number of processes, and one that works alone has all of it. The lock is one of the kernel's (fcntl(2)): it goes with a
process that is killed. A new rate forgets what was owed under the old one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS: Final = struct.Struct("=dd")
"""Bytes a second; when all is paid for, by the monotonic clock, in seconds."""
_LOOK_S: Final = 0.1
_UNBOUNDED: Final = 1e18


class SharedPace:
    """One process's side. `wait(seconds)` returns after so many at most, True: whoever asked is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def make(cls) -> SharedPace:
        """Without a bound, in memory of its own."""
        fd = os.memfd_create("cleaner pace", os.MFD_CLOEXEC)
        made = cls(fd)
        made.set_rate(_UNBOUNDED)
        return made

    @property
    def fd(self) -> int:
        """To be handed to a cleaner."""
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def set_rate(self, bytes_per_second: float) -> None:
        with self._locked():
            self._write(max(bytes_per_second, limits.CLEANER_BYTES_PER_SECOND_MIN), 0.0)

    def spend(
        self,
        count: int,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Return when so many bytes may have been read or written; or nobody wants it any more."""
        rate, _paid_s = self._read()
        if rate >= _UNBOUNDED:
            return
        with self._locked():
            rate, paid_s = self._read()
            due_s = max(paid_s, clock()) + count / rate
            self._write(rate, due_s)
        while (left_s := due_s - clock()) > 0:
            if wait(min(left_s, _LOOK_S)) or self._read()[1] < due_s:
                return

    def _read(self) -> tuple[float, float]:
        rate, paid_s = _NUMBERS.unpack(os.pread(self._fd, _NUMBERS.size, 0))
        return rate, paid_s

    def _write(self, rate: float, paid_s: float) -> None:
        os.pwrite(self._fd, _NUMBERS.pack(rate, paid_s), 0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Between processes; each of them has one thread that comes here."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
