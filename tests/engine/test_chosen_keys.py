"""Keys that clients choose, made for hash functions that are the same everywhere: tables spread them all the same."""

from itertools import count, islice

import pytest

from tests.support.fetch_bench import FetchBench
from tests.support.link_bench import LinkedNode
from tests.support.plane_bench import NOW_MS
from tests.support.plane_values import ProducerBatch, ProducerState
from tpc_broker._ring import lib

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64 - 1
ROUTE_BUCKETS = 4096


def fnv_of(name, partition):
    value = 0xCBF29CE484222325 ^ partition
    for byte in name:
        value = (value ^ byte) * 0x100000001B3 & WORD
    return value ^ value >> 29


def longest_chain(tmp_path, partitions):
    """Of a session with these partitions, which need not exist."""
    bench = FetchBench(tmp_path / "journal", in_c=True)
    try:
        parts = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 100} for index in partitions]
        asked = {"MaxWaitMs": 0, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionId": 0, "SessionEpoch": 0}
        asked["Topics"] = [{"Topic": "t", "Partitions": parts}]
        session_id = bench.fetch(bench.connect(), 12, asked)["SessionId"]
        assert bench.fetch_counts().session_partitions == len(partitions)
        return lib.tpc_fetch_session_longest_chain(bench.plane.pointer, session_id)
    finally:
        bench.shut()


@pytest.mark.parametrize("chosen", ["one after the other", "for one bucket"])
def test_partitions_of_a_session_do_not_share_a_bucket(tmp_path, chosen):
    with_room = (index for index in count() if chosen != "for one bucket" or fnv_of(b"t", index) & 511 == 0)
    assert 1 <= longest_chain(tmp_path, list(islice(with_room, 300))) < 20


def route_bucket_of(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & WORD
    return (value ^ value >> 32) % ROUTE_BUCKETS


@pytest.mark.parametrize("chosen", ["one after the other", "for one bucket"])
def test_topics_of_other_cores_do_not_share_a_bucket(tmp_path, chosen):
    names = (f"topic{number}" for number in count())
    with_room = (name for name in names if chosen != "for one bucket" or route_bucket_of(name) == 0)
    node = LinkedNode(tmp_path, 1)
    try:
        for name in islice(with_room, 40):
            node.cores[0].route(name, [0])
        assert node.cores[0].forward_counts()["routes"] == 40
        assert 1 <= lib.tpc_forward_longest_chain(node.cores[0].plane.pointer) < 10
    finally:
        node.shut()


def ids(chosen):
    if chosen == "one after the other":
        return count()
    inverse = pow(GOLDEN, -1, 2**64)
    return (one for one in (low * inverse & WORD for low in range(2**32)) if one < 2**63)


@pytest.mark.parametrize("chosen", ["one after the other", "for one slot"])
def test_producers_of_a_partition_do_not_share_a_slot(bench, chosen):
    handle = bench.lead("t", log_end_offset=1000)
    states = [
        ProducerState(producer, 0, NOW_MS, (ProducerBatch(n, n, NOW_MS, 5, 5),))
        for n, producer in enumerate(islice(ids(chosen), 400))
    ]
    bench.plane.load_producers(handle, states)
    assert {state.producer_id for state in bench.plane.dump_producers(handle)} == {s.producer_id for s in states}
    assert 1 <= lib.tpc_partition_longest_search(bench.plane.pointer, handle) < 100
