"""What is known of a partition's producers when it goes over, where that is too long for an entry of the journal.

RELEASED and ADOPTED carry the partition as it goes on. Of many producers that is megabytes, up to 151 bytes for each,
and would neither fit into a commit nor leave room in a small journal. Then they are in a file beside the journal, which
is durable before the entry is written, and which the entry names with its length and CRC. It is part of that journal as
the entry is: whoever reads the journal reads it (`whole_payload`), a backup copies it, and it goes when a checkpoint
has made the journal begin behind the entry. What no entry names is removed at a start.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.checkpoint import Handed, handed_by, with_producers
from tpc_broker.log.files import handed_file_name, handed_file_prefix
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.segments.short_steps import PRODUCERS_AT_ONCE

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.producer_state import ProducerState
    from tpc_broker.model import CoreId
    from tpc_broker.storage.ports import Disk, Journal

log = logging.getLogger(__name__)

ENTRY_BYTES_MAX: Final = limits.JOURNAL_COMMIT_BYTES_MAX // 2
"""Of what goes over: with producers, where they are tens of thousands at most."""
PRODUCERS_IN_ENTRY_MAX: Final = 20_000
"""Some 3 MB, where each has as much as it can have."""


# Rule: The file with a partition's producers is durable before the entry that names it is in the journal, and stays
# until no start reads that entry any more. Held by tests/storage/test_handed_producers.py,
# tests/durability/test_move_images.py (losses of power).
class HandedProducers:
    """The files of one core's journal."""

    may_write = False
    """Whether all nodes know entries that name a file."""

    def __init__(self, disk: Disk, journals: Path, core: CoreId, journal: Journal) -> None:
        self._disk = disk
        self._folder = journals
        self._core = core
        self._journal = journal
        self._files: dict[str, float] = {}
        """From which sequence on nobody reads it any more: infinity while its entry is not durable."""

    async def payload(self, state: PartitionCheckpoint) -> tuple[bytes, Handed | None]:
        """Of an entry: with its producers, or with the name of a file that has them, and which is durable then.
        PartitionOfflineError: they are too many where there may be no such file, or it cannot be written.
        """
        payload = self.payload_nowait(state, None)
        if payload is not None:
            return payload, None
        handed = await self.write(state.producers)
        payload = self.payload_nowait(state, handed)
        assert payload is not None
        return payload, handed

    def payload_nowait(self, state: PartitionCheckpoint, handed: Handed | None) -> bytes | None:
        """The same, with the name of a file that was written before, if any; None: one is to be written first."""
        count = len(state.producers)
        if handed is None and self.may_write and count > PRODUCERS_IN_ENTRY_MAX:
            return None
        payload = state.encode(handed)
        if len(payload) > ENTRY_BYTES_MAX:
            raise PartitionOfflineError(f"the state of its {count} producers is too long for the journal")
        return payload

    async def write(self, producers: ProducerState) -> Handed:
        """Errors as above."""
        assert self.may_write
        parts = []
        for part in producers.encode_in_parts(PRODUCERS_AT_ONCE):  # of a state that nobody changes
            parts.append(part)
            await trio.lowlevel.checkpoint()
        data = b"".join(parts)
        handed = Handed(handed_file_name(self._core, os.urandom(8).hex()), len(data), crc32c(data))
        path = self._folder / handed.name
        self._files[handed.name] = math.inf
        try:
            await _write(self._disk, path, data)
        except BaseException as error:
            self.given_up(handed)
            if isinstance(error, OSError):
                raise PartitionOfflineError(f"the state of its {len(producers)} producers: {error}") from error
            raise
        return handed

    def named(self, handed: Handed | None) -> None:
        """The entry that names it is durable, and will not be written again."""
        if handed is not None:
            self._files[handed.name] = self._journal.durable_cursor().sequence

    def given_up(self, handed: Handed | None) -> None:
        """No entry names it, or will."""
        if handed is not None:
            self._files[handed.name] = -math.inf

    async def forget(self, replay_sequence: int) -> None:
        """The journal begins there by now."""
        for name, sequence in list(self._files.items()):
            if sequence > replay_sequence:
                continue
            try:
                await _remove(self._disk, self._folder / name)
            except OSError as error:
                log.warning("%s cannot be removed now: %s", self._folder / name, error)
            else:
                del self._files[name]


async def whole_payload(disk: Disk, journals: Path, payload: bytes) -> bytes:
    """An entry's payload as if it had its producers itself. As it is where their file is not whole: then it cannot be
    read. OSError: the file cannot be.
    """
    handed = handed_by(payload)
    if handed is None:
        return payload
    try:
        fd = await disk.open(journals / handed.name, os.O_RDONLY)
    except FileNotFoundError:
        return payload
    try:
        data = bytes(await disk.read(fd, handed.bytes_count, 0))
    finally:
        await disk.close(fd)
    if len(data) != handed.bytes_count or crc32c(data) != handed.crc:
        return payload
    return with_producers(payload, data)


async def remove_handed(disk: Disk, journals: Path, core: CoreId) -> None:
    """After recovery, when the journal has nothing that is read again."""
    for name in await disk.listdir(journals):
        if name.startswith(handed_file_prefix(core)):
            await _remove(disk, journals / name)


async def _write(disk: Disk, path: Path, data: bytes) -> None:
    """Durably."""
    fd = await disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        await disk.write_at(fd, data, 0)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)
    await disk.fsync_directory(path.parent)


async def _remove(disk: Disk, path: Path) -> None:
    with suppress(FileNotFoundError):
        await disk.unlink(path)
