"""Moves between the cores of a node that are cancelled, of real processes under load: the replica is where it was, or
the answer says that it came too late, and nothing is lost.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from psutil import NoSuchProcess

from tests.cluster.test_core_moves import CORES, asked, is_begun, leader_node, places, under_way
from tests.support.cluster_nodes import Cluster, Node, cluster, create_topic, eventually, run_tpc
from tests.support.replicated_load import Load
from tpc_broker.broker.reassignments import CANCEL_S
from tpc_broker.cli.cluster_facts import cluster_facts
from tpc_broker.cli.moves import cancel_at
from tpc_broker.client.errors import ClientError

pytestmark = pytest.mark.cluster

ROUNDS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("nodes"), cores=CORES) as nodes:
        nodes.start()
        yield nodes


def in_sync(made: Cluster, topic: str) -> dict[int, int]:
    return eventually(lambda: places(made, topic), "all are in sync")


def moves(asked_of: Node) -> list[dict[str, Any]]:
    """What `tpc cluster moves list` shows."""
    return cluster_facts(asked_of.bootstrap)[1]["moves"]


def cancelled(made: Cluster | Node, topic: str) -> str | None:
    """None, or why it came too late."""
    with asked(made) as client:
        return cancel_at(client, [(topic, 0)]).get((topic, 0))


def begin(made: Cluster | Node, topic: str, node: int, core: int) -> None:
    eventually(lambda: is_begun(made, topic, node, core), "it is begun")


def test_a_move_is_taken_back_or_was_done_and_the_answer_says_which(made, chance):
    """Of leaders and followers, at whichever moment."""
    create_topic(made.bootstrap, "asked", 1, replicas=3)
    create_topic(made.bootstrap, "single", 1, replicas=1)
    with Load(made.bootstrap, "asked", 1) as load, Load(made.bootstrap, "single", 1) as single:
        load.wait_progress()
        single.wait_progress()
        outcomes = []
        for number in range(ROUNDS):
            topic = ("asked", "single")[number % 2]
            before = in_sync(made, topic)
            node = chance.choice(sorted(before))
            begin(made, topic, node, 1 - before[node])
            time.sleep(chance.choice([0, 0.003, 0.01]))
            one = chance.choice(made.nodes)  # another may hear of the end later
            asked_s = time.monotonic()
            outcomes.append(why := cancelled(one, topic))
            moved = {**before, node: 1 - before[node]}
            wanted = [before if why is None else moved]
            if why is None and time.monotonic() - asked_s >= CANCEL_S:  # accepted while nobody knows what comes of it
                wanted = [before, moved]
                eventually(partial(lambda one: under_way(one) == [], one), "it has ended")
            assert under_way(one) == []
            eventually(partial(lambda topic, wanted: places(made, topic) in wanted, topic, wanted), f"as said: {why}")
            (single if number % 2 else load).wait_progress()
    load.check(made.bootstrap)
    single.check(made.bootstrap)
    assert all("had taken the replica" in why or why.startswith("No reass") for why in outcomes if why), outcomes


def on_another_node(made: Cluster, name: str) -> tuple[str, int]:
    """A topic of three replicas that is led by a node which does not lead the metadata, from the node's core 0."""
    for number in range(9):
        create_topic(made.bootstrap, topic := f"{name}-{number}", 1, replicas=3)
        before = in_sync(made, topic)
        node = eventually(partial(leader_node, made, topic), "it is led")
        if node != made.controller() and before[node] == 0:
            return topic, node
    raise AssertionError("each of them is led by the metadata's leader, or from another core")


def test_a_move_that_waits_for_a_core_is_cancelled_and_shown(made):
    """The core that should take a leader over hangs; it is killed in the end."""
    topic, node = on_another_node(made, "waits")
    before = in_sync(made, topic)
    other = next(one for one in made.nodes if one.number not in (node, made.controller()))
    with Load(other.bootstrap, topic, 1) as load:
        load.wait_progress()
        process = made[node].core_process(1)
        process.send_signal(signal.SIGSTOP)
        try:
            begin(other, topic, node, 1)
            assert [(move["topic"], move["reason"], move["state"], move["between_cores"]) for move in moves(other)] == [
                (topic, "cores", "handing over", {"node": node, "from": 0, "to": 1})
            ]
            code, said = run_tpc("cluster", "moves", "cancel", f"{topic}-0", "--bootstrap", other.bootstrap)
            assert (code, said) == (0, "1 moves go back.\n")
            load.wait_progress()
        finally:
            with suppress(NoSuchProcess):  # its supervisor does not wait for ever
                process.kill()
        made[node].wait_core_replaced(1, process.pid)
        eventually(lambda: under_way(made) == [], "it is taken back")
        eventually(lambda: places(made, topic) == before, "it is where it was")
        load.wait_progress()
    load.check(made.bootstrap)


def test_kill_9_while_moves_are_taken_back(made, chance):
    """Of the node, or one of its cores, at whichever step."""
    create_topic(made.bootstrap, "killed", 1, replicas=3)
    create_topic(made.bootstrap, "alone", 1, replicas=1)
    with Load(made.bootstrap, "killed", 1) as load, Load(made.bootstrap, "alone", 1) as single:
        load.wait_progress()
        single.wait_progress()
        (node,) = in_sync(made, "alone")
        other = next(one for one in made.nodes if one.number != node)
        for victim in ("node", 0, 1):
            for topic in ("killed", "alone"):
                begin(made, topic, node, 1 - in_sync(made, topic)[node])
            for topic in ("killed", "alone"):
                with suppress(ClientError):
                    cancelled(other, topic)
            time.sleep(chance.random() * 0.02)
            if victim == "node":
                made.kill(node)
                made.start(node)
            else:
                process = made[node].core_process(victim)
                process.kill()
                made[node].wait_core_replaced(victim, process.pid)
            eventually(lambda: under_way(made) == [], "all moves end")
            load.wait_progress()
            single.wait_progress()
    made.kill_all()
    made.start()
    eventually(lambda: places(made, "killed"), "all are in sync")
    load.check(made.bootstrap)
    single.check(made.bootstrap)
    assert "is offline" not in "".join(one.log_text() for one in made.nodes)
    assert not [line for one in made.nodes for line in one.log_messages() if "Traceback" in line]
