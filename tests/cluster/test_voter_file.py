"""The file of a metadata voter: what was promised comes back, what was torn goes, what is damaged is refused."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.node.metadata.voter_file import GROUP, VoterFile, VoterFileDamagedError
from tpc_broker.raft.items import Batch, Config, Marker, Position, Voter
from tpc_broker.raft.journal import EMPTY_CHECKPOINT, AppendEntry, MarkerEntry, VoteEntry

ME = Voter(1, 11)
CONFIG = Config(frozenset({ME}), frozenset({ME}))
ENTRIES = [
    VoteEntry(GROUP, 1, ME),
    MarkerEntry(GROUP, Marker(1, 0, CONFIG)),
    AppendEntry(GROUP, (Batch(1, 2, 0, 5, b"bytes"),)),
    VoteEntry(GROUP, 3, None),
]


def write(folder: Path, *writes: list[int]) -> Path:
    async def main() -> Path:
        file = VoterFile(RingDisk(current_ring()), folder)
        await file.create()
        for one in writes:
            await file.append([encode_entry(ENTRIES[number]) for number in one])
        await file.close()
        return file.path

    return run_on_ring(main)


def read(folder: Path):
    async def main():
        file = VoterFile(RingDisk(current_ring()), folder)
        found = await file.open()
        await file.close()
        return found

    return run_on_ring(main)


def test_what_was_written_comes_back(tmp_path):
    write(tmp_path, [0, 1], [2], [3])
    checkpoint, entries = read(tmp_path)
    assert checkpoint.entry == EMPTY_CHECKPOINT
    assert [each.entry for each in entries] == ENTRIES


def test_there_is_none_before_it_is_made(tmp_path):
    assert read(tmp_path) is None


def test_a_checkpoint_takes_the_place_of_what_was_before(tmp_path):
    write(tmp_path, [0, 1], [2])
    checkpoint = EMPTY_CHECKPOINT._replace(term=7, voted_for=ME, commit_hint=Position(0, 0))

    async def main() -> None:
        file = VoterFile(RingDisk(current_ring()), tmp_path)
        await file.open()
        await file.replace(checkpoint, b"image")
        await file.append([encode_entry(ENTRIES[3])])
        await file.close()

    run_on_ring(main)
    first, entries = read(tmp_path)
    assert (first.entry, first.image) == (checkpoint, b"image")
    assert [each.entry for each in entries] == [ENTRIES[3]]


def open_in(folder: Path) -> list[Path]:
    return [one for one in Path("/proc/self/fd").iterdir() if str(folder) in os.path.realpath(one)]


@pytest.mark.parametrize("fails", ["write_at", "fdatasync", "rename", "fsync_directory"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), trio.Cancelled])
def test_a_checkpoint_that_cannot_be_written_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, error: Any
) -> None:
    """A node that joins, or is to become a voter, tries it again and again while its disk is full."""

    async def main() -> None:
        disk = RingDisk(current_ring())
        file = VoterFile(disk, tmp_path)

        attempts: list[trio.CancelScope] = []

        async def refused(*_arguments: Any) -> None:
            attempts.append(scope)
            if error is trio.Cancelled:
                scope.cancel()
                await trio.sleep_forever()
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(RingDisk, fails, refused)
            for _each in range(2):
                with trio.CancelScope() as scope, suppress(OSError):
                    await file.create()
        assert len(attempts) == 2
        assert not open_in(tmp_path)
        await file.create()
        await file.close()

    run_on_ring(main)
    assert read(tmp_path) is not None


def test_a_write_that_was_not_finished_is_cut_off(tmp_path):
    path = write(tmp_path, [0, 1], [2, 3])
    whole = path.read_bytes()
    first = len(whole) - len(write_of(tmp_path / "last", [2, 3]))
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        _checkpoint, entries = read(tmp_path)
        assert [each.entry for each in entries] == ENTRIES[:2], end
        assert path.stat().st_size == first, "what comes next is written in its place"


def test_damage_in_the_midst_is_refused(tmp_path):
    path = write(tmp_path, [0], [1], [2])
    whole = path.read_bytes()
    last = len(whole) - len(write_of(tmp_path / "only", [2]))
    for position in range(0, last, 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        with pytest.raises(VoterFileDamagedError, match="move the whole data directory away"):
            read(tmp_path)


def write_of(folder: Path, entries: list[int]) -> bytes:
    """The bytes of one write."""
    folder.mkdir()
    empty = len(write(folder).read_bytes())
    return write(folder, entries).read_bytes()[empty:]
