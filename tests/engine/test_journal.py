"""The journal's writer on a real file: grouping, the chain, space, failures. Each mode, all features and 5.8's."""

import errno
import os
import resource
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.backends import on_io_uring
from tests.support.journal_file import BLOCK_BYTES
from tests.support.journal_harness import ALL_HIDDEN, JOURNAL_ID, TOPIC, Core, Journal, JournalFile
from tests.support.native_journal import EntryKind, EntryToWrite, make_commit
from tests.support.waiting import let_pass, takes_at_least
from tpc_broker._ring import ffi, lib

MODES = {
    "direct-dsync": lib.TPC_JOURNAL_DIRECT_DSYNC,
    "buffered-dsync": lib.TPC_JOURNAL_BUFFERED_DSYNC,
    "buffered-fdatasync": lib.TPC_JOURNAL_BUFFERED_FDATASYNC,
}


@pytest.fixture(
    params=[
        on_io_uring((0, lib.TPC_BACKEND_IO_URING), name="all-features"),
        on_io_uring((ALL_HIDDEN, lib.TPC_BACKEND_IO_URING), name="as-5.8"),
        pytest.param((0, lib.TPC_BACKEND_PLAIN), id="plain"),
    ]
)
def core(request):
    core = Core(*request.param)
    yield core
    core.close()


@pytest.fixture(params=MODES.values(), ids=MODES)
def file(request, tmp_path):
    file = JournalFile(tmp_path / "0000.journal", mode=request.param)
    yield file
    os.close(file.descriptor)


def payloads(file, **place):
    return [[entry.payload for entry in commit.entries] for commit in file.chain(**place)]


def test_appends_of_one_turn_share_a_commit_and_those_during_a_write_the_next(core, file):
    journal = Journal(core, file)
    assert [journal.append(b"one"), journal.append(b"two" * 50)] == [1, 1]
    core.turn()
    if journal.durable == 0:
        assert journal.append(b"three") == 2
        assert journal.append(b"four") == 2
    journal.wait_durable(journal.statistics.sequence_next - 1)
    written = payloads(file)
    assert written[0] == [b"one", b"two" * 50]
    assert written[1:] in ([], [[b"three", b"four"]])
    assert core.of_kind(lib.TPC_EVENT_JOURNAL_DURABLE)[-1][2] == journal.durable
    journal.close()


def test_the_chain_is_what_an_independent_reader_expects(core, file):
    journal = Journal(core, file, run_id=77)
    for number in range(10):
        journal.append(bytes([number]) * (number * 700), offset=number, argument=number * 2, partition=number)
        journal.wait_durable(number + 1)
    chain = file.chain()
    assert [commit.sequence for commit in chain] == list(range(1, 11))
    assert {commit.run_id for commit in chain} == {77}
    assert all(commit.durable_sequence == commit.sequence - 1 for commit in chain)
    assert [(e.partition, e.offset, e.argument, e.payload) for c in chain for e in c.entries] == [
        (n, n, n * 2, bytes([n]) * (n * 700)) for n in range(10)
    ]
    place = journal.place()
    assert (place.sequence, place.previous_crc) == (11, chain[-1].crc)
    assert place.block == chain[-1].block + chain[-1].blocks
    journal.close()


def test_a_full_commit_is_closed_and_a_large_entry_gets_a_commit_of_its_size(core, file):
    journal = Journal(core, file, commit_bytes_max=4096)
    assert [journal.append(bytes(2500)), journal.append(bytes(2500)), journal.append(b"x" * 20000)] == [1, 2, 3]
    assert journal.append(b"small") == 3, "what would be padding is used"
    assert journal.append(bytes(500)) == 4
    journal.wait_durable(4)
    assert [commit.blocks for commit in file.chain()] == [1, 1, 5, 1]
    assert journal.append(bytes(64 * BLOCK_BYTES)) == -errno.EMSGSIZE
    journal.close()


