"""Whole nodes under fire, as in `nodes_run`, with consumer groups of KIP-848 in place of the classic ones."""

from __future__ import annotations

from tests.simulator.nodes_consumers import GROUPS, Consumers
from tests.simulator.nodes_run import MEMBERS, TOPICS, Story, ran

EVERY = 5
"""As of `nodes_run`."""
assert sum(GROUPS.values()) == MEMBERS, "the same schedules serve both"


class ConsumerStory(Story):
    def make_groups(self):
        return Consumers(self.cluster, TOPICS[1])


def run(seed: int, steps: int) -> str:
    """One run; SimulationFailedError with a shorter schedule, where there is one."""
    shape, story = ran("consumers", seed, steps, ConsumerStory)
    truths = story.groups.truths.values()
    return (
        f"{shape.nodes_count} nodes of {shape.cores_max} cores at most, {len(story.oracle.leaders)} leaderships, "
        f"epochs up to {[one.newest_epoch for one in truths]}, "
        f"{sum(one.handed_over for one in truths)} partitions handed over, "
        f"{sum(sum(one.committed.values()) for one in truths)} offsets, "
        f"{sum(one.stale_commits for one in truths)} commits refused"
    )
