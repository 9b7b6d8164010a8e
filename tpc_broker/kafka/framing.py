"""Size-prefixed frames on a byte stream: a machine without I/O.

A frame is a signed 32-bit big-endian size and that many bytes. `FrameReader.receive` takes what arrived, in any
pieces, and gives the frames that are whole. The size is checked before memory is taken for it; a refused size is a
`DecodeError` and leaves the reader unusable, as nothing after it can be trusted.
"""

from struct import Struct

from .errors import DecodeError

SIZE = Struct(">i")
FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's default of ``socket.request.max.bytes``."""


class FrameReader:
    """Cuts a stream into frames. Memory held is at most one incomplete frame as far as it has arrived."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._pending = bytearray()
        self._failed = False

    def receive(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes from the stream; returns the bodies of the frames they complete, in order."""
        if self._failed:
            raise DecodeError("a frame size was refused before", "frame")
        pending = self._pending
        pending += data
        frames: list[bytes] = []
        position = 0
        while len(pending) - position >= SIZE.size:
            size = self._check(SIZE.unpack_from(pending, position)[0])
            end = position + SIZE.size + size
            if end > len(pending):
                break
            frames.append(bytes(memoryview(pending)[position + SIZE.size : end]))
            position = end
        if position:
            del pending[:position]
        return frames

    def _check(self, size: int) -> int:
        if 0 < size <= self.frame_bytes_max:
            return size
        self._failed = True
        self._pending = bytearray()
        raise DecodeError(f"a frame of {size} bytes; allowed are 1 to {self.frame_bytes_max}", "frame")


def frame(parts: list[bytes | bytearray | memoryview]) -> list[bytes | bytearray | memoryview]:
    """Put the size prefix before the buffers of one frame."""
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    return [SIZE.pack(size), *parts]
