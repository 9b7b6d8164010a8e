"""The memory of a data plane: what `cache_bound.Cache` and `spare_memory.Memory` ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpc_broker._ring import ffi, lib
from tpc_broker.engine.cache_bound import CacheCounts

if TYPE_CHECKING:
    from tpc_broker._ring import tpc_plane
    from tpc_broker.engine.connections import Connections
    from tpc_broker.engine.ring import Ring


class CachePlane:
    _plane: tpc_plane
    _connections: Connections
    _ring: Ring
    _closed: bool

    def _begin_cache(self) -> None:
        self._prefault: Any = None
        self._counters = ffi.new("tpc_plane_statistics *"), ffi.new("tpc_fetch_statistics *")

    def _end_cache(self) -> None:
        if self._prefault is not None:
            lib.tpc_prefault_free(self._prefault)

    def cached_bytes(self) -> int:
        return int(self._connections.budget.bytes_cached)

    def set_cache_bytes_max(self, bytes_max: int, behind_bytes_max: int) -> None:
        lib.tpc_plane_set_tail_bytes_max(self._plane, bytes_max)
        lib.tpc_plane_set_tail_bytes_behind_max(self._plane, behind_bytes_max)

    def evict(self, bytes_max: int) -> bool:
        return not self._closed and bool(lib.tpc_plane_evict(self._plane, bytes_max))

    def trim_memory(self, kept_bytes: int = 0) -> None:
        lib.tpc_plane_trim_memory(kept_bytes)

    def frame_bytes(self) -> int:
        return int(self._connections.budget.bytes_used)

    def take_peak_frame_bytes(self) -> int:
        budget = self._connections.budget
        peak_bytes, budget.bytes_peak_lately = budget.bytes_peak_lately, budget.bytes_used
        return int(peak_bytes)

    def prefault(self, wanted_bytes: int, permille: int) -> int:
        """As `engine.cache_bound.Cache` says. Where no thread can be started, the core itself touches what it gets."""
        if self._closed or (wanted_bytes == 0 and self._prefault is None):
            return 0
        if self._prefault is None:
            self._prefault = lib.tpc_prefault_new()
        if self._prefault == ffi.NULL:
            return wanted_bytes
        return int(lib.tpc_prefault_turn(self._prefault, wanted_bytes, permille))

    def cache_counts(self) -> CacheCounts:
        plane, fetches = self._counters
        lib.tpc_plane_get_statistics(self._plane, plane)
        lib.tpc_plane_get_fetch_statistics(self._plane, fetches)
        moved = plane.append_bytes + plane.reads + fetches.record_bytes
        return CacheCounts(int(plane.tail_evicted_bytes), int(plane.tail_lacking_bytes), int(moved))

    def waited_ns(self) -> int:
        return int(self._ring.live_statistics().wait_ns)
