"""Whole nodes under fire, as in `nodes_run`, with a bank (`nodes_bank`) in place of other clients."""

from __future__ import annotations

import trio

from tests.simulator.nodes_bank import Bank
from tests.simulator.nodes_run import FINISH_S, MEMBERS, PARTITIONS, TOPICS, Story, ran
from tests.support.bank import Told

EVERY = 5
"""As of `nodes_run`."""
FROM_BEGINNING = 0.1
"""So often all of an account is read."""


class TransfersStory(Story):
    def make_groups(self):
        accounts = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
        return Bank(self.cluster, accounts, MEMBERS)

    @property
    def ledger(self):
        return self.groups.ledger

    def _begin_clients(self):
        for teller in self.groups.members:
            self._go_on(lambda teller: teller.run(lambda: self.is_over), teller)
        for auditor in self.groups.auditors:
            self._go_on(self._audit, auditor)
        for looker in self.groups.lookers:
            self._go_on(self._look_at_id, looker)

    async def _audit(self, auditor):
        while not self.is_over:
            await auditor.read(from_beginning=auditor.chance.random() < FROM_BEGINNING)
            await auditor.again()

    async def _look_at_id(self, looker):
        while not self.is_over:
            await looker.look()
            await trio.sleep(looker.chance.uniform(0, 0.5))

    async def _make_peace(self):
        await super()._make_peace()
        with trio.move_on_after(FINISH_S):
            for problem in self.ledger.problems(await self.groups.final())[:1]:
                self.cluster.fails(problem)
            return
        self.cluster.fails(f"{FINISH_S:g} s after everything was healed transactions are open")
        await trio.sleep_forever()


def run(seed: int, steps: int) -> str:
    """One run; SimulationFailedError with a shorter schedule, where there is one."""
    shape, story = ran("transfers", seed, steps, TransfersStory)
    counts = ", ".join(f"{story.ledger.count(told)} {told}" for told in Told)
    return (
        f"{shape.nodes_count} nodes of {shape.cores_max} cores at most, {len(story.oracle.leaders)} leaderships, "
        f"transfers {counts}, {len(story.ledger.views)} views"
    )
