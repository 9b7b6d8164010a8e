"""Nodes whose disks lose power, run full, stand still or fail: nothing that was acknowledged with acks=all is missing.

Each node has a file system of its own on a loop device. When the power goes, a node has what had reached the device
(`tests.durability.loop_device`), and starts with that.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.test_replication import described, in_sync_everywhere, leads
from tests.durability.loop_device import mounted, new_file_system
from tests.durability.test_full_disk import fill
from tests.durability.test_power_loss import stop_the_world
from tests.support import failing_journal
from tests.support.cluster_nodes import Cluster, create_topic, eventually
from tests.support.replicated_load import Load

DISK_BYTES = 400 << 20
PARTITIONS = 6
FREEZES = int(os.environ.get("TPC_FREEZES", "10"))
AGAIN_S = 15.0
"""Until all is acknowledged again: 4 s until a node gives up, and what clients need to find another leader."""
pytestmark = pytest.mark.cluster
SMALL = {"journal.bytes.max": str(8 << 20), "log.segment.bytes": str(1 << 20)}


class Disks:
    """Of the nodes of a cluster that is not started yet."""

    def __init__(self, made: Cluster, folder: Path, stack: ExitStack) -> None:
        self._made = made
        self._stack = stack
        self._copies = 0
        self._first = {node.number: stack.enter_context(self._new(folder, node.number)) for node in made.nodes}
        self.of = dict(self._first)
        for node in made.nodes:
            node.overrides.update(SMALL)
            node.folder.mkdir(parents=True)
            node.environment.update(failing_journal.environment(node.folder))
            self._put_data_on(node.number)

    @staticmethod
    def _new(folder: Path, number: int):
        return new_file_system(folder / f"disk{number}", DISK_BYTES)

    def _put_data_on(self, number: int) -> None:
        data = self.of[number].mount_point / "data"
        data.mkdir(exist_ok=True)
        link = self._made[number].folder / "data"
        link.unlink(missing_ok=True)
        link.symlink_to(data)

    def lose_power(self, *numbers: int) -> None:
        """These nodes end at one moment, and have afterwards what was on their disks then."""
        processes = [process for number in numbers for process in self._made[number].process.processes()]
        stop_the_world(processes)
        copies = {}
        for number in numbers:
            self._copies += 1
            copies[number] = self._first[number].image.parent / f"copy{self._copies}"
            self.of[number].copy_as_it_stands(copies[number])
        self._made.kill(*numbers)
        for number, image in copies.items():
            self.of[number] = self._stack.enter_context(mounted(image, image.parent / f"{image.name}-mounted"))
            self._put_data_on(number)


@pytest.fixture
def on_disks(tmp_path):
    with ExitStack() as stack:
        made = Cluster(tmp_path, cores=1)
        disks = Disks(made, tmp_path, stack)
        try:
            made.start()
            create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
            eventually(lambda: in_sync_everywhere(made, "kept"), "three replicas")
            yield made, disks
        finally:
            made.kill_all()


def no_traceback(made: Cluster) -> None:
    for node in made.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def test_the_power_of_one_of_a_majority_and_of_all(on_disks, chance: random.Random):
    made, disks = on_disks
    with Load(made.bootstrap, "kept", PARTITIONS) as load:
        for count in chance.sample([1, 2, 3], 3):
            load.wait_progress()
            time.sleep(chance.uniform(0, 0.5))
            dark = chance.sample([1, 2, 3], count)
            disks.lose_power(*dark)
            if count == 1:
                load.wait_progress()
            made.start(*dark)
            load.wait_progress()
            eventually(lambda: in_sync_everywhere(made, "kept"), "all have caught up")
    load.check(made.bootstrap)
    no_traceback(made)


def all_led_by_others(made: Cluster, but: int, topic: str) -> bool:
    asked = next(node for node in made.nodes if node.number != but)
    found = described(asked.bootstrap, topic)
    return bool(found) and but not in {leader for leader, *_ in found.values()}


def trouble(made: Cluster, load: Load, number: int) -> None:
    """While a node's disk is of no use: others lead, and producers see no error."""
    load.wait_progress()
    eventually(lambda: all_led_by_others(made, number, load.topic), "others lead")
    load.wait_progress()


