"""Requests and responses with their headers: what a connection handler calls for each frame.

A server: `decode_request_header`, look at key and version, `decode_request` for the body, and `encode_response_frame`
for the answer. A client: `encode_request_frame` and `decode_response_frame`.
"""

from struct import Struct
from typing import Any

from .api_keys import api, request_header_version, response_header_version
from .codec import Buffer, codec, join_small
from .errors import DecodeError
from .framing import frame

KEY_AND_VERSION = Struct(">hh")


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
    header_codec = codec("RequestHeader", request_header_version(key, version))
    header = header_codec.message_type(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    parts = codec(api(key).request_name, version).encode_parts(message)
    return join_small(frame([*header_codec.encode_parts(header), *parts]))


def decode_response_frame(key: int, version: int, data: Buffer) -> tuple[int, Any]:
    """Correlation id and body of a response frame."""
    header, position = codec("ResponseHeader", response_header_version(key, version)).decode_prefix(data)
    return header.correlation_id, decode_response(key, version, data, position)
