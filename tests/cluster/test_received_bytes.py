"""How many bytes a node that was away receives for what it appends, while small batches are written: none twice.

What a machine sends is held by `tests/raft/test_sent_twice.py`; here are real links, journals and C.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.support.cluster_nodes import Cluster, Node, cluster, create_assigned, eventually
from tests.support.replicated_load import Load

pytestmark = pytest.mark.cluster

TOPIC, PARTITIONS = "kept", 12
VALUE_BYTES = 100
"""A partition lacks less than what comes in segments, and batches are small."""
AWAY_S = 20.0
AGAIN_S = 10.0
MOST = 1.3
"""So many bytes are received for each that is appended: a batch of one small value, and what is said beside it."""


def counted(nodes: Iterable[Node]) -> Counter[str]:
    """Of all their cores, since their start."""
    found: Counter[str] = Counter()
    for node in nodes:
        for core in node.counters():
            found["received"] += core["replicas"].get("received_bytes", 0)
            found["appended"] += core["plane"]["append_bytes"]
            found["appends"] += core["plane"]["appends"]
    return found


def grown(made: Cluster, load: Load, away: list[int], of_followers: float) -> float:
    """Bytes received for each appended as a follower, by nodes that are killed and away, from their start until they
    have everything. `of_followers`: that part of what they append.
    """
    made.kill(*away)
    acknowledged = sum(map(len, load.acknowledged))
    if len(away) < len(made.nodes):
        time.sleep(AWAY_S)
        load.wait_progress()
    made.start(*away)
    load.wait_progress()
    time.sleep(AGAIN_S)
    load.stop()
    eventually(lambda: in_sync_everywhere(made, TOPIC), "everybody has everything")
    found, acknowledged = counted(made[number] for number in away), sum(map(len, load.acknowledged)) - acknowledged
    ratio = found["received"] / (found["appended"] * of_followers)
    print(f"nodes {away}: {acknowledged} records acknowledged since they were killed; {found['appends']} appends of "
          f"{found['appended']} bytes, {found['received']} received: {ratio:.2f}")  # fmt: skip
    assert found["appended"] > VALUE_BYTES * acknowledged / 2, "it came as records"
    return ratio


@pytest.mark.parametrize(
    ("away", "of_followers"),
    [([3], 1.0), ([1, 2, 3], 2 / 3)],
    ids=["a node that leads nothing", "all nodes"],
)
def test_what_is_appended_is_received_once(tmp_path, away, of_followers):
    with cluster(tmp_path) as made:
        made.start()
        first, second, third = (node.broker_id for node in made.nodes)
        placed = [[first, second, third], [second, first, third]] * (PARTITIONS // 2)
        create_assigned(made.bootstrap, TOPIC, placed)
        eventually(lambda: in_sync_everywhere(made, TOPIC), "three replicas")
        with Load(made.bootstrap, TOPIC, PARTITIONS, digits=VALUE_BYTES) as load:
            load.wait_progress()
            assert grown(made, load, away, of_followers) < MOST
        load.check(made.bootstrap)
