"""Stops, pauses and kills in the midst of swaps: each key keeps its newest value, and a reader never notices."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.durability.conftest import against_kafka
from tests.durability.loads import problems_of_log
from tests.durability.newest_values import (
    COMPACTED,
    SETTINGS,
    NewestValues,
    Reading,
    Writing,
    check,
    cleaned_names,
    cleanings,
    wait_cleaning,
)
from tests.support.broker_process import TpcBroker, run_command
from tests.support.waiting import eventually, let_pass

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="it stops and kills processes of ours"),
]

STOPS, PAUSES_OF_EACH = 20, 4
TOPIC, PARTITIONS, KEYS = "kept", 3, 9_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path, 2, SETTINGS)
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("seed", [1])
def test_an_orderly_stop_in_the_midst_of_swaps(broker: TpcBroker, seed: int) -> None:
    broker.stop()
    broker.overrides = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": str(3 << 20)}  # a job takes seconds
    broker.start()
    chooser, in_midst = random.Random(seed), 0
    values = NewestValues(TOPIC, PARTITIONS, KEYS, seed)
    values.create(broker.bootstrap, COMPACTED)
    writing = Writing(broker.bootstrap, values)
    try:
        for _round in range(STOPS):
            wait_cleaning(broker, values)
            let_pass(chooser.choice([0, 0.01, 0.05, 0.2, 0.5]))
            broker.stop()
            left = cleaned_names(broker, values)
            in_midst += bool(left) or "came to nothing" in broker.process.log_of_this_run()
            done = run_command("scrub", "--rate", "2G", "--data", str(broker.data_folder))
            assert done.returncode == 0, done.stdout + done.stderr
            broker.start()
            assert not left & cleaned_names(broker, values)
            check(broker.bootstrap, values)
            writing.check()
        writing.finish()
        check(broker.bootstrap, values)
    finally:
        writing.ends.set()
    print(f"{in_midst} of {STOPS} stops were in the midst; {values.acknowledged_count} records")
    assert in_midst
    assert values.acknowledged_count > 100 * STOPS
    assert problems_of_log(broker.log_text()) == []


class Disturbances:
    """Of the processes that take part in a swap."""

    def __init__(self, broker: TpcBroker, seed: int) -> None:
        self._broker, self._random = broker, random.Random(seed)

    def order(self) -> list[Callable[[], None]]:
        kinds = [self.pause_core, self.pause_cleaner, self.pause_both, self.kill_cleaner] * PAUSES_OF_EACH
        self._random.shuffle(kinds)
        return kinds

    def _core(self) -> list[psutil.Process]:
        return [self._random.choice(self._broker.core_processes())]

    def pause_core(self) -> None:
        self._pause(self._core())

    def pause_cleaner(self) -> None:
        self._pause(self._broker.cleaner_processes())

    def pause_both(self) -> None:
        self._pause(self._core() + self._broker.cleaner_processes())

    def _pause(self, processes: list[psutil.Process]) -> None:
        with contextlib.ExitStack() as paused:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
                    paused.enter_context(contextlib.suppress(psutil.NoSuchProcess))
                    paused.callback(process.resume)
            let_pass(self._random.uniform(0.5, 3.0))

    def kill_cleaner(self) -> None:
        for process in self._broker.cleaner_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.parametrize("seed", [1])
def test_pauses_and_kills_of_cores_and_cleaners_in_the_midst_of_swaps(broker: TpcBroker, seed: int) -> None:
    values = NewestValues(TOPIC, PARTITIONS, KEYS, seed)
    values.create(broker.bootstrap, {**COMPACTED, "delete.retention.ms": "3600000"})  # the reader is slower than 0
    writing, reading = Writing(broker.bootstrap, values), Reading(broker.bootstrap, values)
    try:
        for disturb in Disturbances(broker, seed).order():
            wait_cleaning(broker, values)
            disturb()
            writing.check()
            reading.check()
        done = cleanings(broker)
        eventually(lambda: cleanings(broker) > done, "it cleans as before")
        writing.finish()
        reading.finish()
    finally:
        writing.ends.set()
        reading.ends.set()
    check(broker.bootstrap, values)
    assert [core["cleaning"]["uncleanable_now"] for core in broker.counters()] == [0, 0]
    print(f"{reading.passes} passes; {values.acknowledged_count} records")
    broker.restart()
    check(broker.bootstrap, values)
    assert problems_of_log(broker.log_text()) == []
