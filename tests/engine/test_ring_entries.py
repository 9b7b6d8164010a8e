"""Entries on files as C makes them, carried out by io_uring, by system calls and threads, and by the simulated disk.

The bodies are the same, so that what the simulator is trusted with is what the kernel does.
"""

import errno
import mmap
import os
import random
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.backends import on_io_uring
from tests.support.fake_disk import SECTOR_BYTES
from tests.support.journal_file import BLOCK_BYTES, read_chain
from tests.support.journal_harness import JOURNAL_ID, Journal
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_ring import SimulatedRing, SimulatedSystem
from tests.support.stepped_time import SteppedTime, stepped
from tests.support.waiting import PATIENCE_S
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import Backend, Feature, Ring
from tpc_broker.native_bytes import pinned

NEW = os.O_RDWR | os.O_CREAT
NO_DESCRIPTOR = 1 << 20
TURNS_MAX = 100_000
MODES = (lib.TPC_JOURNAL_DIRECT_DSYNC, lib.TPC_JOURNAL_BUFFERED_DSYNC, lib.TPC_JOURNAL_BUFFERED_FDATASYNC)
REGION_BLOCKS = 64
DATA = bytes(range(256)) * 64
BODIES = []


def body(function):
    BODIES.append(function)
    return function


class Entries:
    """A ring, and files for it. Operations give what their events tell: two numbers."""

    def __init__(self, ring):
        self.ring = ring
        self.events = []
        ring.on_event(lib.TPC_EVENT_JOURNAL_FAILED, lambda *event: self.events.append(event))

    def until(self, condition):
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.turn()
        raise AssertionError("it never came to pass")

    run_until = until

    def begin(self, submit, *arguments, held=None):
        told = []
        number = self.ring.start(submit, *arguments, callback=lambda a, b: told.append((a, b)), held=held)
        return number, told

    def end(self, told):
        self.until(lambda: told)
        return told[0]

    def perform(self, submit, *arguments, held=None):
        return self.end(self.begin(submit, *arguments, held=held)[1])

    def write(self, fd, data, position, *, submit=lib.tpc_operation_write, last=(0,)):
        pointer, size, held = pinned(data)
        return self.perform(submit, fd, pointer, size, position, *last, held=held)

    def writev(self, fd, parts, position, flags=0):
        all_pinned = [pinned(part) for part in parts]
        pointers = ffi.new("void *[]", [pointer for pointer, _size, _held in all_pinned])
        sizes = ffi.new("size_t[]", [size for _pointer, size, _held in all_pinned])
        arguments = fd, pointers, sizes, len(parts), position, flags
        return self.perform(lib.tpc_operation_writev, *arguments, held=all_pinned)

    def write_fdatasync(self, fd, data, position):
        return self.write(fd, data, position, submit=lib.tpc_operation_write_fdatasync, last=())

    def fsync(self, fd, *, data_only=False):
        return self.perform(lib.tpc_operation_fsync, fd, data_only)[0]

    def read(self, fd, size, position):
        into = bytearray(size)
        pointer, _size, held = pinned(into, writable=True)
        found = self.perform(lib.tpc_operation_read, fd, pointer, size, position, held=held)[0]
        return found if found < 0 else bytes(into[:found])


class RealEntries(Entries):
    def __init__(self, ring, folder):
        super().__init__(ring)
        self._folder = folder

    def turn(self):
        count = self.ring.wait(int(PATIENCE_S * 1e9))
        if count > 0:
            self.ring.dispatch(count)

    def open(self, name, flags=NEW):
        return os.open(self._folder / name, flags, 0o600)

    close = staticmethod(os.close)

    def unlink(self, name):
        (self._folder / name).unlink()

    def content(self, name):
        return (self._folder / name).read_bytes()

    @staticmethod
    def read_cached(fd, size, position):
        """Bytes, or -errno."""
        into = bytearray(size)
        try:
            return bytes(into[: os.preadv(fd, [into], position, os.RWF_NOWAIT)])
        except OSError as error:
            return -error.errno


