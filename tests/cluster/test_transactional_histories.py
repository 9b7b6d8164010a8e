"""Histories of transactions while nodes fail: nobody reads what was aborted, nothing is torn, who ended before is in
front; and that the check sees what it is for.
"""

from __future__ import annotations

import random

import pytest

from tests.cluster.test_histories import fail, leader_of
from tests.support.bank import Leg, Told, View
from tests.support.bank_run import read_by_librdkafka, settle
from tests.support.cluster_nodes import create_topic
from tests.support.host_nodes import cluster_on_hosts
from tests.support.list_append import Appenders, History, Transaction, cyclic_reads, out_of_order
from tests.support.namespaces import Hosts, why_no_namespaces

pytestmark = pytest.mark.cluster

LOGS = 4
WHY_NOT = why_no_namespaces()


def test_who_has_ended_before_another_one_begins_is_in_front():
    early, late, beside = Transaction("a", 1, 5), Transaction("b", 6, 9), Transaction("c", 4, None)
    a, b, c = (Leg(name, 2, 0) for name in "abc")
    assert out_of_order([early, late, beside], {0: [(0, c), (1, a), (2, b)], 1: [(0, a), (3, b), (4, c)]}) == []
    found = out_of_order([early, late, beside], {0: [(0, b), (1, c), (2, a)]})
    assert found == ["log 0: b at 0 is in front of a, which ended before"]


def test_nobody_reads_who_has_read_him():
    chain = [Transaction("a", 1, 2), Transaction("b", 1, 2, frozenset("a")), Transaction("c", 1, 2, frozenset("b"))]
    assert cyclic_reads(chain) == []
    (found,) = cyclic_reads([*chain[1:], Transaction("a", 1, 2, frozenset("c"))])
    assert found.startswith("they read each other: ")


def test_what_was_aborted_is_read_by_nobody():
    history = History()
    history.ledger.told = {"a": Told.ABORTED, "b": Told.COMMITTED}
    history.transactions = [Transaction("a", 1, None), Transaction("b", 1, 2, frozenset("a"))]
    legs = {0: [(1, Leg("b", 2, 0))], 1: [(0, Leg("b", 2, 0))]}
    history.ledger.views = [View("r", 0, 0, 2, [(0, Leg("a", 2, 0)), *legs[0]])]
    found = history.problems(legs)
    assert found[0] == "b has read ['a']"
    assert found[1].startswith("r: account 0 [0, 2)")
    assert len(found) == 2


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_transactional_histories_while_nodes_fail(
    tmp_path, seed: int, chance: random.Random, request: pytest.FixtureRequest
):
    """Leaders are cut off, paused and killed; --failures N for a long run."""
    with cluster_on_hosts(tmp_path, Hosts) as (made, on):
        for node in made.nodes:
            node.overrides["transaction.state.log.num.partitions"] = "6"
        made.start()
        create_topic(made.bootstrap, "lists", LOGS, replicas=3)
        appenders = Appenders(made.nodes, "lists", LOGS, seed)
        kinds = ["isolate", "pause", "kill"]
        chance.shuffle(kinds)
        with appenders.at_work():
            appenders.wait_progress()
            for count in range(max(6, request.config.getoption("--failures"))):
                number = leader_of(made, "lists", chance.randrange(LOGS))
                fail(made, on, kinds[count % 3], number, chance.uniform(0.5, 4))
                appenders.wait_progress()
        history = appenders.history
        final = read_by_librdkafka(made.bootstrap, settle(made.bootstrap, "lists", LOGS), topic="lists")
        problems = history.problems(final)
        assert not problems, problems[:10]
        told = list(history.ledger.told.values())
        print({each: told.count(each) for each in Told}, len(history.ledger.views), "views")
        assert all(told.count(each) for each in (Told.BEGUN, Told.COMMITTED))
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
