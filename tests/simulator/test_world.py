"""The ground under the simulators: time, processes, the network, and the shortening of schedules."""

from __future__ import annotations

from itertools import islice

import pytest

import tests.simulator.__main__ as simulator_main
from tests.simulator.__main__ import FIXED_SEEDS, Planned, Progress, fresh_seeds, main, planned, run_all, spacing
from tests.simulator.network import Faults, Network
from tests.simulator.schedule import SimulationFailedError, Step, shrink
from tests.simulator.world import MS, SECOND, Clock, Process, World


def transcript(seed: int) -> list[tuple[int, object, object]]:
    world = World(seed)
    network = Network(world, Faults(loss=0.2, duplicate=0.2, late=0.3))
    got = []
    for name in "abc":
        network.attach(name, lambda source, message: got.append((world.now_us, source, message)))
    for number in range(100):
        world.call_at(number * MS, lambda n=number: network.send("abc"[n % 3], "abc"[(n + 1) % 3], n))
    world.run_until(SECOND)
    return got


def test_a_seed_gives_the_same_events_and_another_seed_others():
    assert transcript(7) == transcript(7)
    assert transcript(7) != transcript(8)


def test_events_of_one_instant_happen_in_the_order_of_planning():
    world, order = World(0), []
    for number in range(5):
        world.call_at(10, lambda n=number: order.append(n))
    world.call_at(5, lambda: world.call_at(1, lambda: order.append("late")))
    world.call_at(10, lambda: order.append("never")).cancel()
    world.run_until(10)
    assert order == ["late"]
    assert world.now_us == 10
    world.run_until(11)
    assert order == ["late", 0, 1, 2, 3, 4]


def test_streams_do_not_disturb_each_other():
    first, second = World(3), World(3)
    first.stream("faults").random()
    assert first.stream("network").random() == second.stream("network").random()
    assert first.stream("network").random() != first.stream("faults").random()


@pytest.mark.parametrize("drift_ppm", [0, 100, -100, 50_000, -50_000])
def test_a_clock_is_never_asked_too_early_nor_a_step_too_late(drift_ppm):
    world = World(0)
    world.call_at(12_345, lambda: None)
    world.step()
    clock = Clock(world, start_ms=1_000, drift_ppm=drift_ppm)
    for shown_ms in (1_000, 1_001, 1_500, 3_000, 100_000):
        instant = clock.instant_us(shown_ms)
        world.now_us = instant
        assert clock.now_ms() >= shown_ms
        world.now_us = instant - 1
        assert clock.now_ms() < shown_ms or instant == 12_345


def test_a_paused_process_does_everything_later_and_a_crashed_one_nothing():
    world, done = World(0), []
    process = Process(world)
    process.call_at(10, lambda: done.append("planned in the first life"))
    process.pause()
    process.perform(lambda: done.append("one"))
    process.perform(lambda: done.append("two"))
    assert done == []
    process.resume()
    assert done == ["one", "two"]
    process.crash()
    process.start()
    process.call_at(20, lambda: done.append("second life"))
    world.run_until(100)
    assert done == ["one", "two", "second life"]


def test_a_link_fails_one_way_and_heals():
    world = World(0)
    network, got = Network(world), []
    for name in "ab":
        network.attach(name, lambda source, message: got.append(message))
    network.partition("a", "b", one_way=True)
    network.send("a", "b", "there")
    network.send("b", "a", "back")
    world.run_for(SECOND)
    assert got == ["back"]
    network.heal()
    network.send("a", "b", "again")
    network.detach("b")
    network.send("a", "b", "nobody")
    network.attach("b", lambda source, message: got.append(message))
    world.run_for(SECOND)
    assert got[1:] == ["again", "nobody"]
    assert network.traffic.blocked == 1


def test_ordered_messages_do_not_overtake():
    world = World(1)
    network, got = Network(world, Faults(late=0.5)), {True: [], False: []}
    network.attach("b", lambda source, message: got[message[0]].append(message[1]))
    for number in range(200):
        for ordered in (True, False):
            network.send("a", "b", (ordered, number), ordered=ordered)
    world.run_for(SECOND)
    assert got[True] == sorted(got[True])
    assert got[False] != sorted(got[False])
    assert len(got[True]) == len(got[False]) == 200


def test_a_schedule_is_shortened_to_what_matters():
    schedule = [Step(number, "fault", (number,)) for number in range(100)]
    asked = []

    def fails(steps):
        asked.append(len(steps))
        present = {step.at_us for step in steps}
        return {13, 14, 77} <= present

    assert [step.at_us for step in shrink(schedule, fails)] == [13, 14, 77]
    assert len(asked) < 100
    assert len(shrink(schedule, fails, runs_max=20)) < 100
    assert shrink(schedule, lambda steps: True) == []
    assert "repeat: make sim" in str(SimulationFailedError("lost", "make sim SEED=1", schedule[:2]))


