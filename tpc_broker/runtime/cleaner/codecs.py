"""Kafka's codecs for the cleaner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.kafka.compression import Compression, compress, decompress
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.log.cleaning import Codec

if TYPE_CHECKING:
    from tpc_broker.native_bytes import Buffer


def _unpack(compression: int, data: memoryview, bytes_max: int) -> Buffer | None:
    try:
        return decompress(compression, data, bytes_max)
    except DecodeError:
        return None


def _pack(compression: int, data: memoryview) -> bytes:
    return compress(Compression(compression), bytes(data))


def make_codec() -> Codec:
    """For one job."""
    return Codec(_unpack, _pack)