class SimulatedEntries(Entries):
    def __init__(self, ring, disk, time):
        super().__init__(ring)
        self.disk, self._time = disk, time

    def turn(self):
        self.ring.turn()
        self._time.step()
        self.ring.turn()

    def open(self, name, flags=NEW):
        return stepped(self.disk.open(self._path(name), flags))

    @staticmethod
    def _path(name):
        return Path("/") / name

    def close(self, fd):
        stepped(self.disk.close(fd))

    def unlink(self, name):
        stepped(self.disk.unlink(self._path(name)))

    def content(self, name):
        return bytes(self.disk.names[self._path(name)].content)

    def read_cached(self, fd, size, position):
        return self.disk.system.device(fd).read_cached(size, position)


def block_of(text, blocks=1):
    """Memory that direct transfers may begin in."""
    memory = memoryview(mmap.mmap(-1, blocks * BLOCK_BYTES))
    memory[:] = text * (len(memory) // len(text))
    return memory


# -- reads and writes --------------------------------------------------------------------------------------------------


@body
def what_is_written_is_read(entries):
    fd = entries.open("a")
    assert entries.write(fd, DATA, 0)[0] == len(DATA)
    assert entries.write(fd, b"beside", 10)[0] == 6
    assert entries.read(fd, 20, 5) == DATA[5:10] + b"beside" + DATA[16:25]
    entries.close(fd)
    assert entries.content("a") == DATA[:10] + b"beside" + DATA[16:]


@body
def a_read_at_the_end_is_short_and_behind_it_empty(entries):
    fd = entries.open("a")
    entries.write(fd, b"content", 0)
    assert entries.read(fd, 100, 3) == b"tent"
    assert entries.read(fd, 100, 7) == entries.read(fd, 100, 1 << 30) == b""
    entries.close(fd)


@body
def what_was_never_written_is_zero(entries):
    fd = entries.open("a")
    assert entries.write(fd, b"end", 3 * BLOCK_BYTES + 5)[0] == 3
    assert entries.read(fd, 4 * BLOCK_BYTES, 0) == bytes(3 * BLOCK_BYTES + 5) + b"end"
    entries.close(fd)


@body
def parts_are_written_in_a_row(entries):
    fd = entries.open("a")
    parts = [DATA[:5], DATA[5:4100], b"", DATA[4100:9000]]
    assert entries.writev(fd, parts, 100)[0] == 9000
    assert entries.writev(fd, [b"durable ", b"parts"], 0, os.RWF_DSYNC)[0] == 13
    entries.close(fd)
    assert entries.content("a") == b"durable parts" + bytes(87) + DATA[:9000]


@body
def a_write_in_parts_tells_what_they_are_together(entries):
    fd = entries.open("a")
    told = entries.write(fd, DATA, 7, submit=lib.tpc_operation_write_in_parts, last=(1000,))
    assert told[0] == len(DATA)
    entries.close(fd)
    assert entries.content("a") == bytes(7) + DATA


@body
def a_write_may_be_durable_when_it_ends_and_a_sync_ends(entries):
    fd = entries.open("a")
    assert entries.write(fd, DATA, 0, last=(os.RWF_DSYNC,))[0] == len(DATA)
    assert entries.write(fd, b"more", 0)[0] == 4
    assert entries.fsync(fd) == entries.fsync(fd, data_only=True) == 0
    entries.close(fd)
    read_only = entries.open("a", os.O_RDONLY)
    assert entries.fsync(read_only) == 0
    entries.close(read_only)


@body
def several_are_under_way_at_once(entries):
    fd = entries.open("a")
    blocks = [block_of(bytes([number])) for number in range(1, 20)]
    told = [
        entries.begin(lib.tpc_operation_write, fd, pinned(block)[0], BLOCK_BYTES, number * BLOCK_BYTES, os.RWF_DSYNC)[1]
        for number, block in enumerate(blocks)
    ]
    assert {entries.end(one)[0] for one in told} == {BLOCK_BYTES}
    entries.close(fd)
    assert entries.content("a") == b"".join(blocks)


@body
def past_the_page_cache_go_whole_aligned_blocks(entries):
    try:
        fd = entries.open("a", NEW | os.O_DIRECT)
    except OSError:
        pytest.skip("the file system has no direct input and output")
    memory = block_of(b"12345678", blocks=3)
    two, third = memory[: 2 * BLOCK_BYTES], memory[2 * BLOCK_BYTES :]
    assert entries.write(fd, two, 0, last=(os.RWF_DSYNC,))[0] == 2 * BLOCK_BYTES
    assert entries.writev(fd, [third, two], 2 * BLOCK_BYTES, os.RWF_DSYNC)[0] == 3 * BLOCK_BYTES
    for data, position in ((memory[:100], 0), (two, 100), (memory[1 : 1 + BLOCK_BYTES], 0)):
        assert entries.write(fd, data, position)[0] == -errno.EINVAL
        assert entries.writev(fd, [data], position)[0] == -errno.EINVAL
    cached = entries.open("a")
    assert entries.read(cached, 6 * BLOCK_BYTES, 0) == bytes(memory) + bytes(two)
    entries.close(cached)
    entries.close(fd)


# -- chains, refusals, cancels -----------------------------------------------------------------------------------------


@body
def a_sync_follows_a_write_that_was_whole(entries):
    fd = entries.open("a")
    assert entries.write_fdatasync(fd, DATA, 0) == (len(DATA), 0)
    entries.close(fd)
    assert entries.content("a") == DATA
    read_only = entries.open("a", os.O_RDONLY)
    assert entries.write_fdatasync(read_only, DATA, 0) == (-errno.EBADF, -errno.ECANCELED)
    entries.close(read_only)


@body
def a_descriptor_has_to_be_open_for_it(entries):
    entries.close(entries.open("a"))
    read_only, write_only = entries.open("a", os.O_RDONLY), entries.open("a", os.O_WRONLY)
    closed = entries.open("a")
    entries.close(closed)
    for fd in (NO_DESCRIPTOR, closed, read_only):
        assert entries.write(fd, b"x", 0)[0] == entries.writev(fd, [b"x"], 0)[0] == -errno.EBADF
    for fd in (NO_DESCRIPTOR, closed, write_only):
        assert entries.read(fd, 1, 0) == -errno.EBADF
    assert entries.fsync(NO_DESCRIPTOR) == entries.fsync(closed) == -errno.EBADF
    entries.close(read_only)
    entries.close(write_only)


@body
def a_file_without_a_name_stays_while_it_is_open(entries):
    fd = entries.open("a")
    entries.write(fd, DATA, 0)
    entries.unlink("a")
    assert entries.write(fd, b"more", len(DATA), last=(os.RWF_DSYNC,))[0] == 4
    assert entries.read(fd, 1 << 20, 0) == DATA + b"more"
    entries.close(fd)


@body
def a_read_that_is_cancelled_ends_with_that_or_with_what_it_has_read(entries):
    fd = entries.open("a")
    entries.write(fd, DATA, 0)
    for _ in range(20):
        into = bytearray(len(DATA))
        pointer, size, held = pinned(into, writable=True)
        number, told = entries.begin(lib.tpc_operation_read, fd, pointer, size, 0, held=held)
        entries.ring.cancel(number)
        found, _ = entries.end(told)
        assert found in (-errno.ECANCELED, -errno.EINTR, len(DATA))
        assert into == (DATA if found > 0 else bytes(len(DATA)))
    entries.close(fd)


@body
def what_is_in_memory_is_there_at_once(entries):
    fd = entries.open("a")
    entries.write(fd, DATA, 0)
    found = entries.read_cached(fd, 100, 50)
    assert found in (DATA[50:150], -errno.EAGAIN)
    assert entries.read_cached(fd, 100, len(DATA)) in (b"", -errno.EAGAIN)
    entries.close(fd)


# -- the journal -------------------------------------------------------------------------------------------------------


class EntriesJournal:
    """What `Journal` asks of its file."""

    def __init__(self, entries, mode):
        self._entries, self._mode = entries, mode
        fd = entries.open("journal")
        entries.write(fd, bytes((2 + REGION_BLOCKS) * BLOCK_BYTES), 0)
        entries.close(fd)
        self.descriptor = entries.open("journal", os.O_RDWR | (os.O_DIRECT if mode == MODES[0] else 0))

    def params(self, **overrides):
        values = {
            "descriptor": self.descriptor, "mode": self._mode, "journal_id": JOURNAL_ID, "run_id": 1,
            "region_blocks": REGION_BLOCKS, "sequence_next": 1, "block_next": 2, "block_first": 2,
        }  # fmt: skip
        return ffi.new("tpc_journal_params *", values | overrides)

    def chain(self):
        return read_chain(self._entries.content("journal"), 2, 1, 0, REGION_BLOCKS)


@contextmanager
def opened_journal(entries, mode):
    file = EntriesJournal(entries, mode)
    core = type("Core", (), {"ring": entries.ring.pointer, "run_until": staticmethod(entries.until)})
    journal = Journal(core, file, commits_in_flight_max=3)
    try:
        yield journal, file
    finally:
        journal.close()
        entries.close(file.descriptor)


def journals_in(mode):
    def in_mode(entries):
        with opened_journal(entries, mode) as (journal, file):
            payloads = [bytes([number]) * size for number, size in enumerate((1, 4000, 9000, 20, 50_000), start=1)]
            for payload in payloads:
                sequence = journal.append(payload)
                if len(payload) > BLOCK_BYTES:
                    lib.tpc_ring_serve(entries.ring.pointer, 0)
            journal.wait_durable(sequence)
            assert [entry.payload for commit in file.chain() for entry in commit.entries] == payloads

    in_mode.__name__ = f"a_journal_in_mode_{mode}_is_a_chain_of_commits"
    return in_mode


BODIES += [journals_in(mode) for mode in MODES]


@body
def a_journal_fails_with_its_descriptor(entries):
    with opened_journal(entries, MODES[1]) as (journal, file):
        read_only = entries.open("journal", os.O_RDONLY)
        assert journal.append(b"taken") == 1
        journal.wait_durable(1)
        entries.close(file.descriptor)
        assert journal.append(b"lost") == 2
        entries.until(lambda: entries.events)
        [(_token, first_failed, error, _pointer)] = entries.events
        assert (first_failed, error, journal.durable) == (2, errno.EBADF, 1)
        file.descriptor = entries.open("journal", os.O_RDWR)
        assert lib.tpc_journal_reopen(journal.handle, file.descriptor, MODES[1], 2) == 0
        assert journal.append(b"again") == 2
        journal.wait_durable(2)
        assert [entry.payload for commit in file.chain() for entry in commit.entries] == [b"taken", b"again"]
        entries.close(read_only)


# -- those who carry them out ------------------------------------------------------------------------------------------

each = pytest.mark.parametrize("act", BODIES, ids=lambda act: act.__name__)


@pytest.mark.parametrize(
    ("hidden", "backend"),
    [
        on_io_uring(frozenset(), Backend.IO_URING, name="all-features"),
        on_io_uring(frozenset(Feature), Backend.IO_URING, name="as-5.8"),
        pytest.param(frozenset(), Backend.PLAIN, id="plain"),
    ],
)
@each
def test_the_kernel_does(act, hidden, backend, tmp_path):
    ring = Ring(hidden=hidden, backend=backend)
    try:
        act(RealEntries(ring, tmp_path))
    finally:
        ring.close()


@contextmanager
def simulated(seed, **rates):
    time, chance = SteppedTime(), random.Random(seed)
    with SimulatedSystem(time.now_ns, lambda: 0, chance) as system:
        disk = SimulatedDisk(system, time.later, chance, misaligned_is_bug=False)
        disk.waits, disk.short_write_rate = False, 0.0
        for name, rate in rates.items():
            setattr(disk, name, rate)
        ring = SimulatedRing(system)
        try:
            yield SimulatedEntries(ring, disk, time)
        finally:
            ring.close()


@each
def test_the_simulated_disk_does(act):
    for seed in range(5):
        with simulated(seed) as entries:
            act(entries)
            assert not list(entries.disk.system.drop(lambda _device: True)), "something was left open"


# -- what only a simulated disk shows ----------------------------------------------------------------------------------


def durable_after(seed, act):
    """What a loss of power leaves of a file of two sectors that was there before, where `act` has gone on."""
    with simulated(seed) as entries:
        fd = entries.open("a")
        entries.write(fd, b"0" * 2 * SECTOR_BYTES, 0, last=(os.RWF_DSYNC,))
        stepped_sync(entries)
        act(entries, fd)
        entries.disk.crash()
        return entries.content("a")


def stepped_sync(entries):
    entries.disk._sync_names(Path("/"))


NEWER = b"1" * SECTOR_BYTES + b"2" * SECTOR_BYTES


@pytest.mark.parametrize("kind", ["durable", "synced", "linked"])
def test_what_the_ring_was_told_to_be_durable_outlives_a_loss_of_power(kind):
    def act(entries, fd):
        if kind == "linked":
            assert entries.write_fdatasync(fd, NEWER, 0) == (len(NEWER), 0)
        else:
            entries.write(fd, NEWER, 0, last=(os.RWF_DSYNC if kind == "durable" else 0,))
            assert kind == "durable" or entries.fsync(fd, data_only=True) == 0

    assert {durable_after(seed, act) for seed in range(20)} == {NEWER}


@pytest.mark.parametrize("flags", [0, os.RWF_DSYNC])
def test_a_write_under_way_may_be_there_by_sectors(flags):
    def act(entries, fd):
        entries.begin(lib.tpc_operation_write, fd, pinned(NEWER)[0], len(NEWER), 0, flags)
        entries.ring.turn()

    old, one, other = b"0" * SECTOR_BYTES, NEWER[:SECTOR_BYTES], NEWER[SECTOR_BYTES:]
    wanted = {first + second for first in (old, one) for second in (old, other)}
    assert {durable_after(seed, act) for seed in range(40)} == wanted


def test_a_killed_process_s_write_lands_and_its_descriptors_are_closed():
    with simulated(1) as entries:
        fd = entries.open("a")
        entries.begin(lib.tpc_operation_write, fd, pinned(NEWER)[0], len(NEWER), 0, os.RWF_DSYNC)
        entries.ring.turn()
        entries.disk.kill()
        entries.ring.abandon()
        assert entries.content("a") == b""
        while entries._time.step():
            pass
        assert entries.content("a") == NEWER
        assert entries.disk.found_descriptor(fd) is None


def test_memory_may_not_change_under_a_write():
    with simulated(1) as entries:
        fd, memory = entries.open("a"), bytearray(NEWER)
        _number, told = entries.begin(lib.tpc_operation_write, fd, pinned(memory)[0], len(memory), 0, 0)
        entries.ring.turn()
        memory[5] = 0
        with pytest.raises(AssertionError, match="memory has changed"):
            entries.end(told)
        entries.ring.abandon()


def test_some_buffered_writes_are_short_and_a_linked_sync_is_not_made_then():
    with simulated(1, short_write_rate=0.5) as entries:
        fd = entries.open("a")
        told = {entries.write_fdatasync(fd, DATA, 0) for _ in range(20)}
        assert (len(DATA), 0) in told
        assert all(synced == (0 if written == len(DATA) else -errno.ECANCELED) for written, synced in told)
        assert len(told) > 5
        direct = entries.open("a", os.O_RDWR | os.O_DIRECT)
        assert {entries.write(direct, block_of(b"x"), 0)[0] for _ in range(20)} == {BLOCK_BYTES}


def test_a_disk_that_hangs_answers_no_sync_and_one_that_fails_says_so():
    with simulated(1) as entries:
        fd = entries.open("a")
        entries.disk.is_hung = True
        _number, told = entries.begin(lib.tpc_operation_fsync, fd, True)
        assert entries.write(fd, DATA, 0)[0] == len(DATA)
        while entries._time.step():
            pass
        assert not told
        entries.disk.is_hung = False
        assert entries.end(told)[0] == 0
        entries.disk.fails_in = 2
        assert entries.write(fd, DATA, 0)[0] == len(DATA)
        assert entries.fsync(fd) == -errno.EIO
        assert entries.fsync(fd) == 0, "the pages count as clean"
        entries.disk.crash()


def test_a_full_disk_takes_what_has_its_place():
    with simulated(1) as entries:
        fd = entries.open("a")
        entries.write(fd, block_of(b"0"), 0)
        entries.disk.is_full = True
        assert entries.write(fd, block_of(b"1"), 0, last=(os.RWF_DSYNC,))[0] == BLOCK_BYTES
        assert entries.write(fd, b"more", BLOCK_BYTES)[0] == -errno.ENOSPC
        assert stepped(entries.disk.statvfs(Path("/"))).available_bytes == 0
