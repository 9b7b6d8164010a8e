"""Cuts what a connection receives into frames: a machine without I/O that says where the next bytes go.

A frame has a size of 4 bytes before it. What is longer than the common buffer is received where it is to stay, so that
a large answer is copied by nobody; the size is checked before memory is taken for it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE: Final = Struct(">i")
_size_at: Final = _SIZE.unpack_from
SIZE_BYTES: Final = _SIZE.size
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""More than any answer to this client's requests, and less than the first bytes of TLS or HTTP would say."""
BUFFER_BYTES: Final = 64 * 1024
_TLS_ALERT: Final = 0x1503
_HTTP: Final = int.from_bytes(b"HTTP", "big")


class Frames:
    """``take`` gets each frame without its size, to keep. What it raises comes out of `received`."""

    def __init__(self, take: Callable[[Any], None], frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._take = take
        self._frame_bytes_max = frame_bytes_max
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._end = 0
        self._long: memoryview | None = None
        self._long_bytes = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""
        if self._long is not None:
            return self._long[self._long_bytes :]
        begin, end = self._begin, self._end
        if begin == end:
            self._begin = self._end = 0
            return self._view
        if begin:
            self._view[: end - begin] = bytes(self._view[begin:end])
            self._begin, self._end = 0, end - begin
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """So many bytes are there now. `ClientError`: they are no frames."""
        if self._long is not None:
            self._received_long(self._long, count)
            return
        view = self._view
        begin, end = self._begin, self._end + count
        self._end = end
        while end - begin >= SIZE_BYTES:
            (size,) = _size_at(view, begin)
            if not 0 < size <= self._frame_bytes_max:
                raise ClientError(self._refused(size))
            begin += SIZE_BYTES
            if SIZE_BYTES + size > BUFFER_BYTES:
                self._begin_long(size, begin)
                return
            if end - begin < size:
                return
            frame = view[begin : begin + size].tobytes()
            self._begin = begin = begin + size
            self._take(frame)

    def _received_long(self, frame: memoryview, count: int) -> None:
        self._long_bytes += count
        if self._long_bytes == len(frame):
            self._long = None
            self._take(frame)

    def _begin_long(self, size: int, begin: int) -> None:
        self._long = memoryview(bytearray(size))
        self._long_bytes = self._end - begin
        self._long[: self._long_bytes] = self._view[begin : self._end]
        self._begin = self._end = 0

    def _refused(self, size: int) -> str:
        if size >> 16 == _TLS_ALERT:
            return "it speaks TLS, and the client was made without (tls)"
        if size == _HTTP:
            return "it speaks HTTP"
        return f"a frame of {size} bytes; allowed are 1 to {self._frame_bytes_max}"