def check_healed(made: Cluster, load: Load) -> None:
    eventually(lambda: in_sync_everywhere(made, load.topic), "it has caught up")
    load.check(made.bootstrap)
    no_traceback(made)


def check_told(made: Cluster, number: int) -> None:
    """One line when the disk is full, one when it is over, and the same of the leaderships."""

    def told() -> list[str]:
        texts = "the disk is full: ", "no segment space: they lead", "segment space again"
        return [line for line in made[number].log_messages() if any(text in line for text in texts)]

    eventually(lambda: len(told()) == 4, "both are over")
    first, second, *over = told()
    assert "requests are refused until this is over" in first
    assert "no segment space: they lead nothing that others could lead" in second
    assert [line for line in over if "requests were refused" in line]
    assert [line for line in over if "leaderships were handed over" in line]


def test_a_disk_that_stands_still(on_disks):
    """For longer than a leader may be without a completion: others lead, and it catches up."""
    made, disks = on_disks
    with Load(made.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        number = leads(made, "kept")
        mount = disks.of[number].mount_point
        subprocess.run(["fsfreeze", "--freeze", mount], check=True)
        try:
            trouble(made, load, number)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", mount], check=True)
        load.wait_progress()
    check_healed(made, load)


def acknowledged_again_s(load: Load) -> float:
    """How long it takes until each partition has acknowledged something that was not yet sent at the call."""
    began_s, sent = time.monotonic(), list(load.sent)
    waiting = set(range(load.partitions))
    while waiting and time.monotonic() - began_s < 4 * AGAIN_S:
        time.sleep(0.02)
        waiting = {one for one in waiting if max(load.acknowledged[one], default=-1) < sent[one]}
    return time.monotonic() - began_s


def test_disks_that_stand_still_at_any_moment(on_disks, chance: random.Random):
    """Also of one that was started a moment ago, and whose partitions have acknowledged nothing yet."""
    made, disks = on_disks
    took_s = []
    with Load(made.bootstrap, "kept", PARTITIONS, pace_s=0.01) as load:
        for _ in range(FREEZES):
            time.sleep(chance.uniform(0, 3))
            number = chance.randint(1, 3)
            if chance.random() < 0.3:
                made.kill(number)
                made.start(number)
                time.sleep(chance.uniform(0, 3))
            mount = disks.of[number].mount_point
            subprocess.run(["fsfreeze", "--freeze", mount], check=True)
            try:
                took_s.append(acknowledged_again_s(load))
                print(f"node {number}: acknowledged again after {took_s[-1]:.2f} s", flush=True)
                time.sleep(chance.uniform(0, 6))
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", mount], check=True)
            load.wait_progress()
            eventually(lambda: in_sync_everywhere(made, load.topic), "it has caught up")
    assert max(took_s) < AGAIN_S, took_s
    check_healed(made, load)


@pytest.mark.parametrize("topic", ["kept", "alone"])
def test_a_disk_that_is_full(on_disks, topic: str):
    """A leader that cannot reserve space gives its leaderships up, and follows again when there is some: of `alone`
    there is one partition, so that its leader follows nothing that is written to.
    """
    made, disks = on_disks
    create_topic(made.bootstrap, "alone", 1, replicas=3)
    eventually(lambda: in_sync_everywhere(made, "alone"), "three replicas")
    partitions = PARTITIONS if topic == "kept" else 1
    with Load(made.bootstrap, topic, partitions, digits=4000) as load:
        load.wait_progress()
        number = leads(made, topic)
        filler = disks.of[number].mount_point / "filler"
        fill(filler, 0)
        trouble(made, load, number)
        filler.unlink()
        load.wait_progress()
    check_healed(made, load)
    check_told(made, number)


def test_a_journal_whose_writes_fail(on_disks):
    """A leader whose journal takes nothing gives its leaderships up at once; it is opened again when it can be."""
    made, _disks = on_disks
    with Load(made.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        number = leads(made, "kept")
        fault = made[number].folder / failing_journal.NAME
        fault.touch()
        trouble(made, load, number)
        fault.unlink()
        load.wait_progress()
    check_healed(made, load)
    assert any("a journal write failed" in line for line in made[number].log_messages())
