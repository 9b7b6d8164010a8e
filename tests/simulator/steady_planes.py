"""Three planes that replicate from C to C (`tests/support/steady_group.py`) over a network with delays and cuts, on
processes that stand still now and then: what is committed is durable at a majority, and what a follower acknowledges
is durable there, at every moment; left alone all come to the same log.
"""

from __future__ import annotations

import random
from functools import partial

from tests.support.bench_world import SimulatedWorld
from tests.support.plane_bench import PlaneBench
from tests.support.steady_group import SteadyGroup
from tests.support.steady_peers import Frames

COUNT = 3
BUFFER_BYTES = 16_384
QUIET_S = 20.0


class SteadyPlanes:
    def __init__(self, world, folder, chance):
        self.world, self.chance = world, chance
        self.hosts = [world.network.host(f"node{number}") for number in range(COUNT)]
        self.benches = [PlaneBench(folder / f"{number}.journal", region_blocks=4096) for number in range(COUNT)]
        self.group = SteadyGroup(self.benches, self._connect)
        self.paused: dict[int, float] = {}
        """Until when, by number."""
        self.cuts: dict[tuple[int, int], float] = {}
        self.relinked = self.appended = self.acknowledged = 0

    def _connect(self, one, other):
        ends = self.world.connected(self.hosts[one], self.hosts[other])
        ends[1].end.on_sent = partial(self._sent, other, Frames())
        return [end.detach() for end in ends]

    def _sent(self, number, frames, data):
        """By a follower."""
        for _topic_id, _partition, _term, _source, _target, offset, _commit in frames.acknowledged(data):
            state = self.group.members[number].state()
            assert offset <= state.durable_offset, f"node {number} acknowledges {offset}: {state}"
            self.acknowledged += 1

    def step(self):
        chance = self.chance
        what = chance.choice([self.append] * 6 + [self.cut, self.pause])
        what()
        self.world.network.delay_s_max = chance.choice([0.0005, 0.002, 0.05])
        self.go_on(chance.choice([0, 0, 0.001, 0.01, 0.2, 1.0]))

    def append(self):
        if 0 not in self.paused:
            size = self.chance.choice([10, 500, 5_000, 60_000])
            self.group.append(self.chance.randint(1, 3), bytes(size))
            self.appended += 1

    def cut(self):
        """One way, or both."""
        one, other = self.chance.sample(range(COUNT), 2)
        until_s = self.world.now_s + self.chance.choice([0.1, 1.0, 5.0])
        for ends in ((one, other), (other, one))[: self.chance.randint(1, 2)]:
            self.cuts[ends] = until_s
            self.world.network.block(*(self.hosts[number].name for number in ends))

    def pause(self):
        self.paused[self.chance.randrange(COUNT)] = self.world.now_s + self.chance.choice([0.05, 1.0, 4.0])

    def go_on(self, seconds):
        """So much time passes, in small steps: each is looked at."""
        until_s = self.world.now_s + seconds
        while True:
            self._end_what_is_over()
            self._relink()
            running = [bench.ring for number, bench in enumerate(self.benches) if number not in self.paused]
            self.world.turn(running, min(0.01, max(0.0, until_s - self.world.now_s)))
            self.group.check()
            if self.world.now_s >= until_s:
                return

    def _end_what_is_over(self):
        now_s = self.world.now_s
        self.paused = {number: until_s for number, until_s in self.paused.items() if until_s > now_s}
        for ends in [ends for ends, until_s in self.cuts.items() if until_s <= now_s]:
            del self.cuts[ends]
            self.world.network.unblock(*(self.hosts[number].name for number in ends))

    def _relink(self):
        """As drivers do it, who know of a lost link, and find out by the other one what a follower has."""
        for follower in self.group.followers:
            ways = {(0, follower.number), (follower.number, 0)}
            is_reached = not ways & self.cuts.keys() and not {0, follower.number} & self.paused.keys()
            if is_reached and not self.group.is_linked(follower) and self.group.may_be_linked(follower):
                self.group.link(follower)
                self.relinked += 1

    def end(self):
        """Left alone."""
        self.paused.clear()
        for ends in self.cuts:
            self.cuts[ends] = self.world.now_s
        until_s = self.world.now_s + QUIET_S
        while not self.group.is_whole():
            assert self.world.now_s < until_s, [member.state() for member in self.group.members]
            self.go_on(0.1)
        logs = [member.log() for member in self.group.members]
        assert logs == logs[:1] * COUNT
        self.group.shut()
        for bench in self.benches:
            bench.shut()


def run(seed, steps, folder):
    chance = random.Random(f"{seed}/steady planes")
    with SimulatedWorld(seed, BUFFER_BYTES) as world:
        planes = SteadyPlanes(world, folder, chance)
        for _ in range(steps):
            planes.step()
        planes.end()
        return planes
