"""Stops of every kind, in turn, under every kind of load: nothing acknowledged is lost, and nothing is offline.

An orderly stop is no safer than a crash unless it is tried as often: what is under way while it goes through its steps
is the danger. `--stops` says how many there are in all.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.durability.conftest import against_kafka, new_broker
from tests.durability.loads import CORES_MAX, LARGE, MANY, MIXED, ONCE, RELAXED, Load, problems_of_log
from tests.durability.readback import problems_of_progress, problems_of_records, read_everything
from tests.durability.workload import Workload
from tests.support.broker_process import TpcBroker

LOADS = {"mixed": MIXED, "large": LARGE, "once": ONCE, "many": MANY, "relaxed": RELAXED}
STOP_SECONDS = 18.0
UNFINISHED = ("could not be finished", "did not drain in time")

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="it pauses and stops processes of ours")]


class Stops:
    """Stops a broker and brings it back. Each kind comes once before any comes again."""

    def __init__(self, broker: TpcBroker, chooser: random.Random) -> None:
        self.broker = broker
        self.chooser = chooser
        self.done: list[str] = []
        self._left: list[Callable[[], None]] = []

    def stop(self) -> None:
        if not self._left:
            self._left = [self.orderly, self.hurried, self.killed, self.paused, self.with_other_cores]
            self.chooser.shuffle(self._left)
        kind = self._left.pop()
        self.done.append(kind.__name__)
        kind()

    def orderly(self) -> None:
        """It has all the time that it needs, so nothing may be left undone."""
        self.broker.stop()
        said = self.broker.process.log_of_this_run()
        assert not [mark for mark in UNFINISHED if mark in said], said[-3000:]
        self.broker.start()

    def hurried(self) -> None:
        """SIGTERM twice: the second one comes at any moment of the drain."""
        self.broker.process.send(signal.SIGTERM)
        time.sleep(self.chooser.uniform(0, 0.2))
        self.broker.stop()
        self.broker.start()

    def killed(self) -> None:
        self.broker.kill()
        self.broker.start()

    def paused(self) -> None:
        processes = self.broker.process.processes()
        for process in processes:
            process.suspend()
        time.sleep(self.chooser.uniform(0.1, 1.5))
        for process in reversed(processes):
            process.resume()

    def with_other_cores(self) -> None:
        self.broker.stop()
        others = [count for count in range(1, CORES_MAX + 1) if count != self.broker.cores_count]
        self.broker.cores_count = self.chooser.choice(others)
        self.broker.start()


def problems_of(bootstrap: str, workload: Workload, load: Load) -> list[str]:
    ledger = workload.ledger
    stored, moment, relaxed = read_everything(bootstrap, ledger.partitions), ledger.moment(), load is RELAXED
    problems = problems_of_records(stored, ledger, moment, everything=not relaxed, relaxed=relaxed)
    return problems + problems_of_progress(bootstrap, ledger, moment)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_stops_of_every_kind_lose_nothing(load, tmp_path, seed, request):
    given = request.config.getoption("--stops")
    stops_count = (given or 50) // len(LOADS)
    end_at = time.monotonic() + (1e9 if given else STOP_SECONDS)
    chooser = random.Random(seed)
    broker = new_broker(tmp_path, 2, load.settings)
    broker.cores_count_max = CORES_MAX
    broker.start()
    bootstrap = ",".join(f"{broker.host}:{broker.ports[0] + core}" for core in range(CORES_MAX))
    workload = Workload(
        bootstrap, load.topics, producers_count=4, records_per_second=load.records_per_second, seed=seed,
        config=load.config, is_rationed=True,
    )  # fmt: skip
    stops = Stops(broker, chooser)
    try:
        workload.start()
        for _ in range(stops_count):
            if time.monotonic() > end_at:
                break
            workload.allow(load.bytes_max // stops_count)
            workload.run_for(chooser.uniform(0.3, 1.0))
            stops.stop()
        workload.run_for(0.5)
        workload.finish()
        problems = problems_of(bootstrap, workload, load)
        broker.restart()
        problems += problems_of(bootstrap, workload, load) + problems_of_log(broker.log_text())
        assert not problems, "\n".join([f"seed {seed}", *problems[:20], *stops.done])
        print(f"{len(stops.done)} stops; truncations that only the client saw: {workload.reader.false_truncations}")
        assert workload.ledger.acknowledged_count() > len(stops.done) * load.acknowledged_per_end
    finally:
        workload.abandon()
        broker.kill()
