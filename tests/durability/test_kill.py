"""`kill -9` at any moment: nothing acknowledged is lost, doubled, swapped or invented.

One workload runs through all kills; the broker is opened again with the same, more or fewer cores, or one core is
killed and the others go on. What the kernel's cache hides is the business of `test_power_loss` and `test_crash_images`.
"""

from __future__ import annotations

import random
import re
import time

import pytest

from tests.durability.conftest import against_kafka, new_broker
from tests.durability.loads import CORES_MAX, LARGE, MANY, MIXED, ONCE, SMALL, problems_of_log
from tests.durability.readback import compare, problems_of_progress, problems_of_records, read_everything
from tests.durability.workload import Workload
from tests.support.backends import on_io_uring
from tests.support.broker_process import TpcBroker
from tests.support.raw_client import RawConnection

RELAXED_KILLS = 6
KILLS_MIN = 3
"""With one alone nothing may have been written in place since the last checkpoint."""

LOADS = [
    on_io_uring(MIXED, 1, "io_uring", name="mixed"),
    on_io_uring(LARGE, 5, "io_uring", name="large"),
    on_io_uring(ONCE, 5, "io_uring", name="once"),
    on_io_uring(MANY, 5, "io_uring", name="many"),
    pytest.param(MIXED, 5, "plain", id="mixed-plain", marks=pytest.mark.plain),
    pytest.param(ONCE, 5, "plain", id="once-plain", marks=pytest.mark.plain),
]
"""Each with its share of the kills: one of so many."""
WRITTEN_ONCE = re.compile(r"(\d+) of these found where they were written in place")

pytestmark = pytest.mark.crash


class Attack:
    """Kills a broker and brings it back, again and again, while a workload runs."""

    def __init__(self, broker: TpcBroker, chooser: random.Random) -> None:
        self.broker = broker
        self.chooser = chooser
        self.done: list[str] = []
        self.slowest_seconds = 0.0
        """From a kill until every core answered again."""

    def kill_everything(self) -> None:
        self.broker.kill()
        if against_kafka():
            self.done.append("killed all")
        else:
            before = self.broker.cores_count
            if self.chooser.random() < 0.4:
                self.broker.cores_count = self.chooser.randint(1, CORES_MAX)
            self.done.append(f"killed all, {before} cores, then {self.broker.cores_count}")
        self.broker.start()

    def kill_one_core(self) -> None:
        """The others keep their processes, their connections and their answers; the dead one comes back."""
        broker, victim = self.broker, self.chooser.randrange(self.broker.cores_count)
        others = [core for core in range(broker.cores_count) if core != victim]
        processes = {core: broker.core_process(core) for core in range(broker.cores_count)}
        held = {core: RawConnection(broker.host, broker.ports[core]) for core in others}
        self.done.append(f"killed core {victim} of {broker.cores_count}")
        try:
            for connection in held.values():
                connection.ask("ApiVersions", 2)
            processes[victim].kill()
            for connection in held.values():
                assert connection.ask("ApiVersions", 2)["ErrorCode"] == 0
                connection.ask("Metadata", 9, {"Topics": []})
        finally:
            for connection in held.values():
                connection.close()
        broker.wait_core_replaced(victim, processes[victim].pid)
        for core in others:
            assert broker.core_process(core).pid == processes[core].pid, f"core {core} was restarted too"

    def attack(self) -> None:
        begun = time.monotonic()
        if not against_kafka() and self.chooser.random() < 0.35:
            self.kill_one_core()
        else:
            self.kill_everything()
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begun)


def recovered_in_place(broker: TpcBroker) -> bool:
    """Whether any recovery found a batch where it had been written in place. Kafka has none."""
    return against_kafka() or sum(map(int, WRITTEN_ONCE.findall(broker.log_text()))) > 0


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("load", "share", "backend"), LOADS, indirect=["backend"])
def test_nothing_acknowledged_is_lost_or_doubled(load, share, tmp_path, seed, request):
    kills = max(KILLS_MIN, request.config.getoption("--kills") // share)
    end_at = time.monotonic() + request.config.getoption("--kill-seconds")
    chooser = random.Random(seed)
    broker = new_broker(tmp_path, 2, load.settings)
    if isinstance(broker, TpcBroker):
        broker.cores_count_max = CORES_MAX
    broker.start()
    cores_count_max = 1 if against_kafka() else CORES_MAX
    bootstrap = ",".join(f"{broker.host}:{broker.ports[0] + core}" for core in range(cores_count_max))
    workload = Workload(
        bootstrap, load.topics, producers_count=4, records_per_second=load.records_per_second, seed=seed,
        is_rationed=True,
    )  # fmt: skip
    attack = Attack(broker, chooser)
    try:
        workload.start()
        for kill in range(4 * kills):
            if kill >= kills and (load is not ONCE or recovered_in_place(broker)):
                break
            if time.monotonic() > end_at:
                break
            workload.allow(load.bytes_max // kills)
            workload.run_for(chooser.uniform(0.05, 1.2))
            before = workload.ledger.moment()
            attack.attack()
            if kill % 4 == 0:  # what only rises is soon right again: looked at on the way too
                problems = problems_of_progress(bootstrap, workload.ledger, before)
                assert not problems, "\n".join([f"seed {seed}", *problems, *attack.done])
            if kill % 100 == 99:
                print(f"{kill + 1} kills, {workload.ledger.acknowledged_count()} records acknowledged")
        print(f"slowest of {len(attack.done)} ways back: {attack.slowest_seconds:.1f} s")
        workload.run_for(0.5)
        workload.finish()
        moment = workload.ledger.moment()
        problems = compare(bootstrap, workload.ledger, moment, everything=True)
        broker.restart()
        problems += compare(bootstrap, workload.ledger, moment, everything=True)
        assert not problems, "\n".join([f"seed {seed}", *problems[:20], *attack.done])
        assert workload.ledger.acknowledged_count() > len(attack.done) * load.acknowledged_per_end
        assert against_kafka() or not (said := problems_of_log(broker.log_text())), said
        if load is ONCE:
            assert recovered_in_place(broker), "none was recovered where it lay"
    finally:
        workload.abandon()
        broker.kill()


@pytest.mark.skipif(against_kafka(), reason="a setting of ours")
def test_relaxed_loses_only_what_nobody_saw(tmp_path, seed):
    """`durability=relaxed`: an answer may be early, a reader never is; idempotent producers go on after a loss."""
    chooser = random.Random(seed)
    broker = new_broker(tmp_path, 2, SMALL)
    broker.start()
    bootstrap = ",".join(f"{broker.host}:{port}" for port in broker.ports)
    config = {"durability": "relaxed"}
    workload = Workload(
        bootstrap, {"relaxed": 4}, producers_count=3, records_per_second=3000, seed=seed, config=config
    )  # fmt: skip
    try:
        workload.start()
        for _ in range(RELAXED_KILLS):
            workload.run_for(chooser.uniform(0.3, 1.0))
            broker.kill()
            broker.start()
        workload.run_for(0.5)
        workload.finish()
        stored = read_everything(bootstrap, workload.ledger.partitions)
        moment = workload.ledger.moment()
        problems = problems_of_records(stored, workload.ledger, moment, everything=False, relaxed=True)
        assert not problems, "\n".join([f"seed {seed}", *problems[:20]])
        kept = sum(len(one.records) for one in stored.values())
        assert kept > workload.ledger.acknowledged_count() * 0.8, "more than what was in flight is gone"
    finally:
        workload.abandon()
        broker.kill()
