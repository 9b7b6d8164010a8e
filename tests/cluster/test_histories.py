"""Histories of clients while nodes fail, checked by Porcupine and by prefixes; and that both see what they are for."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace

import pytest

from tests.support.cluster_nodes import Cluster, create_topic, eventually, leaders
from tests.support.histories import (
    Actors,
    CheckerUnavailable,
    Client,
    History,
    Operation,
    Shown,
    build_checker,
    missing,
    not_linearizable,
    not_prefixes,
)
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, RelayedHosts, why_no_namespaces, why_no_relay
from tests.support.replicated_load import read_all

pytestmark = pytest.mark.cluster

PARTITIONS = 2
DISTURBANCES = [
    {"delay_ms": 100.0},
    {"doubled": 0.3, "jitter_ms": 100.0},
    {"late": 0.3, "jitter_ms": 100.0},
    {"delay_ms": 100.0, "doubled": 0.3, "late": 0.3, "jitter_ms": 200.0},
]
WHY_NOT = why_no_namespaces()


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    try:
        return build_checker(tmp_path_factory.mktemp("porcupine"))
    except CheckerUnavailable as reason:
        pytest.skip(str(reason))


def history(*rows: tuple) -> list[Operation]:
    """(key, kind, call, end or None, offset or value)"""
    found = []
    for client, (key, kind, call_ns, ended_ns, what) in enumerate(rows):
        named = {"offset": what} if kind in ("append", "end") else {"value": what}
        found.append(Operation(key, kind, client, call_ns, ended_ns, **named))
    return found


GOOD = history(
    ("log 0", "append", 1, 5, 0), ("log 0", "append", 2, 4, 1), ("log 0", "append", 6, None, 2),
    ("log 0", "append", 7, 9, 3), ("log 0", "end", 20, 21, 4),
    ("offset g", "read", 1, 2, -1), ("offset g", "write", 3, 6, 41), ("offset g", "read", 4, 5, 41),
    ("offset g", "write", 7, None, 42), ("offset g", "read", 8, 9, 41), ("offset g", "read", 30, 31, 42),
)  # fmt: skip
LOG, OFFSET = ["log 0: not linearizable"], ["offset g: not linearizable"]


def test_what_one_order_explains_is_linearizable(checker):
    assert not_linearizable(checker, GOOD) == []


@pytest.mark.parametrize(
    ("place", "changed", "said"),
    [
        (3, {"offset": 1}, LOG),  # one offset twice: the first was acknowledged before a quorum had it
        (4, {"offset": 3}, LOG),  # what was acknowledged is not there
        (1, {"call_ns": 6, "ended_ns": 7, "offset": 0}, LOG),  # before one that had ended
        (3, {"offset": 4}, LOG),  # a hole
        (9, {"value": -1}, OFFSET),  # an older value than was committed before
        (10, {"value": 41, "call_ns": 8}, []),
        (7, {"value": 42}, OFFSET),  # before anybody had written it
    ],
)
def test_what_no_order_explains_is_not(checker, place, changed, said):
    rows = list(GOOD)
    rows[place] = replace(rows[place], **changed)
    assert not_linearizable(checker, rows) == said


def test_an_older_committed_offset_after_a_newer_one_was_read(checker):
    rows = [*GOOD, *history(("offset g", "read", 40, 41, 41))]
    assert not_linearizable(checker, rows) == OFFSET


def test_prefixes_and_what_is_missing():
    logs = [[(0, 10), (1, 11), (2, 12)]]
    assert not_prefixes([Shown(1, 0, 3, {0: 10, 1: 11}), Shown(2, 0, 1, {0: 10}), Shown(3, 0, 0, {})], logs) == []
    told = not_prefixes([Shown(1, 0, 3, {1: 99}), Shown(2, 0, 4, {3: 13})], logs)
    assert told == [
        "log 0: node 1 showed 99 at 1, where 11 is",
        "log 0: node 2 told of 4 records of 3",
        "log 0: node 2 showed 13 at 3, where None is",
    ]
    rows = [Operation("log 0", "append", 1, 1, 2, 1, 11), Operation("log 0", "append", 1, 1, None, -1, 99)]
    assert missing(rows, logs) == []
    assert missing([replace(rows[0], offset=2)], logs) == ["log 0: value 11 was acknowledged at 2, where 12 is"]


def test_outcomes_that_clients_did_not_learn(checker):
    """What is in the log has happened; a committed offset that was read, too."""
    found = History([
        Operation("log 0", "append", 1, 1, None, -1, 11), Operation("log 0", "append", 1, 2, None, -1, 12),
        Operation("offset g", "write", 2, 1, None, value=5), Operation("offset g", "write", 2, 2, None, value=6),
        Operation("offset g", "read", 3, 4, 5, value=5),
    ])  # fmt: skip
    kept = found.settled([[(0, 12)]])
    assert [(one.kind, one.value, one.offset) for one in kept] == [
        ("append", 12, 0), ("write", 5, -1), ("read", 5, -1), ("end", -1, 1),
    ]  # fmt: skip
    assert not_linearizable(checker, kept) == []


# -- real nodes --------------------------------------------------------------------------------------------------------


def leader_of(made: Cluster, topic: str, partition: int) -> int:
    def look() -> int:
        found = leaders(made.bootstrap, topic)[partition]
        return found // 1024 if found > 0 else 0

    return eventually(look, "it is led")


def fail(made: Cluster, on: Hosts, how: str, number: int, seconds: float) -> None:
    """A node fails for so long."""
    node = made[number]
    if how == "isolate":
        on.isolate(number)
        time.sleep(seconds)
        on.heal(number)
    elif how == "pause":
        os.killpg(node.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(node.process.pid, signal.SIGCONT)
    else:
        node.kill()
        time.sleep(seconds / 2)
        made.start(number)


def acknowledged_too_early(made: Cluster, on: Hosts, planted: Actors) -> None:
    """A leader that is cut off takes a record with acks=1, which is noted down as if it had been acks=all."""
    client, number = Client(made.nodes), leader_of(made, planted.topic, 0)
    others = [node.number for node in made.nodes if node.number != number]
    try:
        assert planted.append(client, 0, number, 0), "a first one, by which the connection is there"
        on.isolate(number)
        is_taken = planted.append(client, 0, number, 0, acks=1)
        eventually(lambda: any(planted.append(client, 1, other, 0) for other in others), "the others go on")
        on.heal(number)
        assert is_taken, "it led no more"
    finally:
        client.close()


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_histories_while_leaders_fail(tmp_path, checker, request: pytest.FixtureRequest, chance: random.Random):
    """Leaders are cut off, paused and killed; --failures N for a long run. At last one that is cut off acknowledges
    too early, which has to be seen.
    """
    with cluster_on_hosts(tmp_path, Hosts) as (made, on):
        made.start()
        create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
        create_topic(made.bootstrap, "planted", 1, replicas=3)
        actors = Actors(made.nodes, "kept", PARTITIONS, "group")
        kinds = ["isolate", "pause", "kill"]
        chance.shuffle(kinds)
        with actors.at_work():
            actors.wait_progress()
            for count in range(max(3, request.config.getoption("--failures"))):
                number = leader_of(made, "kept", chance.randrange(PARTITIONS))
                fail(made, on, kinds[count % 3], number, chance.uniform(0.5, 2.5))
                actors.wait_progress()
        logs = [read_all(made.bootstrap, "kept", partition) for partition in range(PARTITIONS)]
        problems = actors.history.problems(checker, logs)
        assert not problems, problems[:10]

        def is_planted() -> list[str]:
            planted = Actors(made.nodes, "planted", 1, "nobody")
            acknowledged_too_early(made, on, planted)
            log = eventually(lambda: read_all(made.bootstrap, "planted", 0), "its records are there")
            return planted.history.problems(checker, [log])

        found = eventually(is_planted, "it acknowledges too early")
        assert found[0] == "log 0: not linearizable"
        assert "was acknowledged at" in found[1]
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_histories_while_packets_come_late_twice_or_in_another_order(tmp_path, checker, request: pytest.FixtureRequest):
    """Nobody has to fail for it; then a leader is cut off, too. --failures N for a long run."""
    why_not = why_no_relay()
    if why_not is not None:
        pytest.skip(why_not)
    with cluster_on_hosts(tmp_path, RelayedHosts) as (made, on):
        made.start()
        create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
        actors = Actors(made.nodes, "kept", PARTITIONS, "group")
        with actors.at_work():
            actors.wait_progress()
            for _ in range(max(1, request.config.getoption("--failures") // 2)):
                for how in DISTURBANCES:
                    before = on.disturb(**how)
                    actors.wait_progress()
                    after = on.disturb(**how)
                    assert (after["doubled"] > before["doubled"]) == ("doubled" in how), (how, before, after)
                    assert after["overtaken"] > before["overtaken"] or "jitter_ms" not in how, (how, before, after)
                fail(made, on, "isolate", leader_of(made, "kept", 0), 2)
                actors.wait_progress()
                on.disturb()
                actors.wait_progress()
        logs = [read_all(made.bootstrap, "kept", partition) for partition in range(PARTITIONS)]
        problems = actors.history.problems(checker, logs)
        assert not problems, problems[:10]
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