def test_the_runner_stops_at_a_failure_and_says_how_to_repeat_it(capsys):
    def run(seed, steps):
        if seed == 3:
            raise SimulationFailedError("two leaders", f"make sim SEED={seed} STEPS={steps}")
        return "quiet"

    wanted = planned(["one"], range(1, 6))
    done = run_all({"one": run}, wanted, 10)
    assert (done.count, len(done.failures)) == (3, 1)
    assert "one seed 3: FAILED\ntwo leaders\nrepeat: make sim SEED=3 STEPS=10" in capsys.readouterr().out
    done = run_all({"one": run}, wanted, 10, go_on=True)
    assert (done.count, len(done.failures)) == (5, 1)


def test_the_runner_names_the_seed_of_an_unexpected_exception_too(capsys):
    def run(seed, steps):
        return str(1 // (seed - 2))

    done = run_all({"one": run}, planned(["one"], range(1, 4)), 10, go_on=True)
    assert (done.count, len(done.failures)) == (3, 1)
    told = capsys.readouterr().out
    assert "ZeroDivisionError" in told
    assert "repeat: make sim ONLY=one SEED=2 STEPS=10" in told


def test_a_run_that_takes_long_is_not_silent(capsys):
    told = []

    def run(seed, _steps):
        while not told:
            told.extend(line for line in capsys.readouterr().out.splitlines() if "under way" in line)
        return "over"

    progress = Progress(wanted=3)
    with progress.not_silent(0.02):
        progress.begins(Planned("slow", 7))
        progress.ended(run(7, 10))
    assert told[0] == "0 of 3 runs, 0 failed; slow seed 7 is under way"
    assert capsys.readouterr().out.endswith("slow seed 7: over\n")


@pytest.fixture
def two_simulators(monkeypatch):
    """In place of those that there are; what they are asked for."""
    asked = []
    runs = {name: lambda seed, _steps, name=name: asked.append((name, seed)) or "quiet" for name in ("short", "long")}
    monkeypatch.setattr(
        simulator_main, "simulators", lambda only=None: {only: runs[only]} if only is not None else runs
    )
    monkeypatch.setattr(simulator_main, "spacing", lambda: {"long": 4})
    return asked


def test_all_fixed_seeds_run_and_as_many_fresh_ones_as_are_asked_for(two_simulators, capsys):
    assert main(["--runs", "9"]) == 0
    short, long = ([seed for name, seed in two_simulators if name == wanted] for wanted in ("short", "long"))
    assert short[:10] == [*FIXED_SEEDS]
    assert len(set(short)) == 19
    assert long == [1, 5, 9, short[10], short[14], short[18]], "one of four, of the fixed ones and of the fresh ones"
    assert "25 of 25 runs in " in capsys.readouterr().out
    two_simulators.clear()
    assert main(["--only", "long", "--runs", "2"]) == 0
    assert len(two_simulators) == 12, "who asks for one has it with every seed"


def test_a_run_that_does_less_than_was_asked_for_fails(two_simulators, capsys):
    """Also where it was bounded by hours: they bound the night, not the proof."""
    assert main(["--runs", "9", "--hours", "1"]) == 0
    assert "25 of 25 runs in " in capsys.readouterr().out
    two_simulators.clear()
    assert main(["--runs", "9", "--hours", "1e-12"]) == 1
    assert len(two_simulators) < 25
    assert f"{len(two_simulators)} of 25 runs in " in capsys.readouterr().out


def test_a_simulator_that_does_not_exist_is_named(capsys):
    assert main(["--only", "nothing", "--seed", "1"]) == 2
    assert "there is no simulator 'nothing'" in capsys.readouterr().out


def test_fresh_seeds_of_a_text_are_always_the_same():
    assert list(islice(fresh_seeds("a commit"), 5)) == list(islice(fresh_seeds("a commit"), 5))
    assert list(islice(fresh_seeds("a commit"), 5)) != list(islice(fresh_seeds("another"), 5))
    assert list(islice(fresh_seeds(), 5)) != list(islice(fresh_seeds(), 5))


def test_a_simulator_whose_runs_take_long_has_a_part_of_the_seeds():
    plan = planned(["short", "long"], range(1, 6), {"long": 3})
    assert [seed for name, seed in plan if name == "long"] == [1, 4]
    assert [seed for name, seed in plan if name == "short"] == [1, 2, 3, 4, 5]
    assert spacing().keys() == {"consumers", "nodes", "transfers"}
