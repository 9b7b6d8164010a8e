"""How much of what was written a core keeps in memory for those who read it soon after.

Records lie in memory anyway, where they were received, until they are in a segment; what is written past the page
cache is nowhere else then. So they stay, the oldest going first, within a bound that is looked at with every beat of
the core: `log.cache.max.bytes` of the node, and half of the memory that it could have, whoever uses the rest
(`MemAvailable`, and what the control group leaves). What is above it goes back to the kernel in slices.

The cache grows to that bound by memory that another thread has made resident (native/io/prefault.c), for a small
share of a CPU: page faults of the core itself would cost a producer at full speed most of its rate. It grows for those
who read: by what went before a partition's reader had come to it. Of what nobody reads 32 MiB are in memory. A core
that has neither appended nor answered a fetch for a while gives up what is above that, a slice at a time.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMINFO: Final = Path("/proc/meminfo")
OWN_CONTROL_GROUPS: Final = Path("/proc/self/cgroup")
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
MEMINFO_HEAD_BYTES: Final = 512
"""MemAvailable is its third line."""
LOOKS_PER_WALK: Final = 25
"""Some ten seconds of a core with work."""
SHORT_OF_SOMETHING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""A file cannot be opened for now, whatever file it is."""
SHARE: Final = 2
"""One part in so many of what the node could have."""
SLICE_BYTES: Final = 16 << 20
"""Given back at once; some 4 ms of the core."""
GIVEN_BACK_BYTES_MIN: Final = 64 << 20
"""So much above the bound goes back to the kernel; what is less will be used again."""
BEHIND_BYTES: Final = 512 << 20
"""Kept besides, whatever its pages cost, while a replica is behind: what has left memory is read from files for it,
much more slowly than a busy leader writes.
"""
REST_LOOKS: Final = 40
"""20 s in which nothing was appended and nothing fetched: the cache goes, ..."""
REST_BYTES: Final = 64 << 20
"""... so much of it at each further look."""
LACKING_BYTES_MAX: Final = 64 << 20
"""Made resident at most of what went in vain; what that thread can have under way."""
GROWTH_PERMILLE: Final = 25
"""Of a CPU, for making memory resident."""
GROWTH_PERMILLE_AT_EASE: Final = 100
"""As long as the core works less than a quarter of the time."""


class CacheCounts(NamedTuple):
    """Bytes, of a data plane since it was made."""

    evicted: int
    """What has gone so that something else could stay."""
    lacking: int
    """Of that, what those who read had not come to yet."""
    moved: int
    """Appended, and given to those who read; it changes with each read."""


class Cache(Protocol):
    """What a data plane keeps (`RingDataPlane`)."""

    def cached_bytes(self) -> int: ...

    def set_cache_bytes_max(self, bytes_max: int, behind_bytes_max: int) -> None:
        """And what may be kept, if that is more, while a replica that is sent to is behind."""
        ...

    def evict(self, bytes_max: int) -> bool:
        """Give up so much of what is above the bound; whether there is more."""
        ...

    def trim_memory(self, kept_bytes: int = 0) -> None:
        """What malloc has free goes back to the kernel, but for about so much of it."""
        ...

    def prefault(self, wanted_bytes: int, permille: int) -> int:
        """Bytes that have become resident since the last call; asks for so many more, for that share of a CPU."""
        ...

    def cache_counts(self) -> CacheCounts: ...

    def waited_ns(self) -> int:
        """Time that the core has waited in the kernel, since it began."""
        ...


def available_bytes() -> int:
    """What this process could still have without anybody being pushed out, page cache aside."""
    return AvailableMemory()()


class AvailableMemory:
    """:func:`available_bytes` again and again, cheaply: which control groups have a limit is looked up now and then.
    To walk their folders takes ten times as long as all else that a beat of a core does.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._limited: list[tuple[Path, tuple[str, str]]] = []

    def __call__(self) -> int:
        """OSError: it cannot be looked at now."""
        if self._looks % LOOKS_PER_WALK == 0:
            self._limited = list(_limited_control_groups())
        self._looks += 1
        return min(_available_on_machine(), *map(_left_by, self._limited), limits.BYTES_WITHOUT_BOUND)


def _available_on_machine() -> int:
    fd = os.open(MEMINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _before, _name, rest = os.pread(fd, MEMINFO_HEAD_BYTES, 0).partition(b"MemAvailable:")
    finally:
        os.close(fd)
    return int(rest.split(maxsplit=1)[0]) * 1024 if rest else 0


def _limited_control_groups() -> Iterator[tuple[Path, tuple[str, str]]]:
    """Each level above this process that has a limit (v2 and v1), with the names of its limit and of what is used."""
    for line in OWN_CONTROL_GROUPS.read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = CONTROL_GROUPS / controllers
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if root not in (folder, *folder.parents):
                break
            if _left_by((folder, names)) < limits.BYTES_WITHOUT_BOUND:
                yield folder, names


def _left_by(limited: tuple[Path, tuple[str, str]]) -> int:
    """A control group's limit less what is used, except for clean files."""
    folder, (limit_name, used_name) = limited
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= limits.BYTES_WITHOUT_BOUND:
            return limits.BYTES_WITHOUT_BOUND
        used = int((folder / used_name).read_text())
        return max(0, int(limit) - used + _inactive_file_bytes(folder))
    except (OSError, ValueError) as error:  # not there, or not for us to see
        if isinstance(error, OSError) and error.errno in SHORT_OF_SOMETHING:
            raise
        return limits.BYTES_WITHOUT_BOUND


