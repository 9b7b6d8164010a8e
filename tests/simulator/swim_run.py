"""Membership under fire: random faults by seed, invariants after each event, agreement when the faults are over.

Half of the seeds only lose, double and delay datagrams, and crash and restart nodes: there nobody may be buried who was
up all the time. The others also pause nodes, cut links in one direction or both, and let clocks run apart; there it
must come right afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.simulator.network import Faults
from tests.simulator.schedule import Schedule, SimulationFailedError, Step, shrink
from tests.simulator.swim_cluster import InvariantError, Seen, SwimCluster
from tests.simulator.world import MS, SECOND, World
from tpc_broker.model import NodeId
from tpc_broker.swim.lifeguard import suspicion_timeout_ms
from tpc_broker.swim.model import Change, Settings

SEEDS_COUNT = 3
"""The first nodes are everybody's seeds, and run at the end."""
AGREEMENT_MS_MAX = 300_000
QUIET_MS = 30_000
RETENTION_MS = 60_000
"""Of the dead, where it is short enough that a run waits for its end."""
LONGEST_PERIOD_MS = 12_000
SHRINK_RUNS_MAX = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed means."""

    nodes_count: int
    is_hostile: bool
    faults: Faults
    settings: Settings
    schedule: tuple[Step, ...]


def plan_of(seed: int, steps: int) -> Plan:
    """Drawn before anything runs, so that a schedule can be shortened without changing the rest."""
    chance = World(seed).stream("plan")
    nodes_count, is_hostile = chance.randint(SEEDS_COUNT, 9), chance.random() < 0.5
    loss = chance.choice((0.0, 0.01, 0.05)) if not is_hostile else chance.choice((0.0, 0.05, 0.3))
    duplicate, late = chance.choice((0.0, 0.05)), chance.choice((0.0, 0.05))
    faults = Faults(loss=loss, duplicate=duplicate, late=late, late_us_max=200 * MS)
    settings = Settings(dead_retention_ms=chance.choice((RETENTION_MS, 24 * 3_600_000)))
    names = ["crash", "start", "start", "inform", "leave"]
    if is_hostile:
        names += ["pause", "resume", "resume", "part", "cut", "heal", "heal", "lose"]
    schedule: Schedule = []
    at_us = 10 * SECOND
    for _number in range(steps):
        at_us += int(chance.expovariate(1 / (3 * SECOND)))
        name, first, second = chance.choice(names), chance.randrange(nodes_count), chance.randrange(nodes_count)
        match name:
            case "part":
                half = tuple(node for node in range(nodes_count) if chance.random() < 0.5)
                schedule.append(Step(at_us, name, half))
            case "cut":
                schedule.append(Step(at_us, name, (first, second)))
            case "heal":
                schedule.append(Step(at_us, name))
            case "lose":
                schedule.append(Step(at_us, name, (chance.choice((0.0, 0.1, 0.5)),)))
            case _:
                schedule.append(Step(at_us, name, (first,)))
    return Plan(nodes_count, is_hostile, faults, settings, tuple(schedule))


class SwimRun:
    """One run of a plan, or of a part of its schedule."""

    def __init__(self, seed: int, plan: Plan, schedule: Sequence[Step]) -> None:
        self.plan, self.schedule = plan, schedule
        self.cluster = SwimCluster(seed, settings=plan.settings, faults=plan.faults, is_encoded=True, is_strict=True)
        self.cluster.on_seen = self._on_seen
        drifts = self.cluster.world.stream("drift")
        for node in range(plan.nodes_count):
            self.cluster.add(node, drift_ppm=drifts.randint(-5_000, 5_000) if plan.is_hostile else 0)
        self.nodes = [self.cluster.nodes[NodeId(node)] for node in range(plan.nodes_count)]
        self.seeds = [node.address for node in self.nodes[:SEEDS_COUNT]]
        longest_ms = suspicion_timeout_ms(plan.settings, plan.nodes_count, 0)
        self.memory_us = 2 * longest_ms * MS + 30 * SECOND
        """So long after it was down a node may still be buried for it."""

    def run(self) -> str:
        """Raises InvariantError, or tells what happened."""
        cluster = self.cluster
        for node in self.nodes:
            node.start(self.seeds)
        for step in self.schedule:
            cluster.world.call_at(step.at_us, lambda step=step: getattr(self, step.name)(*step.arguments))
        cluster.world.run_until(self.schedule[-1].at_us + 10 * SECOND if self.schedule else 10 * SECOND)
        cluster.network.heal()
        cluster.set_faults(loss=0.0)
        for number, node in enumerate(self.nodes):
            self.resume(number)
            if number < SEEDS_COUNT:
                self.start(number)
            node.life.down_until_us = cluster.world.now_us
        agreed_ms = cluster.wait_agreement(AGREEMENT_MS_MAX)
        cluster.run_for(LONGEST_PERIOD_MS)  # probes that were begun before may still fail
        cluster.wait_agreement(AGREEMENT_MS_MAX)
        quiet_us = cluster.world.now_us
        is_waited_for = self.plan.settings.dead_retention_ms == RETENTION_MS
        cluster.run_for(RETENTION_MS + 2 * self.plan.settings.period_ms if is_waited_for else QUIET_MS)
        remembered = cluster.remembered() if is_waited_for else []
        if remembered:
            raise InvariantError(f"not forgotten in {RETENTION_MS} ms since all were gone: {'; '.join(remembered[:4])}")
        noises = [seen for seen in cluster.seen if seen.at_us >= quiet_us and seen.event.change is not Change.FORGOTTEN]
        if noises:
            raise InvariantError(f"{len(noises)} changes though nothing happened, first {noises[0]}")
        kind, steps = "hostile" if self.plan.is_hostile else "lossy", len(self.schedule)
        return (
            f"{self.plan.nodes_count} nodes, {kind}, {steps} steps, {cluster.world.events_count} events, "
            f"{len(cluster.seen)} changes told, agreed after {agreed_ms} ms"
        )

    def _on_seen(self, seen: Seen) -> None:
        node, change = self.cluster.nodes[seen.event.node], seen.event.change
        if change is Change.FORGOTTEN:
            self.cluster.nodes[seen.observer]._ranks.pop(seen.event.node, None)
        if change is Change.CONFLICT:
            raise InvariantError(f"node {seen.observer} says that its id is used twice")
        if change is Change.DIED and not self.plan.is_hostile and node.life.down_since_us is None:
            up_us = seen.at_us - node.life.down_until_us
            if up_us > self.memory_us:
                raise InvariantError(f"node {seen.observer} buried {seen.event.node}, up for {up_us // MS} ms")

    # The steps of a schedule; those that make no sense now do nothing.

    def crash(self, number: int) -> None:
        if self.nodes[number].process.is_running:
            self.nodes[number].stop()

    def start(self, number: int) -> None:
        node = self.nodes[number]
        if node.process.is_running and node.machine.has_left:
            node.stop()
        if not node.process.is_running:
            node.start(self.seeds)

    def leave(self, number: int) -> None:
        node = self.nodes[number]
        if node.process.is_running:
            node.process.perform(lambda: (node.machine.leave(node.clock.now_ms()), node._serve()))
            node.life.down_since_us = self.cluster.world.now_us

    def inform(self, number: int) -> None:
        node = self.nodes[number]
        if node.process.is_running:
            load = self.cluster.world.now_us % 1_000
            info = replace(node.machine.info, load_permille=load)
            node.process.perform(lambda: (node.machine.update_info(info, node.clock.now_ms()), node._serve()))

    def pause(self, number: int) -> None:
        if self.nodes[number].process.is_running:
            self.nodes[number].process.pause()

    def resume(self, number: int) -> None:
        if self.nodes[number].process.is_paused:
            self.nodes[number].process.resume()

    def part(self, *half: int) -> None:
        one = [node.address for node in self.nodes if node.node in half]
        self.cluster.network.partition(one, [node.address for node in self.nodes if node.node not in half])

    def cut(self, source: int, target: int) -> None:
        self.cluster.network.block(self.nodes[source].address, self.nodes[target].address)

    def heal(self) -> None:
        self.cluster.network.heal()

    def lose(self, loss: float) -> None:
        self.cluster.set_faults(loss=loss)


def run(seed: int, steps: int) -> str:
    """One seed. SimulationFailedError says how to repeat it, with the shortest schedule that fails in the same way."""
    plan = plan_of(seed, steps)
    try:
        return SwimRun(seed, plan, plan.schedule).run()
    except InvariantError as error:
        what = str(error)
    print(f"swim seed {seed}: {what}; looking for a shorter schedule", flush=True)

    def fails(schedule: Schedule) -> bool:
        try:
            SwimRun(seed, plan, schedule).run()
        except InvariantError:
            return True
        return False

    schedule = shrink(plan.schedule, fails, SHRINK_RUNS_MAX)
    raise SimulationFailedError(what, f"make sim ONLY=swim SEED={seed} STEPS={steps}", schedule)
