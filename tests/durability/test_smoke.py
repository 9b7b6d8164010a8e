"""What the broker is trusted for, a little of each, and the same in every run: kill -9, an orderly stop, loss of power,
the loss of whoever leads. Nothing acknowledged may be missing, doubled or swapped afterwards.

Bounded by what is acknowledged, not by time. The long loops are in `test_kill`, `test_stops`, `test_crash_images` and
tests/cluster/test_replication.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.test_replication import in_sync_everywhere, leads
from tests.durability.conftest import against_kafka
from tests.durability.loads import CORES_MAX, MIXED, problems_of_log
from tests.durability.readback import compare
from tests.durability.test_crash_images import ROOT, check_images, record_life
from tests.durability.test_kill import Attack
from tests.durability.workload import Workload
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import Cluster, cluster, create_topic, eventually
from tests.support.replicated_load import Load
from tests.support.waiting import eventually as eventually_here
from tpc_broker.engine.trio_ring import run as run_on_ring

RECORDS = 300
"""Acknowledged between two ends."""
IMAGES = 80
PARTITIONS = 6
PACE_S = 0.02

pytestmark = pytest.mark.skipif(against_kafka(), reason="it kills processes of ours")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path, 2, MIXED.settings)
    made.cores_count_max = CORES_MAX
    made.start()
    yield made
    made.kill()


@pytest.fixture
def workload(broker: TpcBroker, seed: int) -> Iterator[Workload]:
    bootstrap = ",".join(f"{broker.host}:{broker.ports[0] + core}" for core in range(CORES_MAX))
    made = Workload(
        bootstrap, MIXED.topics, producers_count=2, records_per_second=MIXED.records_per_second, seed=seed,
        is_rationed=True,
    )  # fmt: skip
    made.start()
    yield made
    made.abandon()


def run_on(workload: Workload) -> None:
    """Until so many more are acknowledged; it is not waited for that nothing is under way."""
    workload.allow(4 << 20)
    wanted = workload.ledger.acknowledged_count() + RECORDS

    def is_enough() -> bool:
        return bool(workload.failures) or workload.ledger.acknowledged_count() >= wanted

    eventually_here(is_enough, f"{RECORDS} more records are acknowledged")
    workload.check()


def test_what_was_acknowledged_outlives_kills_and_an_orderly_stop(broker: TpcBroker, workload: Workload, seed: int):
    attack = Attack(broker, random.Random(seed))
    for end in (attack.kill_everything, attack.kill_one_core, attack.kill_everything, broker.restart):
        run_on(workload)
        end()
    run_on(workload)
    workload.finish()
    problems = compare(workload.bootstrap, workload.ledger, workload.ledger.moment(), everything=True)
    assert not problems, "\n".join([f"seed {seed}", *problems[:20], *attack.done])
    assert not (said := problems_of_log(broker.log_text())), said


@pytest.fixture
def life(tmp_path: Path, seed: int) -> tuple[Path, Path]:
    """The writes and flushes of a core's life, and the folder that they went to."""
    root, record = record_life(tmp_path, seed, "none", ROOT)
    return root, record


def test_what_was_acknowledged_outlives_the_power(life: tuple[Path, Path], seed: int):
    root, record = life
    problems = run_on_ring(lambda: check_images(record, root, random.Random(seed), IMAGES, until=5))
    assert not problems, "\n".join([f"seed {seed}", *problems])


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        made.start()
        yield made


def test_what_was_acknowledged_outlives_whoever_leads(three: Cluster):
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
    with Load(three.bootstrap, "kept", PARTITIONS, pace_s=PACE_S) as load:
        load.wait_progress()
        killed = leads(three, "kept")
        three[killed].kill()
        load.wait_progress()
        three.start(killed)
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has caught up")
        load.wait_progress()
    load.check(three.bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
