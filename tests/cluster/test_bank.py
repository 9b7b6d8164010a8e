"""Bank transfers on three nodes that are killed, paused, cut off, drained: nothing is torn, lost or there twice, and
whoever reads sees the same, also from replicas that do not lead.
"""

from __future__ import annotations

import contextlib
import time
from random import Random

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.cluster.test_histories import fail
from tests.support.bank_files import read_by_spark, read_files
from tests.support.bank_run import ACCOUNTS, COORDINATORS, Bank, Source, read_by_librdkafka, read_raw, settle
from tests.support.cluster_nodes import Cluster
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_namespaces
from tests.support.waiting import stopwatch

WHY_NOT = why_no_namespaces()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

SECONDS = 75
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
ATTACKS = (
    "kill", "kill", "pause", "pause", "isolate", "isolate", "restart", "kill tellers", "pause tellers", "kill all",
)  # fmt: skip


def attack(made: Cluster, on: Hosts, bank: Bank, chance: Random, kind: str) -> None:
    number = chance.choice([1, 2, 3])
    if kind == "restart":
        made[number].stop()
        made.start(number)
    elif kind == "kill all":
        made.kill_all()
        made.start()
    elif kind == "kill tellers":
        bank.kill_tellers(chance)
    elif kind == "pause tellers":
        bank.pause_tellers(chance, chance.uniform(1, 14))
    else:
        fail(made, on, kind, number, chance.uniform(0.5, 6))


def test_transfers_while_nodes_fail(tmp_path, seed, chance):
    with cluster_on_hosts(tmp_path, Hosts) as (made, on):
        for node in made.nodes:
            node.overrides = {**COORDINATORS, "replica.selector.class": SELECTOR, "log.segment.bytes": str(1 << 20)}
            node.rack = f"rack{node.number}"
        made.start()
        sources = [Source(f"node {node.number}", node.host, node.ports[0]) for node in made.nodes]
        bank = Bank(made.bootstrap, tmp_path, seed, sources, replicas=3, pace_s=0.2)
        bank.open()
        done = []
        with bank.at_work():
            bank.wait_progress()
            passed_s = stopwatch()
            while passed_s() < SECONDS:
                done.append(chance.choice(ATTACKS))
                attack(made, on, bank, chance, done[-1])
                for node in made.nodes:
                    bank.see(f"files of node {node.number}", *read_files(node.data_folder))
                time.sleep(chance.uniform(0, 5))
            bank.wait_progress()
        print("; ".join(done))
        end = settle(made.bootstrap)
        bank.note_all()
        final = read_by_librdkafka(made.bootstrap, end)
        statements = {account: read_raw(sources, account, end[account], 1 << 14) for account in range(ACCOUNTS)}
        bank.see("fetches", statements, end)
        for node in made.nodes:
            bank.see(f"consumer in {node.rack}", read_by_librdkafka(made.bootstrap, end, node.rack), end)
        bank.see("client", read_by_spark({"bootstrap": made.bootstrap}), end)
        requests = bank.requests_done()
        for node in made.nodes:
            with contextlib.suppress(AssertionError):
                node.stop()
            bank.see(f"files of node {node.number} at last", *read_files(node.data_folder))
        print(bank.figures())
        problems = bank.failures + bank.ledger.problems(final, requests)
        assert not problems, problems[:10]
        assert not bank.hangs(), bank.hangs()
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
