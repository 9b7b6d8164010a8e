"""What can still be read of a file of record batches that is damaged anywhere.

Batches with a right checksum are found from the file's beginning on. Where one is damaged, its length says where the
next one should be; when none is there, every later place is tried. A batch's offset is not under its checksum: one that
the batch behind it contradicts is damaged too. A batch that is nothing but the content of a damaged record looks like
any other; it is taken only when its offset lies where the log goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import BATCH_HEADER_BYTES, MAGIC, BatchDamageError, BatchHeader, decode_header
from tpc_broker.native_bytes import ffi, find_batches_end, lib

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tpc_broker.storage.ports import Disk

READ_BYTES: Final = 4 * 1024 * 1024
OFFSETS_PER_SEGMENT: Final = 2**31
_MAGIC_POSITION: Final = 16


class Run(NamedTuple):
    """Whole batches with right checksums whose offsets follow each other: [first_offset, end_offset)."""

    position: int
    """In the file."""
    data: memoryview
    first_offset: int
    end_offset: int


class Bounds(NamedTuple):
    """Offsets that a batch may begin at, [lowest, limit), and whether it has to."""

    lowest: int
    limit: int
    ordered: bool

    def hold(self, header: BatchHeader) -> bool:
        return not self.ordered or self.lowest <= header.base_offset < self.limit


async def readable_runs(disk: Disk, path: Path, base_offset: int | None = None) -> AsyncGenerator[Run, None]:
    """Every run of the file, in its order. `base_offset`: of a segment, whose offsets rise; None: in any order.

    To be closed (`aclosing`) by whoever may leave early. The bytes are valid until the next one is asked for.
    """
    size = (await disk.stat(path)).size_bytes
    bounds = Bounds(0, 2**63, ordered=False)
    if base_offset is not None:
        bounds = Bounds(base_offset, base_offset + OFFSETS_PER_SEGMENT, ordered=True)
    fd = await disk.open(path, 0)
    try:
        position, length = 0, READ_BYTES
        while position < size:
            data = memoryview(await disk.read(fd, min(length, size - position), position))
            skipped = next_sound(data, bounds, size - position)
            if skipped is None:  # more of the file is needed to tell
                length *= 4
                continue
            if skipped:
                position, length = position + skipped, READ_BYTES
                continue
            first_offset = decode_header(data).base_offset
            end, end_offset = _contiguous(data, first_offset)
            assert end > 0, (path, position)
            yield Run(position, data[:end], first_offset, end_offset)
            bounds = bounds._replace(lowest=end_offset)
            position, length = position + end, READ_BYTES
    finally:
        await disk.close(fd)


def _contiguous(data: memoryview, first_offset: int) -> tuple[int, int]:
    """As `find_batches_end`, up to the first gap."""
    state = ffi.new("tpc_scan_state *")
    state.next_offset = first_offset
    lib.tpc_batch_scan(ffi.from_buffer("uint8_t[]", data), len(data), lib.TPC_SCAN_CHECK_CRC, state, ffi.NULL, 0)
    return int(state.position), int(state.next_offset)


def next_sound(data: memoryview, bounds: Bounds, left_bytes: int) -> int | None:
    """How far it is to the next batch to be taken: 0, it begins the data; all of the data when there is none.

    `left_bytes`: of the file from the data's beginning on. None: the data end too early to tell.
    """
    is_all = len(data) >= left_bytes
    header = _header_at(data, 0)
    if header is not None and header.size_bytes <= left_bytes:
        size = header.size_bytes
        if size > len(data):
            return None
        follower_size = _header_at(data, size)
        is_cut = follower_size is None or size + follower_size.size_bytes > len(data)
        if is_cut and not is_all and len(data) < 2 * (size + READ_BYTES):
            return None
        follower = _sound_at(data, size)
        if _sound_at(data, 0) is not None:
            contradicted = follower is not None and bounds.ordered and follower.base_offset < header.next_offset
            return size if contradicted or not bounds.hold(header) else 0
        if size == left_bytes or (follower is not None and bounds.hold(follower)):
            return size
    return _search(data, bounds, left_bytes)


def _search(data: memoryview, bounds: Bounds, left_bytes: int) -> int:
    """The next place, behind the first byte, where a batch begins, or could if more were known."""
    content, place = bytes(data), _MAGIC_POSITION
    while (place := content.find(MAGIC, place + 1)) >= 0:
        at = place - _MAGIC_POSITION
        header = _header_at(data, at)
        if header is None or not bounds.hold(header) or at + header.size_bytes > left_bytes:
            continue
        if at + header.size_bytes > len(data) or _sound_at(data, at) is not None:
            return at
    return len(data) if len(data) >= left_bytes else max(len(data) - BATCH_HEADER_BYTES, 1)


def _header_at(data: memoryview, at: int) -> BatchHeader | None:
    try:
        return decode_header(data, at) if at + BATCH_HEADER_BYTES <= len(data) else None
    except BatchDamageError:
        return None


def _sound_at(data: memoryview, at: int) -> BatchHeader | None:
    header = _header_at(data, at)
    if header is None or at + header.size_bytes > len(data):
        return None
    return header if find_batches_end(data[at : at + header.size_bytes], -1)[0] == header.size_bytes else None
