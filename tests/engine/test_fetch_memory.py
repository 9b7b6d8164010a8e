"""What answers to fetches keep in memory when nobody reads them: charged before it is made, in C and in Python."""

import socket

import pytest

from tests.support.fetch_bench import FetchBench
from tpc_broker.engine.connections import CloseReason, ConnectionLimits

MIB = 1 << 20
BATCHES, BATCH_BYTES = 10, 900_000
BUDGET_BYTES = 96 * MIB
LIMITS = ConnectionLimits(budget_bytes=BUDGET_BYTES, request_bytes_max=4 * MIB, assembly_stall_ms_max=300)


@pytest.fixture(params=[True, False], ids=["in C", "in Python"])
def bench(request, features, tmp_path):
    bench = FetchBench(tmp_path / "journal", in_c=request.param, region_blocks=4096)
    bench.connections.set_limits(LIMITS)
    bench.in_c = request.param
    bench.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # inherited: the kernel takes little
    yield bench
    bench.shut()


def fill(bench):
    bench.make("t")
    client = bench.connect()
    for _ in range(BATCHES):
        bench.fill(client, "t", 0, [1], bytes(BATCH_BYTES))
    return client


def ask_for_all(bench, client, correlation_id=1):
    part = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 2 * BATCHES * BATCH_BYTES}
    topics = [{"Topic": "t", "Partitions": [part]}]
    limits = {"MaxWaitMs": 0, "MinBytes": 1, "MaxBytes": 2 * BATCHES * BATCH_BYTES, "SessionId": 0, "SessionEpoch": -1}
    bench.send_fetch(client, 12, {**limits, "Topics": topics}, correlation_id)


def connect_narrow(bench):
    """A client whose socket takes little."""
    before = bench.connections.statistics().opened
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(bench.address)
    bench.clients.append(client)
    bench.until(lambda: bench.connections.statistics().opened > before)
    return client


def settle(bench):
    for _ in range(20):
        bench.turn(1)


def test_the_next_fetch_waits_until_the_answer_before_it_has_left(bench):
    fill(bench)
    client = connect_narrow(bench)
    for number in range(4):
        ask_for_all(bench, client, number)
    settle(bench)
    now = bench.connections.statistics()
    assert now.answer_bytes_unsent < (BATCHES + 1) * BATCH_BYTES
    answers = [bench.read_frame(client) for _ in range(4)]
    assert [int.from_bytes(answer[:4]) for answer in answers] == [0, 1, 2, 3]
    assert all(len(answer) > BATCH_BYTES for answer in answers)
    bench.until(lambda: bench.connections.statistics().answer_bytes_unsent == 0)


def test_a_crowd_that_does_not_read_holds_a_share_of_the_budget(bench):
    fill(bench)
    crowd = [connect_narrow(bench) for _ in range(100 if bench.in_c else 20)]
    for client in crowd:
        ask_for_all(bench, client)
        ask_for_all(bench, client)
    settle(bench)
    now = bench.connections.statistics()
    assert now.answer_bytes_unsent < BUDGET_BYTES / 2 + 2 * BATCH_BYTES
    if bench.in_c:
        assert now.starvations > 0
        bench.until(lambda: len(bench.closed) > len(crowd) / 2)
        assert {event[1] for event in bench.closed} == {CloseReason.SEND_DEADLINE}
    reader = bench.connect()
    ask_for_all(bench, reader)
    assert len(bench.read_frame(reader)) > BATCH_BYTES


def test_who_reads_gets_on_while_others_do_not(bench):
    fill(bench)
    for _ in range(12):
        ask_for_all(bench, connect_narrow(bench))
    reader = bench.connect()
    for _ in range(5):
        ask_for_all(bench, reader)
        assert len(bench.read_frame(reader)) > BATCH_BYTES
    assert not bench.closed
