"""What happens to groups on the cores of a node in memory besides what their members do: `DisturbedGroups`."""

from __future__ import annotations

import random
from collections import defaultdict

import trio

from tests.support.compacted_records import clean_coordinators


class DisturbedGroups:
    """From a seed. `possible`: what may be committed of a key now. `busy`: a lock of each who does one thing at a time.
    """

    patience_s = 20

    def __init__(self, node, seed):
        self.node, self.chooser = node, random.Random(seed)
        self.busy = defaultdict(trio.Lock)
        self.possible = defaultdict(lambda: {-1})
        self.values = iter(range(1, 1 << 30))
        self.removed = 0

    async def attempt(self, question):
        """The answer; None when there is none in time, or nobody to ask."""
        with trio.move_on_after(self.patience_s):
            try:
                return await question
            except (AttributeError, KeyError):  # the connection was closed; its core is down
                return None
        return None

    async def crash(self):
        async with self.busy["crash"]:
            number = self.chooser.randrange(self.node.cores)
            await self.node.crash(number)
            await trio.sleep(self.chooser.uniform(0, 3))
            await self.node.start(number)

    async def refuse_writes(self):
        life = self.node.lives.get(self.chooser.randrange(self.node.cores))
        if life is not None:
            life.storage.has_space = False
            await trio.sleep(self.chooser.uniform(0, 2))
            life.storage.has_space = True

    async def set_clock(self):
        self.node.clock.wall_ahead_ms += self.chooser.choice([-20_000, 5_000, 30_000])

    def disturbances(self):
        return self.crash, self.refuse_writes, self.set_clock, self.be_cleaned, self.be_cleaned

    async def be_cleaned(self):
        """The logs of the coordinators, in the midst of whatever happens."""
        self.removed = clean_coordinators(self.node, self.chooser)

    async def go_through(self, steps, count):
        """So many of these, each as likely as it is often among them, beside each other."""
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.chooser.choice([*steps, *self.disturbances()]))
                await trio.sleep(self.chooser.uniform(0, 0.5))
