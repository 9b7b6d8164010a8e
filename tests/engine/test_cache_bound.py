"""The cache of what was written: a strict bound that follows the memory that is there; what is above it goes back."""

import errno
import multiprocessing
import os
import resource

import psutil
import pytest
import trio

from tests.engine.test_plane_fetch import asks
from tests.support.fetch_bench import FetchBench
from tests.support.plane_bench import records_of
from tests.support.plane_values import PlaneLimits
from tests.support.waiting import eventually
from tpc_broker import limits
from tpc_broker._ring import ffi, lib
from tpc_broker.engine import cache_bound
from tpc_broker.engine.cache_bound import CacheBound, CacheCounts
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.engine.spare_memory import resident_bytes

MIB = 1 << 20
GIB = 1 << 30
RUN_BYTES = ffi.sizeof("tpc_tail_batch") + 8


class Cache:
    """What a plane does with its bound, in slices of what is asked for."""

    def __init__(self, cached=0):
        self.cached, self.bytes_max, self.slices, self.trims = cached, None, [], 0
        self.resident_at_once, self.asked, self.waited = True, [], 0
        self.evicted = self.lacking = self.moved = 0

    def cached_bytes(self):
        return self.cached

    def set_cache_bytes_max(self, bytes_max, behind_bytes_max):
        assert behind_bytes_max >= bytes_max
        self.bytes_max, self.behind_bytes_max = bytes_max, behind_bytes_max

    def evict(self, bytes_max):
        gone = max(0, min(bytes_max, self.cached - self.bytes_max))
        self.cached -= gone
        self.slices.append(gone)
        return self.cached > self.bytes_max

    def trim_memory(self, kept_bytes=0):
        assert not kept_bytes
        self.trims += 1

    def prefault(self, wanted_bytes, permille):
        self.asked.append((wanted_bytes, permille))
        return wanted_bytes if self.resident_at_once else 0

    def go(self, evicted, *, lacking=None):
        """So much has gone until now, for somebody who reads unless it is said how much."""
        self.evicted, self.moved = evicted, self.moved + 1
        self.lacking = evicted if lacking is None else lacking

    def cache_counts(self):
        return CacheCounts(self.evicted, self.lacking, self.moved)

    def waited_ns(self):
        return self.waited


@pytest.fixture
def grows_at_once(monkeypatch):
    monkeypatch.setattr(cache_bound, "LACKING_BYTES_MAX", limits.BYTES_WITHOUT_BOUND)


