"""A Produce that C has left, as C has read it: nothing of it is decoded here."""

from __future__ import annotations

import uuid
from struct import Struct
from typing import TYPE_CHECKING, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.ports import AskedPart, AskedProduce, ProduceFallback
from tpc_broker.kafka.errors import DecodeError

if TYPE_CHECKING:
    from tpc_broker._ring import tpc_plane
    from tpc_broker.engine.connections import Request

_PART: Final = Struct("=5i16s")
assert _PART.size == ffi.sizeof("tpc_asked_part")


def asked_produce(plane: tpc_plane, request: Request) -> AskedProduce | ProduceFallback:
    """`ProducePort.asked`."""
    out = ffi.new("tpc_asked_produce *")
    reason = lib.tpc_plane_produce_asked(plane, request.pointer, out)
    if reason:
        return ProduceFallback(reason)
    rows = bytes(ffi.buffer(out.parts, out.parts_count * _PART.size))
    topics: dict[int, str] = {}
    parts = []
    for partition, records_place, records_bytes, name_place, name_bytes, topic_id in _PART.iter_unpack(rows):
        if name_bytes < 0:
            topic: str | uuid.UUID = uuid.UUID(bytes=topic_id)
        else:
            if name_place not in topics:
                topics[name_place] = _text(request, "the name of a topic", name_place, name_bytes)
            topic = topics[name_place]
        parts.append(AskedPart(topic, partition, records_place, max(0, records_bytes)))
    transactional_id = None
    if out.transactional_id_bytes >= 0:
        transactional_id = _text(request, "a transactional id", out.transactional_id_place, out.transactional_id_bytes)
    return AskedProduce(parts, out.timeout_ms, transactional_id)


def _text(request: Request, what: str, place: int, size: int) -> str:
    try:
        return bytes(request.body[place : place + size]).decode()
    except UnicodeDecodeError:
        raise DecodeError(f"{what} is not UTF-8", "ProduceRequest", request.api_version) from None
