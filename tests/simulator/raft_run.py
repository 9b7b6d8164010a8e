"""Raft under fire: a schedule of faults, requests and changes from a seed, then peace; invariants after each event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.simulator.raft_cluster import Cluster
from tests.simulator.schedule import Schedule, SimulationFailedError, Step, failure_of, shrink
from tests.simulator.world import MS, SECOND, World

SHRINK_RUNS_MAX = 120


@dataclass(frozen=True)
class Shape:
    """How large a run is, and what may happen in it."""

    nodes_count: int
    cores_count: int
    groups_count: int
    replicas_count: int
    loses_disks: bool
    changes_voters: bool
    often: tuple[str, ...] = ()
    """Steps that come ten times as often as they would."""
    mean_ms: int = 0
    """Between two steps; 0: one of several."""
    refuses: bool = False
    """Who was connected to a core that crashes finds that nobody listens there."""
    names_first: bool = False
    """The first leader of each group is named by what makes it."""
    cleans: bool = False
    """Replicas' files are compacted, each for itself, now and then."""


def shape_of(random: Random) -> Shape:
    """Small clusters mostly: what goes wrong goes wrong with three nodes, two terms and a crash."""
    nodes_count = random.choice([3, 3, 3, 4, 5])
    changes_voters = random.random() < 0.5
    return Shape(
        nodes_count,
        random.choice([1, 1, 2]),
        random.choice([1, 1, 2, 3]),
        random.choice([1, 2, 3, 3]) if changes_voters else 3,
        loses_disks=random.random() < 0.3,
        changes_voters=changes_voters,
    )


def plan(
    seed: int, steps: int, wanted: Shape | None = None, *, refuses: bool = True, cleans: bool = True
) -> tuple[Shape, Schedule]:
    """What happens when. Runs are dense or sparse: races need the one, time-outs the other. `refuses`, `cleans`: it may
    be so.
    """
    random = World(seed).stream("schedule")
    shape = wanted or shape_of(random)
    if wanted is None and refuses:
        shape = replace(shape, refuses=World(seed).stream("refuses").random() < 0.5)
    if wanted is None:
        shape = replace(shape, names_first=World(seed).stream("names").random() < 0.5)
    if wanted is None and cleans:
        shape = replace(shape, cleans=World(seed).stream("cleans").random() < 0.5)
    mean_us = (shape.mean_ms or random.choice([20, 100, 400])) * MS
    at_us, schedule = (0 if shape.names_first else SECOND), []  # what goes wrong there is in the first moments
    for _number in range(steps):
        at_us += int(random.expovariate(1) * mean_us)
        name, arguments = _draw(random, shape)
        schedule.append(Step(at_us, name, arguments))
    return shape, _with_cleanings(World(seed).stream("cleanings"), shape, schedule) if shape.cleans else schedule


def _with_cleanings(random: Random, shape: Shape, schedule: Schedule) -> Schedule:
    """Behind a third of its steps, so that what happens else is the same without."""
    found = []
    for step in schedule:
        found.append(step)
        if random.random() < 1 / 3:
            place = random.randrange(shape.groups_count), random.randrange(shape.nodes_count)
            found.append(Step(step.at_us, "clean", place))
    return found


def _draw(random: Random, shape: Shape) -> tuple[str, tuple[object, ...]]:
    group = random.randrange(shape.groups_count)
    node, core = random.randrange(shape.nodes_count), random.randrange(shape.cores_count)
    other = (node + 1 + random.randrange(shape.nodes_count - 1)) % shape.nodes_count
    down_ms = random.choice([1, 50, 700, 700, 3000])
    for_ms = random.choice([20, 300, 1500, 4000])
    table: list[tuple[int, str, tuple[object, ...]]] = [
        (20, "produce_at_leaders", (group, random.choice([1, 1, 3, 20]))),
        (6, "produce", (group, node, 1)),
        (8, "read", (group,)),
        (5, "crash_core", (node, core, down_ms)),
        (2, "crash_node", (node, down_ms)),
        (1, "crash_all", (down_ms,)),
        (3, "pause", (node, core, for_ms)),
        (4, "cut", (node, other, for_ms, random.random() < 0.5)),
        (2, "isolate", (node, for_ms)),
        (3, "bad_network", (*(random.choice(some) for some in ((0.0, 0.05, 0.3), (0.0, 0.2), (0.0, 0.3))), for_ms)),
        (3, "slow_disk", (node, core, random.choice([50, 1000, 7000]))),
        (3, "fail_disk", (node, core)),
        (4, "checkpoint", (node, core, random.random() < 0.5)),
        (2, "transfer", (group, node)),
        (2, "retain", (group, node)),
    ]
    if shape.loses_disks:
        table.append((1, "lose_disk", (group, node)))
    if shape.changes_voters:
        smallest = 3 if shape.loses_disks else 1
        size = random.randint(min(smallest, shape.nodes_count), min(shape.nodes_count, 4))
        target = tuple(sorted(random.sample(range(shape.nodes_count), size)))
        table += [(5, "change_voters", (group, target)), (1, "abort_change", (group,))]
    weights = [weight * (10 if name in shape.often else 1) for weight, name, _arguments in table]
    chosen = random.choices(table, weights=weights)[0]
    return chosen[1], chosen[2]


def execute(seed: int, shape: Shape, schedule: Schedule) -> Cluster:
    """Runs a schedule, then the liveness phase. Raises what does not hold."""
    sizes = (shape.nodes_count, shape.cores_count, shape.groups_count, shape.replicas_count)
    cluster = Cluster(seed, *sizes, refuses=shape.refuses, names_first=shape.names_first)
    for step in schedule:
        action: Callable[..., None] = getattr(cluster, step.name)
        cluster.world.call_at(step.at_us, lambda action=action, step=step: action(*step.arguments))
    cluster.world.run_until(schedule[-1].at_us + SECOND if schedule else SECOND)
    cluster.must_recover()
    return cluster


def run(seed: int, steps: int, *, refuses: bool = True, cleans: bool = True) -> str:
    """One run; SimulationFailedError with a shrunken schedule."""
    shape, schedule = plan(seed, steps, refuses=refuses, cleans=cleans)
    try:
        cluster = execute(seed, shape, schedule)
    except AssertionError as error:
        kind = str(error).partition(" ")[0]
        shortest = shrink(
            schedule, lambda some: (failure_of(execute, seed, shape, some) or "").startswith(kind), SHRINK_RUNS_MAX
        )
        what = f"{failure_of(execute, seed, shape, shortest) or error}\n  with {shape}"
        raise SimulationFailedError(what, f"make sim ONLY=raft SEED={seed} STEPS={steps}", shortest) from error
    oracle = cluster.oracle
    return (
        f"{shape.nodes_count} nodes, {shape.groups_count} groups, {cluster.world.events_count} events, "
        f"{oracle.elections} leaderships, {oracle.acks} acknowledged, {oracle.reads} reads"
    )
