"""A partition's producers as C has them, for those who ask (`ProducersPort`)."""

from __future__ import annotations

import errno
from struct import Struct
from typing import TYPE_CHECKING, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.producers_port import ToldProducer
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError

if TYPE_CHECKING:
    from tpc_broker._ring import tpc_plane

_ROW: Final = Struct("=3q3i4x")
assert _ROW.size == ffi.sizeof("tpc_told_producer")


def told_producers(plane: tpc_plane, handle: int, count_max: int) -> list[ToldProducer] | None:
    """By id, those with an open transaction first of all if they are too many; None: too many of those."""
    state = ffi.new("tpc_partition_state *")
    if lib.tpc_partition_get_state(plane, handle, state) < 0:
        raise PartitionOfflineError("the partition was withdrawn")
    told_max = min(state.producers_count, count_max)
    rows = ffi.new("tpc_told_producer[]", max(1, told_max))
    count = lib.tpc_partition_tell_producers(plane, handle, rows, told_max)
    if count == -errno.EAGAIN:
        raise LeadershipLostError("the log was cut, and its producers are not found again yet")
    if count == -errno.ENOBUFS:
        return None
    assert count == told_max, "nothing has changed since they were counted"
    told = _ROW.iter_unpack(bytes(ffi.buffer(rows, count * _ROW.size)))
    return sorted(ToldProducer._make(fields) for fields in told)
