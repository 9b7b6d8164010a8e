"""What a replica of the metadata group has promised: ``cluster/metadata.raft``.

Theory of operation
-------------------
A file of frames, one for each write: a mark, length, CRC-32C of what follows, and the entries of that write, each
with its length (`cluster.raft_codec`). It begins with a checkpoint (of nothing, at first) and is only appended to;
`replace` writes another one, with a new checkpoint in front, beside it, and renames it into its place. A write is
durable before anybody is told and before the next begins (`raft`'s duty 5).

After a crash the file may end in a write that was not finished, of which nothing was promised: it is cut off. If a
whole frame lies behind what does not check, the file was damaged and a promise may be lost: then this replica must not
come back as what it was, and the file is refused.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.cluster.link_codec import LinkDecodeError
from tpc_broker.cluster.raft_codec import FileEntry, decode_entry, encode_entry
from tpc_broker.native_bytes import crc32c
from tpc_broker.raft.journal import EMPTY_CHECKPOINT, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tpc_broker.storage.disk_watch import DiskWatch
    from tpc_broker.storage.ports import Disk

FILE: Final = "metadata.raft"
GROUP: Final = "metadata"
_HEAD: Final = struct.Struct(">4sII")
_MARK: Final = b"tpcw"
_LENGTH: Final = struct.Struct(">I")
_MAGIC: Final = b"tpc metadata voter 1\n"


class VoterFileDamagedError(Exception):
    """A promise may be lost: what to do is in the text."""


def framed(entries: Iterable[bytes]) -> bytes:
    body = b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)
    return _HEAD.pack(_MARK, len(body), crc32c(body)) + body


# Rule: What a voter of the metadata has promised is on its disk first. A file that may have lost a promise is refused.
# See also tpc_broker/node/metadata/metadata_group.py. Held by tests/cluster/test_voter_file.py,
# tests/cluster/test_metadata_group.py.
class VoterFile:
    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self.path = folder / FILE
        self._fd = -1
        self._position = 0
        self.bytes_since_checkpoint = 0

    async def open(self) -> tuple[FileEntry, list[FileEntry]] | None:
        """The checkpoint, and the entries behind it; None where there is no file. VoterFileDamagedError."""
        await self.close()
        try:
            size = (await self._disk.stat(self.path)).size_bytes
        except FileNotFoundError:
            return None
        self._fd = await self._disk.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        data = bytearray()
        while len(data) < size:
            part = await self._disk.read(self._fd, min(size - len(data), 1 << 20), len(data))
            if not part:
                break
            data += part
        entries, end = self._parse(bytes(data))
        if end < len(data):
            await self._disk.truncate(self._fd, end)
            await self._disk.fdatasync(self._fd)
        self._position = end
        self.bytes_since_checkpoint = end
        return entries[0], entries[1:]

    def _parse(self, data: bytes) -> tuple[list[FileEntry], int]:
        if not data.startswith(_MAGIC):
            raise VoterFileDamagedError(self._damaged("does not begin as such a file does"))
        entries: list[FileEntry] = []
        position = len(_MAGIC)
        while (body := _frame_at(data, position)) is not None:
            try:
                entries += [decode_entry(GROUP, entry) for entry in _entries_of(body)]
            except (LinkDecodeError, struct.error) as error:
                raise VoterFileDamagedError(self._damaged(str(error))) from error
            position += _HEAD.size + len(body)
        if not entries or not isinstance(entries[0].entry, Checkpoint):
            raise VoterFileDamagedError(self._damaged("has no checkpoint at its beginning"))
        if _is_a_frame_behind(data, position):
            raise VoterFileDamagedError(self._damaged(f"is damaged at byte {position}, and goes on behind it"))
        return entries, position

    def _damaged(self, what: str) -> str:
        return (
            f"{self.path} {what}: what this node has promised as a voter may be lost; to have it join anew, without "
            f"its partitions, move the whole data directory away"
        )

    @property
    def disk_watch(self) -> DiskWatch:
        """What the disk under it has been asked for."""
        return self._disk.watch

    async def create(self) -> None:
        """An empty one, durable with its name, before anything is promised."""
        await self.replace(EMPTY_CHECKPOINT, b"")

    async def append(self, entries: Iterable[bytes]) -> None:
        """Durable when it returns. OSError: it may be durable or not, and nothing more may be written."""
        data = framed(entries)
        await self._disk.write_at(self._fd, data, self._position)
        await self._disk.fdatasync(self._fd)
        self._position += len(data)
        self.bytes_since_checkpoint += len(data)

    async def replace(self, checkpoint: Checkpoint, image: bytes) -> None:
        """The checkpoint takes the place of everything that was written before. OSError: it may have or not; nothing
        more may be written.
        """
        temporary = self.path.with_suffix(".new")
        data = _MAGIC + framed([encode_entry(checkpoint, image)])
        descriptor = await self._disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            await self._disk.write_at(descriptor, data, 0)
            await self._disk.fdatasync(descriptor)
            await self._disk.rename(temporary, self.path)
            await self._disk.fsync_directory(self.path.parent)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._disk.close(descriptor)
            raise
        before, self._fd = self._fd, descriptor
        self._position, self.bytes_since_checkpoint = len(data), 0
        if before >= 0:
            await self._disk.close(before)

    async def close(self) -> None:
        if self._fd >= 0:
            descriptor, self._fd = self._fd, -1
            await self._disk.close(descriptor)


def _frame_at(data: bytes, position: int) -> bytes | None:
    """What the frame there holds; None where none is whole."""
    if position + _HEAD.size > len(data):
        return None
    mark, length, checksum = _HEAD.unpack_from(data, position)
    body = data[position + _HEAD.size : position + _HEAD.size + length]
    return body if mark == _MARK and length and len(body) == length and crc32c(body) == checksum else None


def _entries_of(body: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(body):
        (length,) = _LENGTH.unpack_from(body, position)
        yield body[position + _LENGTH.size : position + _LENGTH.size + length]
        position += _LENGTH.size + length


def _is_a_frame_behind(data: bytes, position: int) -> bool:
    """Whether a whole frame lies anywhere behind a place where there is none."""
    found = data.find(_MARK, position + 1)
    while found >= 0:
        if _frame_at(data, found) is not None:
            return True
        found = data.find(_MARK, found + 1)
    return False
