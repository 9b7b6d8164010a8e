"""Rounds of transactions: producers that commit, how soon that can be read, and readers of what is committed.

Each round checks what is stored: all records, aborted ones too, and a marker for each transaction in each partition.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.bars import COMMITTED_RATIO, TRANSACTIONS_PER_S
from tpc_broker.bench.consuming import read_all
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored, make_round
from tpc_broker.bench.transaction_load import Transactions, TransactionsResult, run_transactions

if TYPE_CHECKING:
    from tpc_broker.bench.measured import Runner

READ_GB_MAX: Final = 1.0
"""Written in transactions, to be read."""
READ_PAIRS: Final = 3
_FILLING: Final = Transactions(producers=4, depth=5, records=15, partitions=8, requests=4, abort_every=100)
_FILL_S_MAX: Final = 300.0


def _run(workload: Workload, stage: Stage, what: Transactions) -> tuple[TransactionsResult, float]:
    """With the CPU seconds of the server."""
    topic = f"load-{workload.key}"
    leaders = stage.kafka_like.create_topic(topic, what.partitions)
    before_s = stage.server.cpu_s()
    found = run_transactions(leaders, topic, what, (stage.extent.warm_up, stage.extent.measured))
    used_s = stage.server.cpu_s() - before_s
    check_stored(stage.peer, topic, found.offsets(what))
    return found, used_s


def _told(found: TransactionsResult, used_s: float) -> dict[str, float]:
    ended = found.commits.percentiles_us()
    return {
        TRANSACTIONS_PER_S: round(found.per_s, 1),
        "CPU µs a transaction": used_s / max(1, found.transactions_all) * 1e6,
        "EndTxn answered, p50 µs": ended["50"],
        "EndTxn answered, p99 µs": ended["99"],
        "sent again": found.resent_all,
    }


def transactions(what: Transactions) -> Runner:
    """As many records as are acknowledged in transactions that are committed; a request is a Produce."""

    def run(workload: Workload, stage: Stage) -> Round:
        found, used_s = _run(workload, stage, what)
        records = what.records * what.partitions
        made = make_round(
            found.load, stage, records=records, value_bytes=records * what.value_bytes, used_cpu_s=used_s
        )  # fmt: skip
        if what.is_transactional:
            made.extra = _told(found, used_s)
        return made

    return run


def commit_latency(what: Transactions) -> Runner:
    """One transaction at a time, and the time from sending its EndTxn until readers of all its partitions, which wait
    there for what is committed, have got all of it.
    """

    def run(workload: Workload, stage: Stage) -> Round:
        found, used_s = _run(workload, stage, what)
        made = make_round(
            found.load, stage, records=what.partitions, value_bytes=what.partitions * what.value_bytes,
            used_cpu_s=used_s,
        )  # fmt: skip
        made.latency_us = found.load.end_to_end.percentiles_us()
        made.buckets = found.load.end_to_end.buckets()
        made.extra = _told(found, used_s)
        return made

    return run


def read_committed(workload: Workload, stage: Stage) -> Round:
    """What was written in transactions, one of a hundred aborted, is read from its beginning out of the page cache, by
    readers of all that is written and of what is committed, in turn. The round is of the latter.
    """
    topic, shape = f"load-{workload.key}", workload.shape
    gigabytes = min(stage.extent.gigabytes, READ_GB_MAX)
    request_bytes = _FILLING.records * _FILLING.value_bytes * _FILLING.partitions
    what = replace(_FILLING, requests_max=max(1, round(gigabytes * 1e9 / request_bytes)))
    leaders = stage.kafka_like.create_topic(topic, what.partitions)
    found = run_transactions(leaders, topic, what, (0.0, _FILL_S_MAX))
    check_stored(stage.peer, topic, found.offsets(what))
    ends = stage.kafka_like.end_offsets(topic, what.partitions)

    def read(*, is_committed_only: bool) -> Round:
        return read_all(
            stage, topic, ends, workload.count, shape.value_bytes, is_committed_only=is_committed_only
        )

    read(is_committed_only=False)
    pairs = [(read(is_committed_only=False), read(is_committed_only=True)) for _ in range(READ_PAIRS)]
    made = pairs[-1][1]
    made.extra = {
        COMMITTED_RATIO: median(committed.mb_per_s / every.mb_per_s for every, committed in pairs),
        "CPU s/GB / read_uncommitted's": median(
            committed.cpu_s_per_gb / every.cpu_s_per_gb for every, committed in pairs if every.cpu_s_per_gb
        ),
        "MB/s of read_uncommitted": median(every.mb_per_s for every, _committed in pairs),
        "aborted": found.aborted_all,
        "stored_gb": gigabytes,
    }
    return made
