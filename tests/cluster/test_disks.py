"""Nodes whose disks lose power, run full, stand still or fail: nothing that was acknowledged with acks=all is missing.

Each node has a file system of its own on a loop device. When the power goes, a node has what had reached the device
(`tests.durability.loop_device`), and starts with that.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_replication import described, in_sync_everywhere, leads
from tests.durability.loop_device import mounted, new_file_system
from tests.durability.test_full_disk import fill
from tests.durability.test_power_loss import stop_the_world
from tests.support import failing_journal
from tests.support.cluster_nodes import Cluster, create_topic, eventually
from tests.support.replicated_load import Load, TimedLoad

DISK_BYTES = 400 << 20
PARTITIONS = 6
MANY, MANY_BYTES = 200, 1 << 30
WINDOW_S = 20.0
pytestmark = pytest.mark.cluster
SMALL = {"journal.bytes.max": str(8 << 20), "log.segment.bytes": str(1 << 20)}


class Disks:
    """Of the nodes of a cluster that is not started yet."""

    def __init__(self, made: Cluster, folder: Path, stack: ExitStack, disk_bytes: int = DISK_BYTES) -> None:
        self._made = made
        self._stack = stack
        self._copies = 0
        images = [(node.number, folder / f"disk{node.number}") for node in made.nodes]
        self._first = {number: stack.enter_context(new_file_system(image, disk_bytes)) for number, image in images}
        self.of = dict(self._first)
        for node in made.nodes:
            node.overrides.update(SMALL)
            node.folder.mkdir(parents=True)
            node.environment.update(failing_journal.environment(node.folder))
            self._put_data_on(node.number)

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


@contextmanager
def frozen(disks: Disks, number: int) -> Iterator[None]:
    mount = disks.of[number].mount_point
    subprocess.run(["fsfreeze", "--freeze", mount], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", mount], check=True)


def test_a_disk_that_stands_still(on_disks):
    """For longer than a leader may be without a completion: others lead, and it catches up."""
    made, disks = on_disks
    with Load(made.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        number = leads(made, "kept")
        with frozen(disks, number):
            trouble(made, load, number)
        load.wait_progress()
    check_healed(made, load)


def test_disks_that_stand_still_at_any_moment(on_disks, chance: random.Random, request: pytest.FixtureRequest):
    """Also of one that was started a moment ago, and whose partitions have acknowledged nothing yet: what it leads
    others lead, all is acknowledged again, and when the disk goes on it follows.
    """
    made, disks = on_disks
    with Load(made.bootstrap, "kept", PARTITIONS, pace_s=0.01) as load:
        for count in range(request.config.getoption("--freezes")):
            time.sleep(chance.uniform(0, 3))
            number = chance.choice([leads(made, "kept"), chance.randint(1, 3)])
            if chance.random() < 0.3:
                made.kill(number)
                made.start(number)
                time.sleep(chance.uniform(0, 3))
            began_s = time.monotonic()
            with frozen(disks, number):
                trouble(made, load, number)
                took_s = time.monotonic() - began_s
                print(f"{count}: node {number}, acknowledged again after {took_s:.1f} s", flush=True)
                time.sleep(chance.uniform(0, 6))
            load.wait_progress()
            eventually(lambda: in_sync_everywhere(made, load.topic), "it has caught up")
    check_healed(made, load)


def test_a_follower_whose_disk_stands_still_beside_one_that_is_dead(tmp_path, chance: random.Random):
    """Two of three are a majority: what they lead goes on alike. The figures are printed; all must be acknowledged."""
    figures = {}
    with ExitStack() as stack:
        made = Cluster(tmp_path, cores=1)
        disks = Disks(made, tmp_path, stack, MANY_BYTES)
        stack.callback(made.kill_all)
        made.start()
        create_topic(made.bootstrap, "many", MANY, replicas=3)
        eventually(lambda: in_sync_everywhere(made, "many"), "three replicas")
        with TimedLoad(made.bootstrap, "many", MANY, digits=2_000, every_s=1 / 150) as load:
            load.wait_progress()
            figures["all three"] = load.figures(WINDOW_S)
            with frozen(disks, 3):
                figures["from the freeze on"] = load.figures(WINDOW_S)
                eventually(lambda: all_led_by_others(made, 3, "many"), "others lead")
                figures["frozen"] = load.figures(WINDOW_S)
            load.wait_progress()
            eventually(lambda: in_sync_everywhere(made, "many"), "it has caught up")
            made.kill(3)
            figures["from the kill on"] = load.figures(WINDOW_S)
            eventually(lambda: all_led_by_others(made, 3, "many"), "others lead")
            figures["dead"] = load.figures(WINDOW_S)
            made.start(3)
            load.wait_progress()
        for what, found in figures.items():
            print(f"{what}: {found}", flush=True)
        eventually(lambda: in_sync_everywhere(made, "many"), "it has caught up")
        load.check(made.bootstrap, chance.sample(range(MANY), 10))
        no_traceback(made)


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
