"""Compressed batches for compacted topics: what their producers have made of them is looked into, within bounds."""

from __future__ import annotations

import pytest

from tests.support.memory_clients import create_topic, produce_request_of
from tests.support.memory_node import running_node
from tests.support.record_batches import GZIP, LZ4, SNAPPY, ZSTD, Record, batch
from tpc_broker.broker import unpacking
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import records
from tpc_broker.kafka.compression import Compression, compress, decompress

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_RECORD
RECORDS = [Record(bytes(6000), b"k"), Record(b"v", b"l")]
SMALL = ("max.decompressed.message.bytes=5000",)


async def sent(node, name, data):
    """The error, and whether that is told to be of the whole batch."""
    answer = await node.ask(0, produce_request_of(name, {0: data}), 12)
    (found,) = answer.responses[0].partition_responses
    return ErrorCode(found.error_code), "unpacked" in (found.error_message or "")


@pytest.fixture(params=[1 << 20, 100], ids=["on the loop", "in a thread"])
def in_step(request, monkeypatch):
    monkeypatch.setattr(unpacking, "IN_STEP_BYTES", request.param)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
async def test_what_unpacks_to_more_than_it_may_is_refused_by_a_compacted_topic(
    codec, in_step, autojump_clock, caplog
):
    data, keyless = batch(RECORDS, codec=codec), batch([RECORDS[0], Record(b"v")], codec=codec)
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "c", 1, cleanup_policy="compact")
        assert await sent(node, "c", data) == (NONE, False)
        assert await sent(node, "c", keyless) == (INVALID, False)
    async with running_node(cores=1, settings=SMALL) as node:
        await create_topic(node, 0, "c", 1, cleanup_policy="compact")
        await create_topic(node, 0, "other", 1)
        assert await sent(node, "c", data) == (INVALID, True)
        assert await sent(node, "c", batch(RECORDS[1:], codec=codec)) == (NONE, False)
        assert await sent(node, "other", data) == (NONE, False)
    assert "c-0, a compacted topic's, refused a batch that cannot be unpacked" in caplog.text


async def test_what_is_compressed_and_no_records_is_refused(in_step, autojump_clock):
    data = batch(RECORDS, codec=ZSTD)
    none = batch(RECORDS, attributes=ZSTD, payload=compress(Compression.ZSTD, b"these are no records"))
    no_zstd = batch(RECORDS, attributes=ZSTD, payload=b"nor is this zstd")
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "c", 1, cleanup_policy="compact")
        for bad in (none, no_zstd, batch(RECORDS, attributes=7)):
            assert await sent(node, "c", bad) == (INVALID, True)
        assert await sent(node, "c", data) == (NONE, False)


async def test_a_bomb_takes_no_more_than_the_bound(autojump_clock, monkeypatch):
    taken = []

    def watched(compression, data, bytes_max):
        taken.append(bytes_max)
        return decompress(compression, data, bytes_max)

    monkeypatch.setattr(records, "decompress", watched)
    bomb = batch(RECORDS, attributes=ZSTD, payload=compress(Compression.ZSTD, bytes(4_000_000)))
    async with running_node(cores=1, settings=("max.decompressed.message.bytes=2000000",)) as node:
        await create_topic(node, 0, "c", 1, cleanup_policy="compact")
        assert await sent(node, "c", bomb) == (INVALID, True)
    assert taken == [unpacking.IN_STEP_BYTES, 2_000_000]
