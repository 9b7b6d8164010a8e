"""The generator of transactions against a broker: what it counts is what is stored, and what readers see of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tpc_broker.bench.bars import COMMITTED_RATIO, TRANSACTIONS_PER_S
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import Extent, Round, Stage, check_stored
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.transaction_load import Transactions, TransactionsResult, run_transactions
from tpc_broker.bench.workloads import WORKLOADS

pytestmark = pytest.mark.machine

BATCHED = Transactions(producers=2, depth=3, records=4, value_bytes=100, partitions=3)


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[TpcPeer]:
    """One for all tests: each has topics of its own."""
    peer = TpcPeer(module_tmp_path / "bench" / "tpc", "durable")
    peer.start()
    try:
        yield peer
    finally:
        peer.kill()


def run(broker: TpcPeer, topic: str, what: Transactions, measured_s: float = 0.5) -> TransactionsResult:
    return run_transactions(broker.create_topic(topic, what.partitions), topic, what, (0.0, measured_s))


@pytest.mark.parametrize("every_ms", [20.0, 5.0])
def test_all_that_was_sent_in_transactions_is_stored_with_their_markers(broker: TpcPeer, every_ms: float) -> None:
    what, topic = replace(BATCHED, every_ms=every_ms), f"every-{every_ms:g}"
    found = run(broker, topic, what)
    assert found.load.requests_all >= found.transactions_all > 2
    assert found.load.histogram.count == found.load.requests
    assert found.commits.count == found.transactions
    check_stored(broker, topic, found.offsets(what))


def test_without_transactions_a_producer_is_idempotent_and_writes_no_marker(broker: TpcPeer) -> None:
    found = run(broker, "plain", BATCHED)
    assert found.transactions_all == 0
    check_stored(broker, "plain", found.load.requests_all * 4 * 3)


def test_aborted_records_are_stored_and_no_reader_sees_them(broker: TpcPeer) -> None:
    what = replace(BATCHED, producers=1, requests=1, abort_every=3, requests_max=30)
    found = run(broker, "aborted", what, 30.0)
    assert (found.load.requests_all, found.transactions_all, found.aborted_all) == (30, 30, 10)
    assert found.offsets(what) == 30 * 5 * 3
    check_stored(broker, "aborted", found.offsets(what))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition("aborted", 0, 0)])
    seen = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        seen.append(message.offset())
    consumer.close()
    assert seen == [5 * number + place for number in range(30) if number % 3 != 2 for place in range(4)]


@pytest.mark.parametrize("partitions", [1, 4])
def test_each_commit_is_timed_until_all_readers_have_it(broker: TpcPeer, partitions: int) -> None:
    what = Transactions(partitions=partitions, requests=1, is_followed=True)
    found = run(broker, f"followed-{partitions}", what)
    assert found.transactions_all == found.load.requests_all > 1
    assert found.transactions - 1 <= found.load.end_to_end.count <= found.transactions + 1
    assert found.load.end_to_end.percentiles_us()["50"] > found.commits.percentiles_us()["50"]


def test_a_refused_request_ends_the_run_with_its_error(broker: TpcPeer) -> None:
    leaders = broker.create_topic("few", 1)
    with pytest.raises(LoadFailed, match="Produce was refused with error 3"):
        run_transactions(leaders, "few", replace(BATCHED, partitions=3), (0.0, 5.0))


def test_the_rounds_of_the_workloads_check_what_is_stored(broker: TpcPeer) -> None:
    stage = Stage(broker, Extent(warm_up=0.05, measured=0.4, gigabytes=0.02))
    made: dict[str, Round] = {}
    for workload in WORKLOADS:
        if workload.key.startswith(("transactions-", "commit-latency-", "read-committed")):
            made[workload.key] = workload.run(workload, stage)
    assert len(made) == 7
    assert all(one.mb_per_s > 0 for one in made.values())
    assert made["transactions-single"].extra[TRANSACTIONS_PER_S] > 0
    assert made["commit-latency-10"].latency_us["50"] > 0
    assert made["read-committed"].extra[COMMITTED_RATIO] > 0
