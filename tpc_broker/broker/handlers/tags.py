"""Tagged fields of our own, above all of Kafka's numbers: other clients and brokers pass over them (KIP-482)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tpc_broker.broker.handled import EncodedResponse
from tpc_broker.kafka.api_keys import api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.source import read_uvarint, uvarint

if TYPE_CHECKING:
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.payloads import Payload
    from tpc_broker.kafka.message import Message

NO_TAGS: Final = b"\0"
"""How a message of a flexible version ends that has no tagged field."""


def request_tags(request: Request, message: Message) -> dict[int, bytes]:
    """The tagged fields at the end of a request of a flexible version, of which `message` is the rest, by number."""
    encoded = b"".join(codec(api(request.api_key).request_name, request.api_version).encode_parts(message))
    body = bytes(request.body)
    assert encoded.endswith(NO_TAGS), "the count of tagged fields"
    if body == encoded or not body.startswith(encoded[:-1]):
        return {}
    found: dict[int, bytes] = {}
    count, position = read_uvarint(body, len(encoded) - 1)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        found[tag] = body[position : position + size]
        position += size
    return found


def with_facts(request: Request, response: Message, tag: int, facts: Payload | None) -> EncodedResponse:
    """The answer with facts as JSON in a tagged field at its end."""
    body = b"".join(codec(api(request.api_key).response_name, request.api_version).encode_parts(response))
    assert body.endswith(NO_TAGS), "the count of tagged fields"
    text = json.dumps(facts).encode()
    return EncodedResponse(body[:-1] + uvarint(1) + uvarint(tag) + uvarint(len(text)) + text)
