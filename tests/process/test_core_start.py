"""What a core's process has read ahead while it imports the rest of itself."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from tpc_broker.log.files import journal_file_name, journal_lock_name
from tpc_broker.log.journal import BLOCK_BYTES, REGION_BLOCK_FIRST, Superblock
from tpc_broker.model import CoreId
from tpc_broker.process.core_start import STEP_BYTES, read_ahead, stretches_to_read

if TYPE_CHECKING:
    from pathlib import Path

CORE = CoreId(3)
BLOCKS = 100


def superblock(**fields: object) -> Superblock:
    return Superblock(bytes(16), 1, BLOCKS, BLOCKS, 40, 7, 0, 1, **fields)  # type: ignore[arg-type]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "journals").mkdir()
    write(tmp_path, superblock().encode())
    (tmp_path / "journals" / journal_lock_name(CORE)).touch()
    return tmp_path


def write(data: Path, beginning: bytes) -> None:
    whole = beginning.ljust((REGION_BLOCK_FIRST + BLOCKS) * BLOCK_BYTES, b"\0")
    (data / "journals" / journal_file_name(CORE)).write_bytes(whole)


def test_the_kernel_is_told_of_each_block_once_and_in_the_order_of_the_replay(data, monkeypatch):
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, position, length, _advice: told.append((position, length)))
    assert read_ahead(data, CORE) == BLOCKS * BLOCK_BYTES
    assert told[0][0] == 40 * BLOCK_BYTES
    assert max(length for _position, length in told) <= STEP_BYTES
    blocks = [block for place, length in told for block in range(place // BLOCK_BYTES, (place + length) // BLOCK_BYTES)]
    assert blocks == [*range(40, REGION_BLOCK_FIRST + BLOCKS), *range(REGION_BLOCK_FIRST, 40)]


def test_the_kernel_takes_the_hint(data):
    assert read_ahead(data, CORE) == BLOCKS * BLOCK_BYTES


def test_nothing_is_read_while_an_earlier_ring_may_write(data):
    with (data / "journals" / journal_lock_name(CORE)).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_ahead(data, CORE) == 0
    assert read_ahead(data, CORE) > 0


def test_the_lock_is_free_again_afterwards(data):
    read_ahead(data, CORE)
    with (data / "journals" / journal_lock_name(CORE)).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_after_an_orderly_stop_there_is_nothing_to_replay():
    assert stretches_to_read(superblock(clean=True)) == []


@pytest.mark.parametrize("beginning", [b"", b"\xff" * 2 * BLOCK_BYTES])
def test_a_journal_that_cannot_be_read_is_left_to_recovery(data, beginning):
    write(data, beginning)
    assert read_ahead(data, CORE) == 0


def test_a_new_core_has_no_journal(tmp_path):
    assert read_ahead(tmp_path, CORE) == 0