@pytest.mark.usefixtures("grows_at_once")
@pytest.mark.parametrize(
    ("configured", "cores", "available", "bound"),
    [
        (-1, 1, 8 * GIB, 4 * GIB),
        (-1, 4, 8 * GIB, GIB),
        (GIB, 1, 8 * GIB, GIB),
        (GIB, 4, 8 * GIB, GIB // 4),
        (6 * GIB, 1, 8 * GIB, 4 * GIB),
        (-1, 2, 0, limits.CACHE_BYTES_SURE),
        (MIB, 1, 8 * GIB, MIB),
        (0, 1, 8 * GIB, 0),
    ],
)
def test_the_bound_is_what_is_set_and_half_of_what_there_is(configured, cores, available, bound):
    cache = Cache()
    looked = CacheBound(cache, configured, cores, lambda: available)
    assert cache.bytes_max == min(bound, limits.CACHE_BYTES_SURE), "what is above that is made resident first"
    cache.cached = limits.CACHE_BYTES_SURE
    cache.go(8 * GIB)
    available = max(0, available - cores * cache.cached)
    trio.run(looked.look)
    assert cache.bytes_max == cache.behind_bytes_max == bound


def test_a_full_cache_grows_by_what_is_resident():
    cache = Cache()
    cache.resident_at_once = False
    bound = CacheBound(cache, -1, 1, lambda: GIB)
    cache.cached = limits.CACHE_BYTES_SURE
    there = (GIB + cache.cached) // 2
    for evicted in (GIB, 2 * GIB):
        cache.go(evicted)
        trio.run(bound.look)
        assert cache.bytes_max == limits.CACHE_BYTES_SURE
        assert cache.behind_bytes_max == min(there, limits.CACHE_BYTES_SURE + cache_bound.BEHIND_BYTES)
    assert [wanted for wanted, _permille in cache.asked] == [cache_bound.LACKING_BYTES_MAX] * 2
    cache.prefault = lambda wanted, permille: cache.asked.append((wanted, permille)) or 4 * MIB
    cache.go(cache.evicted + 1)
    trio.run(bound.look)
    assert cache.bytes_max == limits.CACHE_BYTES_SURE + 4 * MIB
    cache.cached = cache.bytes_max
    trio.run(bound.look)
    assert cache.asked[-1][0] == 0, "nobody has written since"
    assert cache.bytes_max == limits.CACHE_BYTES_SURE + 8 * MIB, "what had been asked for has come"


def test_a_cache_grows_by_what_went_and_not_by_all_that_the_machine_has():
    cache = Cache(limits.CACHE_BYTES_SURE)
    bound = CacheBound(cache, -1, 1, lambda: GIB)
    cache.resident_at_once = False
    for evicted in (MIB, 3 * MIB):
        cache.go(evicted)
        trio.run(bound.look)
    assert [wanted for wanted, _permille in cache.asked] == [MIB, 3 * MIB]
    cache.resident_at_once = True
    cache.go(4 * MIB)
    trio.run(bound.look)
    assert cache.bytes_max == limits.CACHE_BYTES_SURE + 4 * MIB
    cache.go(5 * MIB)
    trio.run(bound.look)
    assert [wanted for wanted, _permille in cache.asked][2:] == [4 * MIB, MIB]


def test_what_nobody_reads_makes_no_cache_grow():
    cache = Cache(limits.CACHE_BYTES_SURE)
    bound = CacheBound(cache, -1, 1, lambda: GIB)
    cache.go(GIB, lacking=0)
    trio.run(bound.look)
    assert [wanted for wanted, _permille in cache.asked] == [0]
    cache.go(2 * GIB, lacking=MIB)
    trio.run(bound.look)
    assert [wanted for wanted, _permille in cache.asked] == [0, MIB]
    assert cache.bytes_max == limits.CACHE_BYTES_SURE + MIB


@pytest.mark.usefixtures("grows_at_once")
def test_a_core_at_rest_gives_its_cache_up_by_and_by():
    cache = Cache()
    bound = CacheBound(cache, -1, 1, lambda: 4 * GIB)
    cache.go(GIB)
    trio.run(bound.look)
    grown = cache.bytes_max
    assert grown == limits.CACHE_BYTES_SURE + GIB
    cache.cached = grown
    for _look in range(cache_bound.REST_LOOKS - 1):
        trio.run(bound.look)
    assert cache.cached == grown, "it has not rested for long"
    cache.moved += 1
    for _look in range(cache_bound.REST_LOOKS):
        trio.run(bound.look)
    assert cache.cached == grown, "somebody has read meanwhile"
    trio.run(bound.look)
    assert cache.cached == grown - cache_bound.REST_BYTES
    assert max(cache.slices) == cache_bound.SLICE_BYTES
    cache.evicted += cache_bound.REST_BYTES
    cache.lacking += cache_bound.REST_BYTES
    trio.run(bound.look)
    assert cache.asked[-1][0] == 0, "what went by that is lacking for nobody"
    for _look in range(2 * GIB // cache_bound.REST_BYTES):
        trio.run(bound.look)
    assert cache.cached == cache.bytes_max == limits.CACHE_BYTES_SURE


@pytest.mark.parametrize(
    ("waited", "permille"),
    [(0, cache_bound.GROWTH_PERMILLE), (10**18, cache_bound.GROWTH_PERMILLE_AT_EASE)],
    ids=["busy", "at ease"],
)
def test_a_busy_core_grows_slowly(waited, permille):
    cache = Cache(limits.CACHE_BYTES_SURE)
    bound = CacheBound(cache, -1, 1, lambda: GIB)
    cache.waited = waited
    cache.go(1)
    trio.run(bound.look)
    assert [asked for _wanted, asked in cache.asked] == [permille]


def test_memory_is_made_resident_by_another_thread():
    """In a process of its own: in this one earlier tests may have left free memory that is resident already."""
    in_a_process_of_its_own(memory_is_made_resident)


def in_a_process_of_its_own(body):
    alone = multiprocessing.get_context("spawn").Process(target=body)
    alone.start()
    alone.join()
    assert alone.exitcode == 0


def memory_is_made_resident():
    process = psutil.Process()
    threads = process.num_threads()
    prefault = lib.tpc_prefault_new()
    assert lib.tpc_prefault_turn(prefault, 3 * MIB, 1000) == 0
    assert lib.tpc_prefault_turn(prefault, 0, 1000) == 0, "a piece is larger than what was wanted"
    lib.tpc_plane_trim_memory(0)
    before = process.memory_info().rss
    assert lib.tpc_prefault_turn(prefault, 25 * MIB, 1000) == 0
    eventually(lambda: process.memory_info().rss - before >= 20 * MIB, "it is resident")
    ready: list[int] = []

    def all_is_ready() -> bool:
        ready.append(lib.tpc_prefault_turn(prefault, 0, 1000))
        return sum(ready) >= 24 * MIB

    eventually(all_is_ready, "it is told")
    assert sum(ready) == 24 * MIB
    lib.tpc_prefault_turn(prefault, GIB, 1)
    lib.tpc_prefault_free(prefault)
    assert process.num_threads() == threads, "it does not wait for what is under way"


@pytest.mark.usefixtures("grows_at_once")
def test_what_others_need_is_given_back_in_slices():
    available = [8 * GIB]
    cache = Cache()
    bound = CacheBound(cache, -1, 1, lambda: available[0])
    cache.cached, available[0] = 3 * GIB, 5 * GIB
    cache.go(8 * GIB)
    trio.run(bound.look)
    assert (cache.cached, cache.bytes_max, cache.trims) == (3 * GIB, 4 * GIB, 0), "what we have counts as there"
    available[0] = GIB
    trio.run(bound.look)
    assert cache.cached == 2 * GIB
    assert cache.trims == GIB // cache_bound.SLICE_BYTES, "the kernel is given a slice at a time, too"
    assert max(cache.slices) == cache_bound.SLICE_BYTES
    available[0] = 9 * GIB
    cache.go(16 * GIB)
    trio.run(bound.look)
    assert cache.bytes_max == 11 * GIB // 2, "and may be taken again"


def test_a_core_at_rest_does_not_look():
    looks = []
    cache = Cache()
    bound = CacheBound(cache, -1, 1, lambda: looks.append(1) or GIB)
    for cache.cached in (0, limits.CACHE_BYTES_SURE):
        trio.run(bound.look)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("version", "limit", "left"), [(2, "1000000", 700_000), (1, "1000000", 700_000), (2, "max", None)]
)
def test_a_control_group_that_has_a_limit_counts(monkeypatch, tmp_path, version, limit, left):
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    group = mount / ("memory" if version == 1 else "") / "system.slice/broker"
    group.mkdir(parents=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    for name, text in zip(names, (limit, "500000"), strict=True):
        (group / name).write_text(text + "\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 200000\n")
    own.write_text("4:memory:/system.slice/broker\n" if version == 1 else "0::/system.slice/broker\n")
    monkeypatch.setattr(cache_bound, "CONTROL_GROUPS", mount)
    monkeypatch.setattr(cache_bound, "OWN_CONTROL_GROUPS", own)
    monkeypatch.setattr(cache_bound, "_available_on_machine", lambda: 10**9)
    assert cache_bound.available_bytes() == (left or 10**9)


def test_a_limit_that_was_found_is_read_again_and_folders_are_walked_rarely(monkeypatch):
    walks, left = [], iter([500, 400])
    monkeypatch.setattr(cache_bound, "_available_on_machine", lambda: 10**9)
    monkeypatch.setattr(cache_bound, "_limited_control_groups", lambda: walks.append(1) or ["group"])
    monkeypatch.setattr(cache_bound, "_left_by", lambda _group: next(left, 300))
    available = cache_bound.AvailableMemory()
    assert [available() for _look in range(3)] == [500, 400, 300]
    assert len(walks) == 1
    for _look in range(cache_bound.LOOKS_PER_WALK):
        available()
    assert len(walks) == 2


@pytest.mark.usefixtures("grows_at_once")
def test_the_bound_stays_while_memory_cannot_be_looked_at():
    def available():
        for number in shortage:
            raise OSError(number, os.strerror(number))
        return GIB

    shortage = []
    cache = Cache()
    bound = CacheBound(cache, -1, 1, available)
    cache.cached = limits.CACHE_BYTES_SURE
    cache.go(8 * GIB)
    trio.run(bound.look)
    known = cache.bytes_max
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        shortage[:] = [number]
        cache.cached += known // 2
        cache.go(cache.evicted + GIB)
        trio.run(bound.look)
        assert cache.bytes_max == known
    assert CacheBound(Cache(), -1, 1, available)._bound(0) == limits.CACHE_BYTES_SURE


def test_a_limit_that_cannot_be_looked_at_now_is_none_that_is_not_there(tmp_path):
    (tmp_path / "memory.max").write_text("1000000\n")
    limited = tmp_path, ("memory.max", "memory.current")
    assert cache_bound._left_by(limited) == limits.BYTES_WITHOUT_BOUND
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            cache_bound._left_by(limited)
        with pytest.raises(OSError, match="Too many open files"):
            cache_bound.available_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_memory_of_the_machine():
    assert cache_bound._available_on_machine() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


# -- in C --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path):
    bench = FetchBench(tmp_path / "journal", in_c=True, region_blocks=8192)
    yield bench
    bench.shut()


def write(bench, client, count, value):
    """So many batches, in a segment as far as the plane knows."""
    handle = bench.partitions["t", 0].handle
    bench.fill(client, "t", 0, [1] * count, value)
    bench.plane.write_behind_done(handle, bench.plane.state(handle).high_watermark)
    bench.plane.recycle(bench.plane.durable_cursor())


@pytest.mark.parametrize("value_bytes", [100, 5_000, 200_000])
def test_the_bound_is_kept_and_counts_what_finds_the_records(bench, value_bytes):
    bench.plane.set_tail_bytes_max(MIB)
    bench.make("t")
    client = bench.connect()
    for _ in range(30):
        write(bench, client, 20, bytes(value_bytes))
        now = bench.plane.statistics()
        assert now["tail_clean_bytes"] + now["tail_runs"] * RUN_BYTES <= MIB
        assert now["tail_clean_bytes"] + now["tail_evicted_bytes"] == now["append_bytes"]
    assert now["tail_clean_bytes"] > MIB / 2 or value_bytes == 100


def lacking_after(bench, client, count):
    """What was lacking for a reader of what has gone meanwhile, and how much went."""
    before = bench.plane.statistics()
    write(bench, client, count, bytes(100_000))
    after = bench.plane.statistics()
    return [after[name] - before[name] for name in ("tail_lacking_bytes", "tail_evicted_bytes")]


def read(bench, client, offset):
    bench.fetch(client, 12, asks(("t", 0, offset, 1)))


def test_what_goes_is_lacking_for_those_who_read_and_had_not_come_to_it(bench):
    bench.plane.set_tail_bytes_max(MIB)
    bench.make("t")
    client = bench.connect()
    lacking, evicted = lacking_after(bench, client, 30)
    assert evicted > MIB
    assert lacking == 0, "nobody reads"
    read(bench, client, 0)
    lacking, evicted = lacking_after(bench, client, 30)
    assert lacking == evicted > MIB
    read(bench, client, 60)
    lacking, evicted = lacking_after(bench, client, 5)
    assert (lacking, evicted > 0) == (0, True), "its reader has come to the end"
    lacking, evicted = lacking_after(bench, client, 30)
    assert 0 < lacking < evicted


def test_whoever_has_not_read_for_long_is_a_reader_no_more(tmp_path):
    limits = PlaneLimits(tail_bytes_max=0, unread_bytes_max=MIB)
    bench = FetchBench(tmp_path / "journal", in_c=True, region_blocks=8192, limits=limits)
    bench.make("t")
    client = bench.connect()
    for _ in range(2):
        read(bench, client, 0)
        lacking = [lacking_after(bench, client, 5) for _round in range(4)]
        assert [count == evicted for count, evicted in lacking] == [True, True, False, False]
        assert (sum(count for count, _evicted in lacking), lacking[-1][0]) == (MIB, 0)
    bench.shut()


def test_the_cache_is_on_top_of_the_budget_and_keeps_nobody_out(bench):
    bench.connections.set_limits(ConnectionLimits(budget_bytes=16 * MIB, request_bytes_max=4 * MIB))
    bench.plane.set_tail_bytes_max(48 * MIB)
    bench.make("t")
    client = bench.connect()
    for _ in range(10):
        write(bench, client, 5, bytes(900_000))
    assert bench.plane.statistics()["tail_clean_bytes"] > 40 * MIB
    assert bench.connections.statistics().budget_bytes_used < 64 * MIB
    assert bench.connections.statistics().starvations == 0


def keep_large_requests(bench, count):
    """A batch of 6 KB is kept where it arrived, with the whole request of 0.9 MB around it."""
    bench.connections.set_limits(ConnectionLimits(budget_bytes=16 * MIB, request_bytes_max=4 * MIB))
    bench.plane.set_tail_bytes_max(48 * MIB)
    bench.make("t")
    kept = bench.partitions["t", 0].handle
    client = bench.connect()
    for number in range(count):
        topic = f"gone{number}"
        gone = bench.make(topic)
        parts = [("t", 0, records_of(1, value=bytes(6_000))), (topic, 0, records_of(1, value=bytes(900_000)))]
        bench.send(client, parts)
        assert [error for error, _offset in bench.answer(client)] == [0, 0]
        for handle in (kept, gone):
            bench.plane.write_behind_done(handle, bench.plane.state(handle).high_watermark)
        bench.delete(topic)
        bench.plane.recycle(bench.plane.durable_cursor())
    assert not bench.closed


def test_small_batches_that_keep_large_requests_go_when_memory_is_short(bench):
    keep_large_requests(bench, 60)
    assert bench.connections.statistics().starvations == 0
    assert bench.plane.statistics()["tail_evicted_bytes"] > 0


def test_what_python_has_not_taken_yet_stays_when_memory_is_short(bench):
    bench.make("replicated")
    handle = bench.partitions["replicated", 0].handle
    bench.plane.set_replicated(handle)
    bench.plane.arm(handle, 7)
    bench.plane.append(handle, records_of(1))
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.write_behind_done(handle, 1)
    keep_large_requests(bench, 60)
    assert bench.plane.statistics()["tail_evicted_bytes"] > 0
    assert bench.plane.state(handle).tail_offset == 0
    assert bench.plane.take_appended() == [(handle, 7, 0, 1)]


def test_what_is_given_up_goes_back_to_the_kernel(bench):
    bench.plane.set_tail_bytes_max(512 * MIB)
    bench.make("t")
    client = bench.connect()
    process = psutil.Process()
    for _ in range(20):
        write(bench, client, 10, bytes(900_000))
    full = process.memory_info().rss
    bench.plane.set_tail_bytes_max(16 * MIB)
    lib.tpc_plane_trim_memory(0)
    assert full - process.memory_info().rss > 130 * MIB


def test_a_part_of_what_is_free_is_kept():
    in_a_process_of_its_own(a_part_is_kept)


def a_part_is_kept():
    lib.tpc_prefault_keep_heap()
    budget = lib.tpc_budget_new(1 << 40)
    pages = bytes(256 * 1024)
    frames = [lib.tpc_frame_new(budget, len(pages)) for _ in range(400)]
    for frame in frames:
        ffi.memmove(frame.data, pages, len(pages))
    last = frames.pop()  # above all others: free() gives nothing back by itself
    assert budget.bytes_peak_lately == budget.bytes_used > 100 * MIB
    for frame in frames:
        lib.tpc_frame_release(frame)
    full = resident_bytes()
    assert full == pytest.approx(psutil.Process().memory_info().rss, abs=4 * MIB)
    assert budget.bytes_peak_lately > 100 * MIB > budget.bytes_used
    lib.tpc_plane_trim_memory(60 * MIB)
    assert 30 * MIB < full - resident_bytes() < 50 * MIB
    lib.tpc_plane_trim_memory(0)
    assert full - resident_bytes() > 90 * MIB
    lib.tpc_frame_release(last)
    lib.tpc_budget_free(budget)
