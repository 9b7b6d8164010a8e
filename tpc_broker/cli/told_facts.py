"""What our brokers tell beside Kafka's answers: JSON in a tagged field at their end, which other clients pass over."""

from __future__ import annotations

import json
from typing import Any

from tpc_broker.kafka.source import uvarint


def facts_told(frame: bytes | memoryview, tag: int) -> dict[str, Any] | None:
    """The JSON of a tagged field that is the only one, and the end, of an answer; None where there is none, or null."""
    data = bytes(frame)
    mark = uvarint(1) + uvarint(tag)
    begin = data.find(mark)
    while begin >= 0:
        length, position = _uvarint(data, begin + len(mark))
        if position + length == len(data):
            found: dict[str, Any] | None = json.loads(data[position:])
            return found
        begin = data.find(mark, begin + 1)
    return None


def _uvarint(data: bytes, position: int) -> tuple[int, int]:
    """Of bytes that may be anything."""
    value = shift = 0
    while position < len(data):
        value |= (data[position] & 0x7F) << shift
        shift += 7
        position += 1
        if data[position - 1] < 0x80:
            break
    return value, position
