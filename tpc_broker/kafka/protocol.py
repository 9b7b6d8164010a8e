"""Requests and responses with their headers: what a connection handler calls for each frame.

A server: `decode_request_header`, look at key and version, `decode_request` for the body, and `encode_response_frame`
for the answer. A client: `encode_request_frame` and `decode_response_frame`.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any

from .api_keys import api, request_header_version, response_header_version
from .codec import VECTOR_JOIN_BYTES, Buffer, Codec, codec, join_small
from .errors import DecodeError, EncodeError
from .framing import SIZE, frame
from .source import uvarint

KEY_AND_VERSION = Struct(">hh")
REQUEST_HEADER = Struct(">hhih")
RESPONSE_HEADER = Struct(">i")
CLIENT_ID_BYTES_MAX = 0x7FFF
_CORRELATED = Struct(">ihhi")
"""The beginning of a request's frame: its size, key, version, correlation id."""
WHOLE_PARTS_MAX = 512
"""Of a request that is small: one buffer."""


def decode_request_header(data: Buffer) -> tuple[Any, int]:
    """The ``RequestHeader`` at the start of a frame and the position of the body.

    The header is decoded also for keys and versions that nobody knows, so that the peer can be answered or named.
    """
    if len(data) < KEY_AND_VERSION.size:
        raise DecodeError("the frame is too short for a request header", "RequestHeader", 1, "", len(data))
    key, version = KEY_AND_VERSION.unpack_from(data)
    return codec("RequestHeader", request_header_version(key, version)).decode_prefix(data)


def decode_request(key: int, version: int, data: Buffer, position: int = 0) -> Any:
    """The body of a request, which must end where ``data`` ends."""
    return codec(api(key).request_name, version).decode(data, position)


def decode_response(key: int, version: int, data: Buffer, position: int = 0) -> Any:
    """The body of a response, which must end where ``data`` ends."""
    return codec(api(key).response_name, version).decode(data, position)


def encode_request(key: int, version: int, message: Any) -> bytes:
    return b"".join(codec(api(key).request_name, version).encode_parts(message))


def encode_response(key: int, version: int, message: Any) -> bytes:
    return b"".join(codec(api(key).response_name, version).encode_parts(message))


def encode_response_header(key: int, version: int, correlation_id: int) -> bytes:
    """The header that goes before a response body; correlation ids are signed 32-bit."""
    data = correlation_id.to_bytes(4, "big", signed=True)
    return data + b"\0" if response_header_version(key, version) else data


def encode_response_frame(key: int, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """Size prefix, header and body as buffers to send; large records are passed on, not copied."""
    parts = codec(api(key).response_name, version).encode_parts(message)
    return join_small(frame([encode_response_header(key, version, correlation_id), *parts]))


def encode_request_frame(
    key: int, version: int, correlation_id: int, client_id: str | None, message: Any
) -> list[Buffer]:
    """Size prefix, header and body of a request as buffers to send."""
    parts = _request_codec(key, version).encode_parts(message)
    header = encode_request_header(key, version, correlation_id, client_id)
    if len(parts) < WHOLE_PARTS_MAX and sum(map(len, parts)) < VECTOR_JOIN_BYTES:
        body = b"".join(parts)
        return [b"".join((SIZE.pack(len(header) + len(body)), header, body))]
    return join_small(frame([header, *parts]))


class BlobRequest:
    """A request in which nothing changes but one blob (of records): what is around it is encoded once. ``make`` gives
    the message for a blob.
    """

    def __init__(self, key: int, version: int, client_id: str | None, make: Callable[[bytes], Any]) -> None:
        blob = b"?"
        parts = _request_codec(key, version).encode_parts(make(blob))
        place = next(place for place, part in enumerate(parts) if part is blob)
        self._key, self._version = key, version
        self.head = SIZE.pack(0) + encode_request_header(key, version, 0, client_id) + b"".join(parts[: place - 1])
        """Of a frame, up to the blob's length; with another size and correlation id."""
        self.is_compact = len(parts[place - 1]) == 1
        """The length is an unsigned varint of one more."""
        self.tail = b"".join(parts[place + 1 :])
        """Behind the blob."""
        self._rest = self.head[_CORRELATED.size :]
        self._bytes = len(self.head) - SIZE.size + len(self.tail)

    def frame(self, correlation_id: int, blob: Buffer) -> list[Buffer]:
        """As `encode_request_frame` has it for the message with that blob, which is in bytes."""
        count = len(blob)
        length = uvarint(count + 1) if self.is_compact else SIZE.pack(count)
        size = self._bytes + len(length) + count
        start = _CORRELATED.pack(size, self._key, self._version, correlation_id)
        if count < VECTOR_JOIN_BYTES:
            return [b"".join((start, self._rest, length, blob, self.tail))]
        return [b"".join((start, self._rest, length)), blob, self.tail]


class FixedResponse:
    """A response in which nothing changes but numbers that stand side by side: what is around them is compared instead
    of decoded. ``fields`` are theirs in `struct`, the first one "q"; ``make`` gives the message for a first one.
    """

    def __init__(self, key: int, version: int, fields: str, make: Callable[[int], Any]) -> None:
        example = 0x5EED_FACE_5EED_FACE
        frame = b"".join(encode_response_frame(key, version, 0, make(example)))[SIZE.size :]
        begin = frame.index(example.to_bytes(8, "big"))
        end, head_bytes = begin + Struct(f">{fields}").size, begin - RESPONSE_HEADER.size
        whole = Struct(f">i{head_bytes}s{fields}{len(frame) - end}s")
        self._unpack, self._bytes = whole.unpack, whole.size
        self._head, self._tail = frame[RESPONSE_HEADER.size : begin], frame[end:]

    def read(self, frame: bytes, correlation_id: int) -> tuple[int, ...] | None:
        """The numbers of the response to that request, without its size; None: it is another one."""
        if len(frame) != self._bytes:
            return None
        found = self._unpack(frame)
        is_expected = found[0] == correlation_id and found[1] == self._head and found[-1] == self._tail
        return found[2:-1] if is_expected else None


def encode_request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header that goes before a request body."""
    name = b"" if client_id is None else client_id.encode()
    if len(name) > CLIENT_ID_BYTES_MAX:
        raise EncodeError(f"a client id of {len(name)} bytes", "RequestHeader", request_header_version(key, version))
    head = REQUEST_HEADER.pack(key, version, correlation_id, -1 if client_id is None else len(name))
    return head + name + b"\0" if request_header_version(key, version) > 1 else head + name


def decode_response_frame(key: int, version: int, data: Buffer) -> tuple[int, Any]:
    """Correlation id and body of a response frame."""
    body, is_flexible = _response_codec(key, version)
    if len(data) > RESPONSE_HEADER.size and not (is_flexible and data[RESPONSE_HEADER.size]):  # without tagged fields
        (correlation_id,), position = RESPONSE_HEADER.unpack_from(data), RESPONSE_HEADER.size + is_flexible
    else:
        header, position = codec("ResponseHeader", is_flexible).decode_prefix(data)
        correlation_id = header.correlation_id
    return correlation_id, body.decode(data, position)


@cache
def _request_codec(key: int, version: int) -> Codec:
    """For clients, which ask for the same ones over and over."""
    return codec(api(key).request_name, version)


@cache
def _response_codec(key: int, version: int) -> tuple[Codec, int]:
    """And the version of its header."""
    return codec(api(key).response_name, version), response_header_version(key, version)
