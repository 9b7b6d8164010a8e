"""Nodes that are drained, stopped, and removed for good."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

from tests.support.cluster_nodes import (
    Cluster,
    admin,
    answered,
    brokers,
    cluster,
    cluster_told,
    consume,
    create_topic,
    eventually,
    leaders,
    metadata_voters,
    produce,
    run_tpc,
)
from tests.support.waiting import LOOK_S, PATIENCE_S

pytestmark = pytest.mark.cluster


def node_command(made: Cluster, *arguments: str) -> tuple[int, str]:
    return run_tpc("node", *arguments, "--bootstrap", made[1].bootstrap)


def removal(made: Cluster, node: int, *more: str) -> tuple[int, str] | None:
    """What `tpc node remove` says of one that is gone; None: that is not known yet to the node that leads the metadata,
    which buries it, and misses its link, in its own time.
    """
    code, said = node_command(made, "remove", str(node), *more)
    early = ("not buried yet: try again", "is alive: stop it first", "is not known yet: try again")
    return None if any(text in said for text in early) else (code, said)


def states(made: Cluster) -> dict[int, str]:
    return {row["node"]: row["state"] for row in cluster_told(made[1].bootstrap)["nodes"]}


def voters(made: Cluster) -> list[int]:
    return metadata_voters(made[1].bootstrap)


def in_sync(made: Cluster, topic: str) -> list[list[int]]:
    """The nodes that have all of each partition."""
    found = admin(made[1].bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic].partitions
    return [sorted(broker // 1024 for broker in found[index].isrs) for index in sorted(found)]


def wait_handed_over(made: Cluster, left: int, why: str) -> None:
    """Until a node that this one had lead the metadata does, and it has said so.

    By handing over, or by the change of voters that takes its own vote, whichever comes first.
    """
    said = re.compile(rf"metadata: handed over to node (\d+): {re.escape(why)}|"
                      rf"metadata: the voters are to be nodes \[(?!.*\b{left}\b).*\]")  # fmt: skip

    def is_led_by_another() -> bool:
        found = [match for match in map(said.fullmatch, made[left].log_messages()) if match]
        heirs = {int(each[1]) if each[1] else made.controller() for each in found}
        return made.controller() in heirs - {left, 0}

    eventually(is_led_by_another, "one that it was handed over to leads")


def test_a_node_that_is_gone_for_good(tmp_path):
    """It is paused until it is buried and removed: so it learns of that while it runs, and again when it is started."""
    with cluster(tmp_path, count=4, founders=3) as made:
        made.start(1, 2, 3)
        create_topic(made[1].bootstrap, "spread", 3, replicas=1)
        create_topic(made[1].bootstrap, "kept", 3, replicas=3)
        produce(made[2].bootstrap, "kept", [f"kept {number}" for number in range(30)], 3)
        made.start(4)
        code, said = node_command(made, "remove", "3")
        assert (code, said.count("\n")) == (5, 1), said
        assert "Node 3 is alive: stop it first" in said
        assert node_command(made, "remove", "9")[0] == 4
        known = "tpc: there is no node 9; there are 1, 2, 3, 4 (tpc cluster shows them)\n"
        assert node_command(made, "drain", "9") == (4, known)
        os.killpg(made[3].process.pid, signal.SIGSTOP)
        eventually(lambda: states(made)[3] == "dead", "the paused one is buried")
        code, said = eventually(lambda: removal(made, 3), "the node that leads the metadata has buried it as well")
        assert code == 5
        assert "1 partitions are on node 3 alone (the first: spread-" in said
        done = eventually(lambda: removal(made, 3, "--accept-loss"), "and so has who leads the metadata now")
        assert done == (0, "Node 3 is removed.\n")
        eventually(lambda: voters(made) == [1, 2, 4], "another one votes in its place")
        assert sorted(states(made)) == [1, 2, 4]
        eventually(lambda: in_sync(made, "kept") == [[1, 2, 4]] * 3, "and has the partitions that it had with others")
        eventually(lambda: set(leaders(made[1].bootstrap, "spread").values()) == {1024, 2048, 4096}, "all are led")
        produce(made[2].bootstrap, "spread", [f"value {number}" for number in range(6)], 3)
        os.killpg(made[3].process.pid, signal.SIGCONT)
        assert made[3].wait_ended() == 2
        refused = f"node 3 was removed from cluster {cluster_told(made[1].bootstrap)['cluster_id']}"
        assert refused in made[3].log_text()
        made.launch(3)
        assert made[3].wait_ended() == 2
        assert refused in made[3].log_text().splitlines()[-1]
        made[2].kill()
        assert consume(made[4].bootstrap, "kept", 30) == sorted(f"kept {number}" for number in range(30))
        made.start(2)
        shutil.rmtree(made[3].data_folder)
        made.start(3)
        eventually(lambda: brokers(made[2].bootstrap) == {1024, 2048, 3072, 4096}, "with an empty disk it joins as new")


def test_a_node_that_is_drained_and_one_that_is_stopped(tmp_path):
    """Who leads the metadata hands over when it is to leave, and when it is stopped; nobody waits for an election."""
    with cluster(tmp_path, count=4, founders=3) as made:
        made.start(1, 2, 3)
        made.start(4)
        create_topic(made[1].bootstrap, "old", 8)
        drained = eventually(made.controller, "somebody leads")
        eventually(lambda: drained * 1024 in leaders(made[1].bootstrap, "old").values(), "it leads some")
        assert node_command(made, "drain", str(drained)) == (0, f"Node {drained} is draining.\n")
        wait_handed_over(made, drained, "this node is draining")
        eventually(lambda: states(made)[drained] == "draining", "it is shown")
        eventually(lambda: drained not in voters(made) and 4 in voters(made), "the spare node votes in its place")
        unwanted = {-1, drained * 1024}
        eventually(lambda: not unwanted & set(leaders(made[1].bootstrap, "old").values()), "others lead its partitions")
        create_topic(made[1].bootstrap, "new", 6)
        eventually(lambda: -1 not in leaders(made[1].bootstrap, "new").values(), "all are led")
        assert drained * 1024 not in answered(lambda: leaders(made[1].bootstrap, "new")).values()
        done = node_command(made, "drain", str(drained), "--wait", "--timeout", str(PATIENCE_S))
        assert done == (0, f"Node {drained} is drained.\n")
        held = {row["node"]: row["replicas"] for row in cluster_told(made[1].bootstrap)["nodes"]}
        assert held[drained] == 0, "three others have them"
        assert node_command(made, "drain", str(drained), "--cancel")[0] == 0
        eventually(lambda: states(made)[drained] == "alive", "it is one of them again")
        heir = eventually(made.controller, "somebody leads")
        made[heir].stop()
        wait_handed_over(made, heir, "this node is being stopped")
        left = made[1 if heir != 1 else 2]
        create_topic(left.bootstrap, "after")
