"""A compacted topic on three nodes, each of which cleans for itself: kills, empty disks and fills, and whoever is read
has the newest value of each key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.cluster.test_near_reads import SELECTOR
from tests.cluster.test_replication import in_sync_everywhere, leads
from tests.support.cluster_nodes import Cluster, Node, admin, cluster, eventually
from tests.support.kept_keys import COMPACTED, TOPIC, KeptKeys
from tests.support.waiting import PATIENCE_S
from tpc_broker.log.seals import Seal, cleaned_state

pytestmark = pytest.mark.cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, cores=1) as made:
        for node in made.nodes:
            node.rack = f"rack{node.number}"
            node.overrides = {"replica.selector.class": SELECTOR, "log.cleaner.backoff.ms": "100"}
        made.start()
        client = admin(made.bootstrap)
        client.create_topics([NewTopic(TOPIC, 1, 3, config=COMPACTED)])[TOPIC].result(PATIENCE_S)
        eventually(lambda: in_sync_everywhere(made, TOPIC), "three replicas")
        yield made


class Kept(KeptKeys):
    """On a cluster."""

    def __init__(self, made: Cluster, seed: int) -> None:
        super().__init__(made, seed, tombstones=0.1)
        self.cluster = made

    def why_wrong(self, node: Node) -> str:
        found = dict(self.read(node.rack))
        for key in self.newest.keys() | found.keys():
            if found.get(key) != self.newest.get(key):
                return f"node {node.number}: {key!r} is {found.get(key)!r:.30}, was {self.newest.get(key)!r:.30}"
        return ""

    def check(self) -> None:
        """A follower may be behind for a moment."""
        for node in self.cluster.nodes:
            eventually(lambda node=node: not self.why_wrong(node), f"node {node.number} has the newest of each key")


@pytest.fixture
def kept(three: Cluster, seed: int) -> Kept:
    return Kept(three, seed)


def folder_of(node: Node) -> Path:
    return node.data_folder / "topics" / f"{TOPIC}-0"


def cleaned_upto(node: Node) -> int:
    seals = []
    for path in folder_of(node).glob("*.seal"):
        try:
            seals.append(Seal.decode(path.read_bytes()))
        except FileNotFoundError:  # its segment was cleaned again, into another one
            continue
    return cleaned_state(seals).end_offset


def records_bytes(node: Node) -> int:
    return sum(path.stat().st_size for path in folder_of(node).glob("*.log") if path.exists())


def fills(made: Cluster) -> int:
    return sum("was filled from node" in line for node in made.nodes for line in node.log_messages())


def no_bugs(made: Cluster) -> None:
    for node in made.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def test_each_replica_cleans_and_all_are_right_whoever_is_killed_and_filled(three: Cluster, kept: Kept) -> None:
    for round_ in range(4):
        away = three[kept.random.randrange(3) + 1]
        kept.write(4_000)
        away.kill()
        has_lost_all = round_ % 2 == 1
        if has_lost_all:
            shutil.rmtree(away.data_folder)
        end = kept.written
        kept.write(8_000)
        up = [node for node in three.nodes if node is not away]
        eventually(lambda end=end, up=up: all(cleaned_upto(node) > end for node in up), "what it lacks was cleaned")
        three.start(away.number)
        eventually(lambda: in_sync_everywhere(three, TOPIC), "three replicas")
        kept.check()
    assert fills(three) >= 4
    kept.write(3_000)
    for node in three.nodes:
        eventually(lambda node=node: records_bytes(node) < 5 << 20, "it is as small as it can be")
    kept.check()
    no_bugs(three)


def test_a_leader_that_is_killed_behind_its_cleaning_is_followed_by_another(three: Cluster, kept: Kept) -> None:
    for _round in range(4):
        kept.write(4_000)
        leader = three[leads(three, TOPIC)]
        before = cleaned_upto(leader)
        kept.write(2_000)
        eventually(lambda leader=leader, before=before: cleaned_upto(leader) > before, "it cleans")
        leader.kill()
        kept.write(1_000)
        three.start(leader.number)
        eventually(lambda: in_sync_everywhere(three, TOPIC), "three replicas")
        kept.check()
    no_bugs(three)