def _inactive_file_bytes(folder: Path) -> int:
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _space, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


class CacheBound:
    """The bound of one core's cache, one of `cores` on the node."""

    def __init__(
        self, cache: Cache, node_bytes_max: int, cores: int, available: Callable[[], int] | None = None
    ) -> None:
        """`node_bytes_max` -1: no other bound than the memory that is there. Sets the first bound."""
        self._cache = cache
        self._cores = cores
        self._configured = limits.BYTES_WITHOUT_BOUND if node_bytes_max < 0 else node_bytes_max // cores
        self._available = available or AvailableMemory()
        self._resident = limits.CACHE_BYTES_SURE
        """What the cache may have without a page's first touch, about: what it had, and what was made ready for it."""
        self._looked = time.monotonic_ns(), cache.waited_ns()
        self._counts = cache.cache_counts()
        self._quiet_looks = 0
        self._lacking_bytes = 0
        """What would have stayed for those who read if there had been as much memory more."""
        self._bound_known = min(self._configured, limits.CACHE_BYTES_SURE)
        self._set(self._bound(cache.cached_bytes()))

    def _bound(self, cached_bytes: int) -> int:
        """All cores' caches count as memory that there is; the others are taken to have as much as this one. What it
        was when it could be looked at last, while connections have taken all descriptors.
        """
        try:
            there = self._available() // self._cores + cached_bytes
        except OSError:
            return self._bound_known
        self._bound_known = min(self._configured, max(there // SHARE, limits.CACHE_BYTES_SURE))
        return self._bound_known

    def _set(self, bound: int) -> None:
        self._cache.set_cache_bytes_max(min(bound, self._resident), min(bound, self._resident + BEHIND_BYTES))

    async def look(self) -> None:
        """Move the bound with the memory that is there. A small cache is left alone: a core at rest reads nothing."""
        cached_bytes, before = self._cache.cached_bytes(), self._counts
        self._counts = now = self._cache.cache_counts()
        self._quiet_looks = self._quiet_looks + 1 if now.moved == before.moved else 0
        if cached_bytes <= limits.CACHE_BYTES_SURE and now.evicted == before.evicted:
            return
        bound = self._bound(cached_bytes)
        self._grow(bound, now.lacking - before.lacking)
        if self._quiet_looks >= REST_LOOKS:
            self._resident = max(min(self._resident, cached_bytes) - REST_BYTES, limits.CACHE_BYTES_SURE)
        self._set(bound)
        given_back = cached_bytes - bound >= GIVEN_BACK_BYTES_MIN
        while self._cache.evict(SLICE_BYTES):
            if given_back:
                self._cache.trim_memory()
            await trio.lowlevel.checkpoint()
        if given_back:
            self._cache.trim_memory()
            self._resident = max(self._cache.cached_bytes(), limits.CACHE_BYTES_SURE)

    def _grow(self, bound: int, lacking_now: int) -> None:
        """By what was lacking, not by all that the machine has: memory that nobody fills costs its first touch, too.
        What goes because the core is at rest is lacking for nobody.
        """
        permille = GROWTH_PERMILLE_AT_EASE if self._is_at_ease() else GROWTH_PERMILLE
        if self._quiet_looks:
            lacking_now = self._lacking_bytes = 0
        self._lacking_bytes = min(self._lacking_bytes + lacking_now, LACKING_BYTES_MAX)
        wanted = max(0, min(bound - self._resident, self._lacking_bytes)) if lacking_now else 0
        ready = self._cache.prefault(wanted, permille)
        self._resident += ready
        self._lacking_bytes = max(0, self._lacking_bytes - ready)

    def _is_at_ease(self) -> bool:
        """Since the last look, which comes with every beat while the cache is in use."""
        (since_ns, waited_before_ns), self._looked = self._looked, (time.monotonic_ns(), self._cache.waited_ns())
        now_ns, waited_ns = self._looked
        return 4 * (waited_ns - waited_before_ns) > 3 * (now_ns - since_ns)
