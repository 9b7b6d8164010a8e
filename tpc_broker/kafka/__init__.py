"""The Kafka wire protocol: messages of all versions, both directions, made from committed facts.

Purpose: turn bytes into message objects and back, and nothing else; no I/O, no clock. Used on every core, in the
client library and in tools. Imports only the standard library (and cramjam, when records are compressed).

A message class has the union of the fields of all versions, in snake case of Kafka's names, with Kafka's defaults, so
that a handler is written once for all versions::

    from tpc_broker.kafka import ApiKey, messages, protocol

    header, position = protocol.decode_request_header(frame)
    request = protocol.decode_request(header.request_api_key, header.request_api_version, frame, position)
    if header.request_api_key == ApiKey.METADATA:
        response = messages.MetadataResponse(cluster_id="c", controller_id=1)
        for topic in request.topics or ():
            response.topics.append(messages.MetadataResponse.MetadataResponseTopic(name=topic.name, error_code=3))
        buffers = protocol.encode_response_frame(
            header.request_api_key, header.request_api_version, header.correlation_id, response
        )

Modules: `messages` (the classes), `protocol` (headers, bodies, frames), `codec` (any message by name: also records of
internal topics), `framing` (`FrameReader`), `records` (record batches), `api_keys`, `error_codes`, `errors`.

Representation: a uuid is 16 `bytes`; bytes and records decode to `memoryview` slices of the buffer that was passed in
(call ``bytes()`` on what is kept), and encode from any bytes-like object or, for records, a list of them; arrays are
lists. A field that a version lacks decodes to its default; to encode it, it must have its default or be one that Kafka
calls ignorable, else `EncodeError`.

Invariants: decoding returns a message that fills the buffer exactly, or raises `DecodeError` (or
`UnsupportedVersionError` before looking at the bytes), whatever the bytes are; the memory it takes is bounded by a
constant times the bytes given. Nothing is imported or parsed for an API before its first use.
"""

from . import messages, protocol
from .api_keys import ApiKey, api, apis
from .codec import decode, encode
from .error_codes import ErrorCode
from .errors import CodecError, DecodeError, EncodeError, UnsupportedVersionError
from .framing import FrameReader

__all__ = [
    "ApiKey",
    "CodecError",
    "DecodeError",
    "EncodeError",
    "ErrorCode",
    "FrameReader",
    "UnsupportedVersionError",
    "api",
    "apis",
    "decode",
    "encode",
    "messages",
    "protocol",
]
