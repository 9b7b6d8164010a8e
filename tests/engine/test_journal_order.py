"""What comes behind what in the journal: a flush behind its write, word of a commit behind both, and what each commit
says of those before it. Writes here do not end before they are let go: they are a full pipe's.
"""

import contextlib
import errno
import fcntl
import os

import pytest

from tests.durability.crash_images import COMPLETED, FLUSH, WRITE, read_record
from tests.support.backends import OURS_IN_C
from tests.support.journal_file import APPEND, BLOCK_BYTES
from tests.support.journal_harness import Core, Journal, JournalFile
from tpc_broker._ring import lib


class Stalled:
    """A journal of which no write ends before `let_go`."""

    def __init__(self, tmp_path, mode):
        self.core = Core(backend=OURS_IN_C)
        self.file = JournalFile(tmp_path / "j", mode=mode)
        self.reading, writing = os.pipe2(os.O_CLOEXEC)
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, BLOCK_BYTES)))
        os.dup2(writing, self.file.descriptor)
        os.close(writing)
        self.journal = Journal(self.core, self.file)

    def let_go(self):
        """Until no write is under way."""
        os.set_blocking(self.reading, False)

        def is_over():
            with contextlib.suppress(BlockingIOError):
                os.read(self.reading, 1 << 20)
            return self.journal.statistics.commits_in_flight == 0

        self.core.run_until(is_over)

    def told(self):
        return [event[2] for event in self.core.of_kind(lib.TPC_EVENT_JOURNAL_DURABLE)]

    def shut(self):
        self.let_go()
        self.journal.close()
        self.core.close()
        for descriptor in (self.reading, self.file.descriptor):
            os.close(descriptor)


@pytest.fixture
def stalled_journal(tmp_path):
    made = []

    def make(mode):
        made.append(Stalled(tmp_path, mode))
        return made[-1]

    yield make
    for one in made:
        one.shut()


def test_nobody_hears_of_a_commit_before_it_is_written(stalled_journal):
    """A vote leaves when the entry that says so is durable: whoever sends it waits for this word."""
    it = stalled_journal(lib.TPC_JOURNAL_BUFFERED_DSYNC)
    assert it.journal.append(b"vote") == 1
    it.core.run_until(lambda: it.journal.statistics.commits_in_flight == 1)
    for _ in range(3):
        it.core.turn()
    assert (it.told(), it.journal.durable) == ([], 0)
    it.let_go()
    it.core.run_until(it.told)
    assert it.told() == [1]


def test_a_flush_begins_when_its_write_is_over(stalled_journal, tmp_path):
    """One that was over before it would have flushed nothing of it. A pipe cannot be flushed, so the commit fails."""
    it = stalled_journal(lib.TPC_JOURNAL_BUFFERED_FDATASYNC)
    record = tmp_path / "record"
    assert lib.tpc_recorder_start(bytes(record)) == 0
    try:
        assert it.journal.append(b"entry") == 1
        for _ in range(5):
            it.core.turn(1)
        it.let_go()
        it.journal.wait_failed()
    finally:
        assert lib.tpc_recorder_stop() == 0
    asked = {one.token: one.kind for one in read_record(record) if one.kind != COMPLETED}
    ended = [asked[one.token] for one in read_record(record) if one.kind == COMPLETED]
    assert ended == [WRITE, FLUSH]


def test_a_flush_that_fails_fails_its_commit(tmp_path):
    """The write was whole: to where nothing can be flushed."""
    core, file = Core(), JournalFile(tmp_path / "j", mode=lib.TPC_JOURNAL_BUFFERED_FDATASYNC)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    journal = Journal(core, file, descriptor=nowhere)
    assert journal.append(b"entry") == 1
    assert journal.wait_failed()[2:] == (1, errno.EINVAL)
    assert journal.durable == 0
    assert core.of_kind(lib.TPC_EVENT_JOURNAL_DURABLE) == []
    journal.close()
    core.close()
    for descriptor in (nowhere, file.descriptor):
        os.close(descriptor)


def test_a_commit_says_what_was_durable_when_it_was_submitted(tmp_path):
    """No more, or a tail that was torn would be damage; and no less, or damage would be a torn tail."""
    core, file = Core(), JournalFile(tmp_path / "j")
    journal = Journal(core, file, commits_in_flight_max=4, commit_bytes_max=BLOCK_BYTES)
    for number in range(4):
        assert journal.append(bytes(3900)) == number + 1
    journal.wait_durable(4)
    for number in range(4, 7):
        journal.wait_durable(journal.append(bytes(3900)))
        assert journal.durable == number + 1
    assert [commit.durable_sequence for commit in file.chain()] == [0, 0, 0, 0, 4, 5, 6]
    journal.close()
    core.close()
    os.close(file.descriptor)


def test_batches_share_an_entry_only_where_one_follows_the_other(tmp_path):
    """In one partition. Recovery takes an entry's first offset, and its last."""
    core, file = Core(), JournalFile(tmp_path / "j")
    journal = Journal(core, file)
    places = [(0, 0, 2), (0, 2, 3), (0, 5, 6), (1, 6, 7), (1, 7, 8), (1, 7, 8)]
    for partition, base_offset, end_offset in places:
        payload = bytes([base_offset])
        journal.append(payload, APPEND, partition=partition, offset=base_offset, argument=end_offset)
    journal.wait_durable(1)
    (commit,) = file.chain()
    assert [(one.partition, one.offset, one.argument, one.payload) for one in commit.entries] == [
        (0, 0, 3, b"\0\2"), (0, 5, 6, b"\5"), (1, 6, 8, b"\6\7"), (1, 7, 8, b"\7"),
    ]  # fmt: skip
    journal.close()
    core.close()
    os.close(file.descriptor)