def test_what_a_journal_may_never_take_is_named_and_all_else_waits(core, file):
    """Half of the region finds a place wherever the next commit begins; more is a matter of luck."""
    journal = Journal(core, file, region_blocks_max=128, commit_bytes_max=BLOCK_BYTES)

    def events():
        return core.of_kind(lib.TPC_EVENT_JOURNAL_SPACE)

    most = 64 * BLOCK_BYTES - 200
    assert journal.append(bytes(most + 200)) == -errno.EMSGSIZE
    assert not journal.statistics.blocks_wanted
    assert journal.append(bytes(most)) == -errno.EAGAIN
    core.turn()
    assert len(events()) == 1
    assert journal.statistics.blocks_wanted == 128
    several = [3000] * 65
    assert lib.tpc_journal_would_fit(journal.handle, several[:40], 40) == 0
    assert lib.tpc_journal_would_fit(journal.handle, several, 65) == -errno.EMSGSIZE, "too many commits, but some fit"
    journal.wait_durable(journal.append(bytes(40 * BLOCK_BYTES - 200)))
    assert lib.tpc_journal_would_fit(journal.handle, [most // 2], 1) == -errno.EAGAIN
    core.turn()
    told = len(events())
    for _ in range(3):
        assert lib.tpc_journal_would_fit(journal.handle, [most // 2], 1) == -errno.EAGAIN
        core.turn()
    assert len(events()) == told, "once until some are recycled"
    assert lib.tpc_journal_recycle(journal.handle, journal.place().position) == 0
    assert lib.tpc_journal_would_fit(journal.handle, [most // 2], 1) == 0
    journal.close()


def test_a_full_journal_refuses_and_goes_on_after_recycling(core, file):
    journal = Journal(core, file, commit_bytes_max=BLOCK_BYTES)
    last = 0
    while (sequence := journal.append(bytes(3000))) > 0:
        last = sequence
        journal.wait_durable(last)
        assert not journal.statistics.space_refused
    assert sequence == -errno.EAGAIN
    assert journal.statistics.space_refused
    assert last == 63, "one block stays free"
    assert [event[2:] for event in core.of_kind(lib.TPC_EVENT_JOURNAL_SPACE)] == [(24, 64)]
    before = file.path.read_bytes()
    place = journal.place()
    assert lib.tpc_journal_recycle(journal.handle, place.position + 1) == -errno.EINVAL
    assert journal.append(bytes(3000)) == -errno.EAGAIN
    assert file.path.read_bytes() == before
    assert lib.tpc_journal_recycle(journal.handle, place.position) == 0
    assert not journal.statistics.space_refused
    assert journal.append(b"again") == 64
    journal.wait_durable(64)
    assert payloads(file, sequence=64, block=place.block, previous_crc=place.previous_crc) == [[b"again"]]
    journal.close()


def test_what_a_journal_that_fills_up_takes_is_held_back_until_blocks_are_recycled(core, file):
    journal = Journal(core, file)

    def append_durably():
        journal.wait_durable(journal.append(bytes(2000)))

    for _ in range(20):
        append_durably()
    assert journal.statistics.commits_paced == 0
    for _ in range(40):
        append_durably()
    let_pass(1.0)  # what is left is to do for half as long
    held = journal.statistics.commits_paced
    with takes_at_least(lib.TPC_JOURNAL_PACE_NS_MAX / 1e9):
        for _ in range(2):
            append_durably()
    assert journal.statistics.commits_paced == held + 2
    assert lib.tpc_journal_recycle(journal.handle, journal.place().position) == 0
    for _ in range(20):
        append_durably()
    assert journal.statistics.commits_paced == held + 2
    journal.close()


@pytest.mark.parametrize(
    ("region_blocks_max", "wanted_at", "told_at"), [(64, 40, 40), (64, 0, 24), (256, 40, 8)], ids=str
)
def test_space_is_wanted_when_it_was_said_unless_the_journal_grows(core, file, region_blocks_max, wanted_at, told_at):
    journal = Journal(core, file, region_blocks_max=region_blocks_max, commit_bytes_max=BLOCK_BYTES)
    for blocks in (50, wanted_at):
        lib.tpc_journal_want_space_at(journal.handle, blocks)
    for _ in range(45):
        journal.wait_durable(journal.append(bytes(3000)))
    assert [event[2:] for event in core.of_kind(lib.TPC_EVENT_JOURNAL_SPACE)] == [(told_at, 64)]
    assert journal.statistics.space_event_blocks == told_at
    journal.close()


def test_a_journal_that_was_made_longer_says_again_that_it_fills_up(core, tmp_path):
    """Nothing is recycled meanwhile: a checkpoint is held back."""
    file = JournalFile(tmp_path / "0001.journal", region_blocks=256)
    journal = Journal(core, file, region_blocks=64, region_blocks_max=256, commit_bytes_max=BLOCK_BYTES)
    told, last = [], 0
    for region_blocks in (64, 128, 256):
        if region_blocks > 64:
            assert lib.tpc_journal_extend(journal.handle, region_blocks) == 0
        while (sequence := journal.append(bytes(3000))) > 0:
            last = sequence
            journal.wait_durable(last)
        core.turn()
        told.append([event[3] for event in core.of_kind(lib.TPC_EVENT_JOURNAL_SPACE)][-1])
    assert (last, told) == (255, [64, 128, 256])
    journal.close()
    os.close(file.descriptor)


def test_a_journal_is_made_longer_only_when_all_that_is_in_use_lies_in_one_lap(core, tmp_path):
    """Else another length would put what comes next over blocks that are in use."""
    file = JournalFile(tmp_path / "0002.journal", region_blocks=24)
    journal = Journal(core, file, region_blocks=16, region_blocks_max=24, commit_bytes_max=BLOCK_BYTES)

    def append(count):
        for _ in range(count):
            journal.wait_durable(journal.append(bytes(3000)))
        return journal.place()

    in_use = append(10)
    append(2)
    assert lib.tpc_journal_recycle(journal.handle, in_use.position) == 0
    append(4)
    assert lib.tpc_journal_extend(journal.handle, 24) == -errno.EAGAIN, "the next lap begins here"
    next_lap = append(4)
    assert lib.tpc_journal_extend(journal.handle, 24) == -errno.EAGAIN
    while journal.append(bytes(3000)) > 0:
        core.turn()
    journal.wait_durable(journal.statistics.sequence_next - 1)
    file.region_blocks = 16
    assert len(file.chain(in_use.sequence, in_use.block, in_use.previous_crc)) == 15
    assert lib.tpc_journal_recycle(journal.handle, next_lap.position) == 0
    assert lib.tpc_journal_extend(journal.handle, 24) == 0
    file.region_blocks = 24
    append(8)
    chain = file.chain(next_lap.sequence, next_lap.block, next_lap.previous_crc)
    assert [commit.block for commit in chain] == list(range(6, 6 + len(chain)))
    journal.close()
    os.close(file.descriptor)


def test_a_commit_never_wraps_and_the_blocks_left_out_count_as_used(core, file):
    journal = Journal(core, file, block_next=2 + 61, block_first=2 + 61, sequence_next=500, previous_crc=9)
    assert journal.append(b"w" * 4 * BLOCK_BYTES) == 500
    journal.wait_durable(500)
    (commit,) = file.chain(500, 2 + 61, 9)
    assert (commit.block, commit.blocks) == (2, 5)
    assert journal.statistics.blocks_used == 3 + 5
    journal.close()


def test_several_in_flight_are_acknowledged_in_order_and_chained(core, file):
    journal = Journal(core, file, commits_in_flight_max=4, commit_bytes_max=BLOCK_BYTES)
    sequences = [journal.append(bytes([number]) * 3900) for number in range(20)]
    assert sequences == list(range(1, 21))
    journal.wait_durable(20)
    durable = [event[2] for event in core.of_kind(lib.TPC_EVENT_JOURNAL_DURABLE)]
    assert durable == sorted(set(durable))
    assert len(file.chain()) == 20
    journal.close()


def test_too_many_commits_waiting_are_refused(core, tmp_path):
    file = JournalFile(tmp_path / "j", region_blocks=200)
    journal = Journal(core, file, commit_bytes_max=BLOCK_BYTES)
    results = [journal.append(bytes(3900)) for _ in range(lib.TPC_JOURNAL_COMMITS_MAX + 1)]
    assert results[:-1] == list(range(1, lib.TPC_JOURNAL_COMMITS_MAX + 1))
    assert results[-1] == -errno.EAGAIN
    journal.wait_durable(lib.TPC_JOURNAL_COMMITS_MAX)
    assert journal.append(b"x") == lib.TPC_JOURNAL_COMMITS_MAX + 1
    journal.close()
    os.close(file.descriptor)


def test_a_write_that_fails_fails_everything_after_the_durable_prefix(core, file):
    journal = Journal(core, file)
    journal.append(b"kept")
    journal.wait_durable(1)
    read_only = file.open_descriptor(os.O_RDONLY)
    os.dup2(read_only, file.descriptor)
    assert journal.append(b"lost") == 2
    core.turn()
    assert journal.wait_failed()[2:] == (2, errno.EBADF)
    assert journal.append(b"refused") == -errno.EIO
    assert journal.durable == 1
    assert lib.tpc_journal_reopen(journal.handle, file.descriptor, file.mode, 1) == -errno.EINVAL, "old run id"
    writable = file.open_descriptor()
    assert lib.tpc_journal_reopen(journal.handle, writable, file.mode, 2) == 0
    assert journal.append(b"after") == 2
    journal.wait_durable(2)
    assert [(commit.run_id, commit.entries[0].payload) for commit in file.chain()] == [(1, b"kept"), (2, b"after")]
    journal.close()
    os.close(read_only)
    os.close(writable)


def test_a_short_write_is_a_failure(tmp_path):
    """The file-size limit cuts a write of six blocks after two; what follows in flight fails whole."""
    core = Core()
    file = JournalFile(tmp_path / "j", mode=lib.TPC_JOURNAL_BUFFERED_DSYNC)
    journal = Journal(core, file, commits_in_flight_max=2, commit_bytes_max=6 * BLOCK_BYTES)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK_BYTES, limits[1]))
    try:
        assert journal.append(b"z" * (6 * BLOCK_BYTES - 200)) == 1
        assert journal.append(b"z" * (6 * BLOCK_BYTES - 200)) == 2
        failed = journal.wait_failed()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert failed[2] == 1
    assert failed[3] in (errno.EIO, errno.EFBIG)
    assert journal.durable == 0
    assert journal.statistics.commits_failed == 2
    assert file.chain() == []
    journal.close()
    core.close()
    os.close(file.descriptor)


def test_a_disk_without_space_fails_the_commit(tmp_path):
    core = Core()
    file = JournalFile(tmp_path / "j", mode=lib.TPC_JOURNAL_BUFFERED_FDATASYNC)
    full = os.open("/dev/full", os.O_WRONLY)
    journal = Journal(core, file, descriptor=full)
    journal.append(b"nowhere to go")
    assert journal.wait_failed()[2:] == (1, errno.ENOSPC)
    journal.close()
    core.close()
    os.close(full)
    os.close(file.descriptor)


def test_a_second_run_continues_the_chain_it_found(core, file):
    first = Journal(core, file, run_id=5)
    first.append(b"first run")
    first.wait_durable(1)
    place = first.place()
    found = {"sequence_next": place.sequence, "block_next": place.block, "previous_crc": place.previous_crc}
    first.close()
    second = Journal(core, file, run_id=6, **found)
    assert second.append(b"second run") == 2
    second.wait_durable(2)
    assert [(commit.run_id, commit.entries[0].payload) for commit in file.chain()] == [
        (5, b"first run"),
        (6, b"second run"),
    ]
    second.close()


def test_a_journal_that_was_stopped_takes_nothing_more_and_tells_its_end(core, file):
    journal = Journal(core, file)
    assert journal.append(b"under way") == 1
    lib.tpc_journal_stop(journal.handle)
    assert not journal.place().is_end
    assert journal.append(b"late") == -errno.ESHUTDOWN
    journal.wait_durable(1)
    core.run_until(lambda: journal.place().is_end)
    assert journal.append(b"later") == -errno.ESHUTDOWN
    assert payloads(file) == [[b"under way"]]
    journal.close()


def test_without_anyone_asking_a_commit_raises_no_event(core, file):
    journal = Journal(core, file)
    sequence = ffi.new("uint64_t *")
    topic_id = bytes(16)
    assert lib.tpc_journal_append(journal.handle, 1, topic_id, 0, 0, 1, b"quiet", 5, sequence) == 0
    journal.wait_durable(1)
    assert core.events == []
    journal.close()


def test_impossible_parameters_are_refused(core, file):
    out = ffi.new("tpc_journal **")
    impossible = {"descriptor": -1, "mode": 7, "region_blocks": 1, "sequence_next": 0, "block_next": 1}
    for wrong in ({field: value} for field, value in impossible.items()):
        assert lib.tpc_journal_open(core.ring, file.params(**wrong), out) == -errno.EINVAL, wrong


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(st.integers(0, 9000), st.sampled_from(["turn", "recycle", "settle", "extend"])),
        min_size=1,
        max_size=80,
    ),
    st.integers(1, 4),
)
def test_whatever_is_appended_is_read_back_in_order(module_tmp_path, steps, in_flight):
    """Model: a list of payloads. After a settle the chain from the last recycled place holds exactly the newer ones."""
    core = Core()
    (module_tmp_path / "j").unlink(missing_ok=True)
    file = JournalFile(module_tmp_path / "j", region_blocks=16)
    journal = Journal(core, file, commits_in_flight_max=in_flight, commit_bytes_max=2 * BLOCK_BYTES)
    expected, start = [], {"sequence": 1, "block": 2, "previous_crc": 0}
    for number, step in enumerate([*steps, "settle"]):
        if step == "turn":
            core.turn()
        elif isinstance(step, int):
            payload = bytes([number % 251]) * step
            fits = lib.tpc_journal_would_fit(journal.handle, [step], 1)
            result = journal.append(payload)
            assert (result > 0) == (fits == 0)
            if result > 0:
                expected.append(payload)
        elif step == "extend":
            longer = file.region_blocks + 5
            with file.path.open("ab") as end:
                end.write(bytes(5 * BLOCK_BYTES))
            if lib.tpc_journal_extend(journal.handle, longer) == 0:
                file.region_blocks = longer
            else:
                os.truncate(file.path, (2 + file.region_blocks) * BLOCK_BYTES)
        else:
            journal.wait_durable(journal.statistics.sequence_next - 1)
            assert [payload for commit in payloads(file, **start) for payload in commit] == expected
            assert journal.statistics.blocks_used < file.region_blocks
            if step == "recycle":
                place = journal.place()
                assert lib.tpc_journal_recycle(journal.handle, place.position) == 0
                assert journal.statistics.blocks_used == 0
                start = {"sequence": place.sequence, "block": place.block, "previous_crc": place.previous_crc}
                expected = []
    journal.close()
    core.close()
    os.close(file.descriptor)


def test_a_failed_commit_in_the_regions_last_block_is_not_taken_for_its_successor(tmp_path):
    """It is on the disk whole, although its write was reported as failed; what is acknowledged later is longer than the
    one block that is left behind it.
    """
    core, file = Core(), JournalFile(tmp_path / "j", region_blocks=8)
    journal = Journal(core, file)
    for payload in (b"a" * 3 * 4000, b"b" * 3 * 4000, b"c"):
        journal.wait_durable(journal.append(payload))
    assert journal.place().block == 9, "the last one"
    assert lib.tpc_journal_recycle(journal.handle, journal.place().position) == 0
    place = journal.place()
    writable, read_only = file.open_descriptor(), file.open_descriptor(os.O_RDONLY)
    os.dup2(read_only, file.descriptor)
    assert journal.append(b"failed") == 4
    journal.wait_failed()
    failed, _crc = make_commit(
        journal_id=JOURNAL_ID, sequence=4, previous_crc=place.previous_crc, durable_sequence=3,
        entries=[EntryToWrite(EntryKind.NOTE, TOPIC, 0, payload=b"failed")],
    )  # fmt: skip
    with file.path.open("r+b") as on_disk:
        on_disk.seek(9 * BLOCK_BYTES)
        on_disk.write(failed)
    assert lib.tpc_journal_reopen(journal.handle, writable, file.mode, 2) == 0
    journal.wait_durable(journal.append(b"acknowledged" * 500))
    chain = file.chain(place.sequence, place.block, place.previous_crc)
    assert [entry.payload for commit in chain for entry in commit.entries] == [b"acknowledged" * 500]
    journal.close()
    core.close()
    for descriptor in (read_only, writable, file.descriptor):
        os.close(descriptor)
