"""Whole nodes under fire: faults and requests from a seed, then peace; what must always hold, and what holds then.

The nodes are real but for their surroundings (`nodes_cluster`): founding, the metadata group, placement, the driver of
replicas, links, membership, coordinators, and every request's handler.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import trio

from tests.simulator.nodes_clients import Admin, Consumer, Producer
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_core import may_have_cores
from tests.simulator.nodes_groups import GROUPS, Committer, Groups, Looker
from tests.simulator.nodes_large import PADDING_BYTES, small_bounds
from tests.simulator.nodes_oracle import Oracle
from tests.simulator.schedule import Schedule, SimulationFailedError, Step, failure_of, shrink
from tests.simulator.world import MS, SECOND, World

EVERY = 5
"""It is run with every so many of the fixed seeds, and of the fresh ones: a run takes some seconds."""
SHRINK_RUNS_MAX = 25
READY_S = 60.0
PARTITIONS = 3
FACTOR = 3
DRAINED_S = 60.0
"""A node that still has replicas then stays."""
PRODUCERS = 2
"""Of each partition: what one sends again finds its place taken, where something was lost."""
TOPICS = ("t0", "t1")
MEMBERS = sum(GROUPS.values())
REPEATS = 0.1
"""So often a producer sends again what was acknowledged."""
LOOKS_AT_END = 0.2
"""So often a consumer asks where its partition ends."""
LARGE_RATE = 0.3
"""So often a run has large batches."""
QUIET_S = 1.0
FINISH_S = 90.0


@dataclass(frozen=True)
class Shape:
    """How large a run is. `founders_count` nodes begin; the others join soon."""

    nodes_count: int
    founders_count: int
    mean_ms: int
    """Between two steps."""
    sync_ms: int
    """A sync takes so long at most."""
    often: tuple[str, ...] = ()
    """Steps that come ten times as often as they would."""
    cores_max: int = 1
    """Each node begins with so many at most, and is started again with others."""
    is_large: bool = False
    """With batches that are written in place, and segments that are full soon."""


def shape_of(random: Random) -> Shape:
    nodes_count = random.choice([3, 3, 3, 4, 5])
    mean_ms, sync_ms, cores_max = random.choice([100, 300, 600]), random.choice([5, 5, 60]), random.choice([1, 2, 3])
    return Shape(nodes_count, 3, mean_ms, sync_ms, cores_max=cores_max)


def plan(seed: int, steps: int, wanted: Shape | None = None) -> tuple[Shape, Schedule]:
    """What happens when. Disks run full only where no shape is wanted."""
    random = World(seed).stream("schedule")
    shape = wanted or replace(shape_of(random), is_large=World(seed).stream("large").random() < LARGE_RATE)
    at_us, schedule = 0, []
    for _number in range(steps):
        at_us += int(random.expovariate(1) * shape.mean_ms * MS)
        schedule.append(Step(at_us, *_draw(random, shape)))
    if wanted is None:
        schedule += _full_disks(World(seed).stream("full disks"), shape, at_us)
    return shape, sorted(schedule, key=lambda step: step.at_us)


def _full_disks(random: Random, shape: Shape, upto_us: int) -> Schedule:
    """For longer than most faults last: a leader waits for some seconds before it goes."""
    return [
        Step(random.randrange(upto_us + 1), "fill_disk",
             (random.randint(1, shape.nodes_count), random.choice([1_000, 6_000, 20_000])))
        for _number in range(random.choice([0, 1, 2, 3]))
    ]  # fmt: skip


def _draw(random: Random, shape: Shape) -> tuple[str, tuple[object, ...]]:
    node = random.randint(1, shape.nodes_count)
    other = (node + random.randrange(1, shape.nodes_count) - 1) % shape.nodes_count + 1
    core, broker = random.randrange(shape.cores_max), node * 1024 + random.randrange(shape.cores_max)
    down_ms, for_ms = random.choice([50, 700, 3000]), random.choice([20, 300, 1500, 4000])
    topic, index = random.choice(TOPICS), random.randrange(PARTITIONS)
    placed = tuple(random.sample(range(1, shape.nodes_count + 1), 3))
    table: list[tuple[int, str, tuple[object, ...]]] = [
        (6, "crash", (node, down_ms, random.random() < 0.5)),
        (2, "crash_all", (down_ms, node, random.choice([0, 4000]))),
        (4, "pause", (node, for_ms)),
        (4, "cut", (node, other, for_ms, random.random() < 0.5)),
        (3, "isolate", (node, for_ms)),
        (3, "bad_network", (random.choice([0.0, 0.05, 0.3]), random.choice([0.0, 0.2]), random.choice([2, 50, 200]),
                            for_ms)),
        (3, "slow_disk", (node, random.choice([20, 200]), for_ms)),
        (2, "stick_disk", (node, for_ms)),
        (2, "fail_journal", (node, core, for_ms)),
        (1, "set_clock", (node, random.choice([-3_600_000, 3_600_000]))),
        (3, "reassign", (topic, index, placed)),
        (1, "create_topic", (f"more{random.randrange(3)}",)),
        (4, "silence", (random.randrange(MEMBERS), random.choice([700, 3000, 12_000]), random.random() < 0.5)),
        (1, "die", (random.randrange(MEMBERS),)),
        (2, "depart", (random.randrange(MEMBERS), random.choice([300, 3000]))),
    ]  # fmt: skip
    if shape.cores_max > 1:
        table += [
            (6, "move", (topic, index, broker)),
            (1, "cancel", (topic, index)),
            (6, "kill_core", (node, core, down_ms)),
            (2, "change_cores", (node, random.randint(1, shape.cores_max), down_ms)),
        ]
    if shape.is_large:
        table.append((4, "fail_in_place", (node, for_ms)))
    if shape.nodes_count > FACTOR:  # the others can hold all
        table.append((3, "leave", (node, random.random() < 0.7, down_ms)))
    weights = [weight * (10 if name in shape.often else 1) for weight, name, _arguments in table]
    chosen = random.choices(table, weights=weights)[0]
    return chosen[1], chosen[2]


class Story:
    """One run."""

    def __init__(self, cluster, shape, schedule):
        self.cluster, self.shape, self.schedule = cluster, shape, schedule
        self.oracle = Oracle(cluster)
        self.groups = self.make_groups()
        self.is_over = False
        self.left: list[int] = []
        """Nodes that have left for good; new ones came in their place."""
        self._busy = self._admins = 0
        self._is_leaving, self._has_lost = False, False

    def make_groups(self):
        return Groups(self.cluster, TOPICS[1], PARTITIONS)

    async def run(self):
        cluster, nursery = self.cluster, self.cluster.nursery
        for node in cluster.nodes.values():
            self._mend_disk(node.disk)
            nursery.start_soon(node.start)
        await self._until(
            lambda: len(cluster.ready()) == len(cluster.nodes), READY_S, "the nodes did not found a cluster"
        )
        nursery.start_soon(self.oracle.run)
        admin = Admin(cluster, "admin")
        for name in TOPICS:
            await admin.create_topic(name, PARTITIONS)
        self._begin_clients()
        began_s = trio.current_time() + QUIET_S
        for step in self.schedule:
            await trio.sleep_until(began_s + step.at_us / SECOND)
            getattr(self, step.name)(*step.arguments)
        await trio.sleep(QUIET_S)
        await self._make_peace()
        await self.oracle.must_settle()

    async def _until(self, condition, seconds, otherwise):
        with trio.move_on_after(seconds):
            while not condition():
                await trio.sleep(0.1)
            return
        self.cluster.fails(otherwise)
        await trio.sleep_forever()

    async def _make_peace(self):
        """Everything works again, and whoever has asked is answered."""
        cluster = self.cluster
        cluster.network.heal()
        for node in cluster.nodes.values():
            node.resume()
            self._mend_disk(node.disk)
            node.disk.is_full = False
            node.disk.mend_journals()
        await self._until(
            lambda: all(len(node.lives) == node.cores or node.is_away for node in cluster.nodes.values()),
            READY_S,
            "not restarted",
        )
        await trio.sleep(QUIET_S)
        self.is_over = True
        await self._until_groups_are_settled()
        self.groups.end()
        await self._until(lambda: not self._busy, FINISH_S, "clients are not answered after everything was healed")

    async def _until_groups_are_settled(self):
        why = "nobody has looked"
        with trio.move_on_after(FINISH_S):
            while why := await self.groups.why_unsettled():
                await trio.sleep(0.5)
            return
        self.cluster.fails(f"{FINISH_S:g} s after everything was healed: {why}")
        await trio.sleep_forever()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _begin_clients(self):
        cluster = self.cluster
        for topic in TOPICS:
            for index in range(PARTITIONS):
                for number in range(PRODUCERS):
                    self._go_on(self._produce, Producer(cluster, f"p{number}-{topic}-{index}", topic, index))
                self._go_on(self._consume, Consumer(cluster, f"c-{topic}-{index}", topic, index))
        for number in range(2):
            self._go_on(self._commit, Committer(cluster, f"g{number}", f"group{number}", TOPICS[0], 0))
            self._go_on(self._look, Looker(cluster, f"l{number}", f"group{number}", TOPICS[0], 0))
        for member in self.groups.members:
            self._go_on(lambda member: member.run(lambda: self.is_over), member)

    def _go_on(self, client_life, client):
        async def run():
            self._busy += 1
            await client_life(client)
            self._busy -= 1

        self.cluster.nursery.start_soon(run)

    async def _produce(self, producer):
        while not self.is_over:
            count = producer.chance.choice([1, 1, 5])
            await producer.send(count, self._padding(producer) // count)
            if producer.chance.random() < REPEATS:
                await producer.repeat()
            await trio.sleep(producer.chance.uniform(0, 0.4))

    def _padding(self, producer):
        return producer.chance.choice(PADDING_BYTES) if self.shape.is_large else 0

    async def _consume(self, consumer):
        while not self.is_over or await consumer.read() is None:
            await consumer.read()
            await consumer.again()
            if consumer.chance.random() < LOOKS_AT_END:
                await consumer.look_at_end()

    async def _commit(self, committer):
        while not self.is_over:
            await committer.commit()
            if committer.chance.random() < 0.3:
                await committer.look()
            await trio.sleep(committer.chance.uniform(0, 0.5))
        while not await committer.look():
            pass

    async def _look(self, looker):
        while not self.is_over:
            await looker.look()
            await trio.sleep(looker.chance.uniform(0, 0.5))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _later(self, for_ms, action):
        self.cluster.wire.after(for_ms / 1000, action)

    def crash(self, number, down_ms, is_silent):
        self.cluster.nursery.start_soon(self._crash, self.cluster.nodes[number], down_ms, is_silent)

    async def _crash(self, node, down_ms, is_silent, cores=None):
        if not node.is_on:
            return
        await node.crash(is_silent=is_silent)
        await trio.sleep(down_ms / 1000)
        if not node.is_on and not node.is_away:
            await node.start(cores)

    def change_cores(self, number, cores, down_ms):
        """It is started again with so many."""
        node = self.cluster.nodes[number]
        if node.is_on and may_have_cores(node, cores):
            self.cluster.nursery.start_soon(self._crash, node, down_ms, False, cores)

    def kill_core(self, number, core, down_ms):
        node = self.cluster.nodes[number]
        if core in node.lives and not node.is_paused:
            self.cluster.nursery.start_soon(self._kill_core, node, core, down_ms)

    async def _kill_core(self, node, core, down_ms):
        await node.kill_core(core)
        await trio.sleep(down_ms / 1000)
        await node.start_core(core)

    def crash_all(self, down_ms, last, longer_ms):
        """At once; one of them is away for longer than the others."""
        for number in self.cluster.nodes:
            self.crash(number, down_ms + longer_ms * (number == last), is_silent=True)

    def pause(self, number, for_ms):
        node = self.cluster.nodes[number]
        if node.is_on and not node.is_paused:
            node.pause()
            self._later(for_ms, node.resume)

    def cut(self, number, other, for_ms, is_one_way):
        one, two = (self.cluster.nodes[each].host for each in (number, other))
        for source, target in ((one, two),) if is_one_way else ((one, two), (two, one)):
            self.cluster.network.block(source, target)
            self._later(for_ms, partial(self.cluster.network.unblock, source, target))

    def isolate(self, number, for_ms):
        for other in self.cluster.nodes:
            if other != number:
                self.cut(number, other, for_ms, is_one_way=False)

    def bad_network(self, loss, doubled, delay_ms, for_ms):
        network = self.cluster.network
        network.loss, network.doubled, network.delay_s_max = loss, doubled, delay_ms / 1000

        def mend():
            network.loss, network.doubled, network.delay_s_max = 0.0, 0.0, 0.002

        self._later(for_ms, mend)

    def slow_disk(self, number, sync_ms, for_ms):
        disk = self.cluster.nodes[number].disk
        disk.sync_s_max = sync_ms / 1000
        self._later(for_ms, partial(self._mend_disk, disk))

    def stick_disk(self, number, for_ms):
        disk = self.cluster.nodes[number].disk
        disk.is_stuck = True
        self._later(for_ms, partial(self._mend_disk, disk))

    def fill_disk(self, number, for_ms):
        """Of its journal it has what it needs, and of segment space none."""
        disk = self.cluster.nodes[number].disk
        disk.is_full = True
        self._later(for_ms, partial(setattr, disk, "is_full", False))

    def fail_journal(self, number, core, for_ms):
        disk = self.cluster.nodes[number].disk
        disk.fail_journal(core)
        self._later(for_ms, disk.mend_journals)

    def fail_in_place(self, number, for_ms):
        disk = self.cluster.nodes[number].disk
        disk.fail_in_place()
        self._later(for_ms, disk.mend_journals)

    def _mend_disk(self, disk):
        disk.sync_s_max, disk.is_stuck = self.shape.sync_ms / 1000, False

    def set_clock(self, number, ahead_ms):
        self.cluster.nodes[number].clock.wall_ahead_ms = ahead_ms

    def reassign(self, topic, index, nodes):
        self._ask(lambda admin: admin.reassign(topic, index, [node * 1024 for node in nodes]))

    def move(self, topic, index, broker):
        self._ask(lambda admin: admin.move(topic, index, broker))

    def cancel(self, topic, index):
        self._ask(lambda admin: admin.reassign(topic, index, None))

    def _ask(self, what):
        self._admins += 1
        self._go_on(what, Admin(self.cluster, f"admin {self._admins}"))

    def leave(self, number, is_drained, down_ms):
        """A node is drained and stopped, or dies; it is removed, and another machine comes under its number. One at a
        time, and of a run one at most dies: what it had is on two others, until a third one has it.
        """
        if self._is_leaving or (self._has_lost and not is_drained):
            return
        self._is_leaving, self._has_lost = True, self._has_lost or not is_drained
        node = self.cluster.nodes[number]
        self._ask(lambda admin: self._leave(admin, node, is_drained, down_ms))

    async def _leave(self, admin, node, is_drained, down_ms):
        if is_drained:
            await admin.drain(node.number)
            with trio.move_on_after(DRAINED_S):
                while self._has_replicas(node.number):
                    await admin.again()
            if self._has_replicas(node.number):
                await admin.drain(node.number, ends=True)
                self._is_leaving = False
                return
        await node.leave()
        await admin.remove(node.number)
        self.left.append(node.number)
        await trio.sleep(down_ms / 1000)
        self._mend_disk(node.disk)
        await node.come_new()
        self._is_leaving = False

    def _has_replicas(self, number):
        """As any node believes."""
        images = [node.first.core.view.image for node in self.cluster.ready()]
        topics = [topic for image in images for topic in image.topics.values()]
        places = [place for topic in topics for index in range(topic.partitions_count) for place in topic.places(index)]
        return not images or any(place.node == number for place in places)

    def create_topic(self, name):
        self._ask(lambda admin: admin.create_topic(name, 2))

    def silence(self, number, for_ms, forgets):
        self.groups.members[number].fall_silent(for_ms / 1000, forgets=forgets)

    def die(self, number):
        self.groups.die(number)

    def depart(self, number, for_ms):
        self.groups.members[number].depart(for_ms / 1000)


def execute(seed: int, shape: Shape, schedule: Schedule, kind: type[Story] = Story) -> Story:
    """Runs a schedule, and what comes behind it. AssertionError: what does not hold."""
    stories = []

    async def tell(cluster):
        stories.append(kind(cluster, shape, schedule))
        await stories[0].run()

    with small_bounds() if shape.is_large else nullcontext():
        simulate(
            seed, tell, nodes_count=shape.nodes_count, founders_count=shape.founders_count,
            cores_max=shape.cores_max,
        )  # fmt: skip
    return stories[0]


def ran(only: str, seed: int, steps: int, kind: type[Story] = Story) -> tuple[Shape, Story]:
    """A run of the simulator of that name; SimulationFailedError with a shorter schedule, where there is one."""
    shape, schedule = plan(seed, steps)
    try:
        return shape, execute(seed, shape, schedule, kind)
    except AssertionError as error:
        shortest = shrink(
            schedule, lambda some: failure_of(execute, seed, shape, some, kind) is not None, SHRINK_RUNS_MAX
        )
        what = f"{failure_of(execute, seed, shape, shortest, kind) or error}\n  with {shape}"
        raise SimulationFailedError(what, f"make sim ONLY={only} SEED={seed} STEPS={steps}", shortest) from error


def run(seed: int, steps: int) -> str:
    """One run; SimulationFailedError with a shorter schedule, where there is one."""
    shape, story = ran("nodes", seed, steps)
    promises = story.cluster.promises
    acknowledged = sum(map(len, promises.acknowledged.values()))
    truths = story.groups.truths.values()
    offsets, stale = sum(sum(one.committed.values()) for one in truths), sum(one.stale_commits for one in truths)
    return (
        f"{shape.nodes_count} nodes of {shape.cores_max} cores at most, "
        f"{story.cluster.moves_count()} moves between cores, {len(story.oracle.leaders)} leaderships, "
        f"{acknowledged} acknowledged, {story.cluster.in_place_bytes} bytes in place, {story.cluster.rolls} rolls, "
        f"{sum(map(len, promises.seen.values()))} seen, {sum(promises.committed.values())} offsets committed, "
        f"{sum(len(one.parts) for one in truths)} generations with {offsets}, {stale} refused for their generation"
    )
