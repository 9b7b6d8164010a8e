"""Encode and decode any message of the schema, by name and version.

The functions for a message version are made on first use (a few milliseconds) and kept; `warm` makes them ahead of
time. A name or version that does not exist is an `UnsupportedVersionError`.
"""

from typing import Any

from .decoder import keeps_buffer, make_decoder
from .encoder import make_encoder
from .errors import DecodeError, EncodeError, Refused, UnsupportedVersionError
from .message import message_class
from .schema import MessageSchema, message_schema
from .source import DECODE_CAUGHT, ENCODE_CAUGHT

Buffer = bytes | bytearray | memoryview
VECTOR_JOIN_BYTES = 4096
"""Buffers shorter than this are joined with their neighbours in `join_small`."""


class Codec:
    """Both directions of one message version."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        if version not in schema.valid:
            raise UnsupportedVersionError(f"{schema.name} has no version {version}")
        self.name = schema.name
        self.version = version
        self.message_type = message_class(schema.name)
        self._schema = schema
        self._views = keeps_buffer(schema)
        self._decode: Any = None
        self._encode: Any = None
        self._decoder: Any = None
        self._encoder: Any = None

    def make_decoder(self) -> None:
        self._decode, self._decoder = make_decoder(self._schema, self.version)

    def make_encoder(self) -> None:
        self._encode, self._encoder = make_encoder(self._schema, self.version)

    def decode_prefix(self, buffer: Buffer, position: int = 0) -> tuple[Any, int]:
        """The message that starts at ``position`` and the position after it."""
        if self._decode is None:
            self.make_decoder()
        if self._views:
            view = memoryview(buffer)
            buffer = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        elif type(buffer) is not bytes:
            buffer = bytes(buffer)
        try:
            message, end = self._decode(buffer, position)
        except DECODE_CAUGHT as error:
            raise self._decode_error(error) from None
        return message, end

    def decode(self, buffer: Buffer, position: int = 0) -> Any:
        """The message that fills the buffer from ``position`` to its end."""
        message, end = self.decode_prefix(buffer, position)
        size = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
        if end != size:
            raise DecodeError(f"{size - end} bytes after the end of the message", self.name, self.version, "", end)
        return message

    def encode_parts(self, message: Any) -> list[Any]:
        """The message as the buffers it was written in, many of them small."""
        if self._encode is None:
            self.make_encoder()
        if type(message) is not self.message_type:
            raise EncodeError(f"got a {type(message).__name__}", self.name, self.version)
        parts: list[Any] = []
        try:
            self._encode(message, parts.append)
        except ENCODE_CAUGHT as error:
            raise self._encode_error(error) from None
        return parts

    def _decode_error(self, error: Exception) -> DecodeError:
        path, frame_locals = self._decoder.locate(error.__traceback__, "decode")
        if isinstance(error, Refused):
            reason = str(error)
        elif isinstance(error, UnicodeDecodeError):
            reason = "a string is not UTF-8"
        else:
            reason = "the message ends early"
        return DecodeError(reason, self.name, self.version, path, frame_locals.get("p", -1))

    def _encode_error(self, error: Exception) -> EncodeError:
        path, _ = self._encoder.locate(error.__traceback__, "encode")
        return EncodeError(str(error), self.name, self.version, path)


_CODECS: dict[tuple[str, int], Codec] = {}


def codec(name: str, version: int) -> Codec:
    """The codec of that message version, made once."""
    found = _CODECS.get((name, version))
    if found is None:
        found = _CODECS[name, version] = Codec(message_schema(name), version)
    return found


def decode(name: str, version: int, buffer: Buffer, position: int = 0) -> Any:
    """The message ``name`` in that version; it must end where the buffer ends."""
    return codec(name, version).decode(buffer, position)


def encode(name: str, version: int, message: Any) -> bytes:
    """The bytes of a message in that version."""
    return b"".join(codec(name, version).encode_parts(message))


def join_small(parts: list[Any]) -> list[Buffer]:
    """For a vectored send, which passes large records on: join runs of buffers shorter than `VECTOR_JOIN_BYTES`."""
    joined: list[Buffer] = []
    small: list[Any] = []
    for part in parts:
        if len(part) < VECTOR_JOIN_BYTES:
            small.append(part)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined
