"""The compressed part of a record batch: Kafka's four codecs, with the output bounded while it is made.

gzip and zstd are plain streams. lz4 is the frame format with independent blocks, which is all that the Java client
reads. snappy is a sequence of raw blocks behind snappy-java's header; without that header one raw block is accepted,
as librdkafka writes it.
"""

import mmap
from enum import IntEnum
from struct import Struct
from typing import Any

import cramjam

from .errors import DecodeError

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""What a batch may become when the caller names no other bound."""

SNAPPY_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
SNAPPY_BLOCK_BYTES = 32 * 1024
LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, and the header's own checksum byte."""
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED = 0x8000_0000
LZ4_LEVEL_SMALL = 12
ZSTD_LEVEL_SMALL = 19
"""More takes windows that readers may refuse, and little off."""
BIG_ENDIAN_SIZE = Struct(">i")


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(compression: Compression, data: bytes | memoryview) -> bytes:
    """``data`` as the records part of a batch with that compression."""
    if compression == Compression.NONE:
        return bytes(data)
    if compression == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return _compress_snappy(data) if compression == Compression.SNAPPY else _compress_lz4(data)


def _compress_snappy(data: bytes | memoryview) -> bytes:
    parts = [SNAPPY_HEADER]
    for start in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + SNAPPY_BLOCK_BYTES]))
        parts += [BIG_ENDIAN_SIZE.pack(len(block)), block]
    return b"".join(parts)


def _compress_lz4_small(data: bytes | memoryview) -> bytes:
    packer = cramjam.lz4.Compressor(level=LZ4_LEVEL_SMALL, content_checksum=False, block_linked=False)
    packer.compress(bytes(data))
    return bytes(packer.finish())


def _compress_lz4(data: bytes | memoryview) -> bytes:
    parts: list[bytes | memoryview] = [LZ4_HEADER]
    for start in range(0, len(data), LZ4_BLOCK_BYTES):
        plain = data[start : start + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += [len(block).to_bytes(4, "little"), block]
        else:
            parts += [(len(plain) | LZ4_STORED).to_bytes(4, "little"), plain]
    parts.append(bytes(4))
    return b"".join(parts)


def compress_small(compression: Compression, data: bytes | memoryview) -> bytes:
    """As `compress`, and as small as the codec can make it, however long that takes: some MB a second."""
    if compression == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, level=9))
    if compression == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL_SMALL))
    if compression == Compression.LZ4:
        return _compress_lz4_small(data)
    return compress(compression, data)


def decompress(compression: int, data: memoryview, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes | memoryview:
    """The plain records. `DecodeError` when the data is damaged or would exceed ``bytes_max``.

    Memory is taken as the output grows, never by what the data claims: the output goes to an anonymous mapping of
    ``bytes_max``, of which only written pages exist.
    """
    if compression == Compression.NONE:
        return data
    output = mmap.mmap(-1, max(1, bytes_max))  # goes with the last that looks at it: an error's traceback may
    return output[: decompress_into(compression, data, memoryview(output))]


def decompress_into(compression: int, data: memoryview, output: memoryview) -> int:
    """How many bytes of plain records were put into ``output``, of a batch that is compressed. `DecodeError` when the
    data is damaged or more than there is room for.
    """
    if compression == Compression.SNAPPY:
        return _decompress_snappy(data, output)
    modules: dict[int, Any] = {
        Compression.GZIP: cramjam.gzip,
        Compression.LZ4: cramjam.lz4,
        Compression.ZSTD: cramjam.zstd,
    }
    module = modules.get(compression)
    if module is None:
        raise DecodeError(f"there is no compression {compression}", "RecordBatch", 2)
    try:
        return int(module.decompress_into(data, output))
    except (cramjam.DecompressionError, ValueError, OSError) as error:
        raise _damaged(Compression(compression), output.nbytes, error) from None


def _damaged(compression: Compression, bytes_max: int, error: Exception) -> DecodeError:
    reason = f"{compression.name.lower()} data is damaged or exceeds {bytes_max} bytes: {error}"
    return DecodeError(reason, "RecordBatch", 2, "records")


def _snappy_block(data: memoryview, output: memoryview) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if size > output.nbytes:
            raise _damaged(Compression.SNAPPY, output.nbytes, ValueError(f"a block of {size} bytes"))
        return int(cramjam.snappy.decompress_raw_into(data, output)) if size else 0
    except cramjam.DecompressionError as error:
        raise _damaged(Compression.SNAPPY, output.nbytes, error) from None


def _decompress_snappy(data: memoryview, output: memoryview) -> int:
    if bytes(data[:8]) != SNAPPY_HEADER[:8]:
        return _snappy_block(data, output)
    position = len(SNAPPY_HEADER)
    written = 0
    while position < len(data):
        if position + BIG_ENDIAN_SIZE.size > len(data):
            raise DecodeError("snappy data ends inside a block's size", "RecordBatch", 2, "records")
        (size,) = BIG_ENDIAN_SIZE.unpack_from(data, position)
        position += BIG_ENDIAN_SIZE.size
        if not 0 < size <= len(data) - position:
            raise DecodeError(f"a snappy block of {size} bytes", "RecordBatch", 2, "records")
        written += _snappy_block(data[position : position + size], output[written:])
        position += size
    return written
