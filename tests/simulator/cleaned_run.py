"""Replicas of a compacted log under fire: each cleans its own files, one is filled from another, all lose power.

Segments, swaps, recovery, shipping and filling are the real ones, on disks in memory; what is a model is the agreement
on who leads and what is committed. After each step every replica's reader of committed records must find, of each key,
the newest value that its log has, or nothing if that was deleted; nothing that was aborted; nothing that never was at
its offset; and all records that were not cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import trio
from trio.testing import MockClock

from tests.simulator.cleaned_replica import Replica
from tests.simulator.cleaned_truth import Truth
from tests.simulator.schedule import SimulationFailedError

REPLICAS = 3
ACTIONS = (
    (30, "produce"), (20, "follow"), (12, "clean"), (12, "checkpoint"), (6, "crash"), (4, "crash_in_swap"), (8, "wait"),
    (5, "fail_over"), (6, "fill"), (2, "replace"),
)  # fmt: skip


@dataclass
class Counts:
    cleaned: int = 0
    filled: int = 0
    fronts_kept: int = 0
    swaps_cut: int = 0


class Story:
    """One run."""

    def __init__(self, seed: int, often: tuple[str, ...] = ()) -> None:
        """`often`: what happens four times as often as it would."""
        self.weights = [weight * (4 if name in often else 1) for weight, name in ACTIONS]
        self.random = Random(seed)
        self.truth = Truth(Random(seed + 1))
        self.replicas = [Replica(number, self.truth, Random(seed + 2 + number)) for number in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.counts = Counts()
        self._looked: dict[int, object] = {}

    async def run(self, steps: int) -> None:
        for replica in self.replicas:
            await replica.open_new()
        names = self.random.choices([name for _weight, name in ACTIONS], self.weights, k=steps)
        for number, name in enumerate(names):
            await getattr(self, name)()
            for replica in self.replicas:
                why = await self._why_wrong(replica)
                assert not why, f"behind step {number} ({name}): {why}"
        await self._at_peace()

    async def _at_peace(self) -> None:
        """All come to the same, are cleaned until nothing changes any more, and agree still."""
        self.truth.end_all()
        await self.leader.take(self.truth.end_offset)
        self.leader.committed_offset = self.truth.end_offset
        for replica in self.replicas:
            await self._bring(replica, self.truth.end_offset)
        for _round in range(4):
            await self.wait()
            for replica in self.replicas:
                await replica.checkpoint()
                await replica.clean()
                why = await replica.why_wrong()
                assert not why, f"at the end: {why}"

    async def _why_wrong(self, replica: Replica) -> str:
        """Of one that has changed since it was looked at."""
        as_it_is = replica.files.version, replica.committed_offset
        if self._looked.get(replica.number) == as_it_is:
            return ""
        self._looked[replica.number] = as_it_is
        return await replica.why_wrong()

    @property
    def followers(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica is not self.leader]

    # -- what happens ------------------------------------------------------------------------------------------------

    async def produce(self) -> None:
        for _batch in range(self.random.randint(1, 12)):
            self.truth.append()
        await self.leader.take(self.truth.end_offset)
        self.leader.committed_offset = self.truth.end_offset

    async def follow(self) -> None:
        """A follower gets some of what it lacks, and hears of some of what is committed."""
        replica = self.random.choice(self.followers)
        ends = [end for end in self.truth.ends if end > replica.end_offset]
        if ends:
            await self._bring(replica, self.random.choice(ends))
        replica.committed_offset = self.random.randint(replica.committed_offset, replica.end_offset)

    async def _bring(self, replica: Replica, upto: int) -> None:
        if replica.end_offset < self.leader.contiguous_from_offset:
            await self._fill(replica)
        elif replica.end_offset < upto:
            await replica.follow(self.leader, upto)
        replica.committed_offset = max(replica.committed_offset, min(upto, replica.end_offset))

    async def _fill(self, replica: Replica) -> None:
        before = replica.end_offset
        self.counts.fronts_kept += await replica.fill_from(self.leader)
        assert replica.end_offset > before
        self.counts.filled += 1

    async def fill(self) -> None:
        """Although items would do."""
        behind = [replica for replica in self.followers if replica.end_offset < self.leader.committed_offset]
        if behind:
            await self._fill(self.random.choice(behind))

    async def clean(self) -> None:
        await self.random.choice(self.replicas).clean()
        self.counts.cleaned += 1

    async def checkpoint(self) -> None:
        await self.random.choice(self.replicas).checkpoint()

    async def crash(self) -> None:
        await self.random.choice(self.replicas).crash()

    async def crash_in_swap(self) -> None:
        replica = self.random.choice(self.replicas)
        await replica.checkpoint()
        replica.disk.lose_power_at = replica.disk.effects + self.random.randint(1, 40)
        if not await replica.clean():
            self.counts.swaps_cut += 1
            await replica.crash()
        replica.disk.lose_power_at = None

    async def wait(self) -> None:
        """Horizons of tombstones and markers come to an end."""
        later_ms = self.random.choice([100, 500, 2000])
        self.truth.timestamp_ms += later_ms
        for replica in self.replicas:
            replica.now_ms += later_ms

    async def fail_over(self) -> None:
        """To one that has all that is committed, and may have cleaned more, or less."""
        candidate = self.random.choice(self.followers)
        await self._bring(candidate, self.leader.end_offset)
        await self._bring(candidate, self.leader.end_offset)
        if candidate.end_offset == self.truth.end_offset:
            candidate.committed_offset = candidate.end_offset
            self.leader = candidate
            self.truth.begin_epoch()

    async def replace(self) -> None:
        """A follower's disk is lost: it comes back as another replica, without anything."""
        replica = self.random.choice(self.followers)
        replica.begin_anew()
        await replica.open_new()


def execute(seed: int, steps: int, often: tuple[str, ...] = ()) -> Story:
    """One run. AssertionError: what does not hold."""
    story = Story(seed, often)
    trio.run(story.run, steps, clock=MockClock(autojump_threshold=0))
    return story


def run(seed: int, steps: int) -> str:
    """One run; SimulationFailedError."""
    try:
        counts = execute(seed, steps).counts
    except AssertionError as error:
        raise SimulationFailedError(str(error), f"make sim ONLY=cleaned SEED={seed} STEPS={steps}", []) from error
    swaps = f"{counts.cleaned} cleanings, {counts.swaps_cut} cut short"
    return f"{swaps}, {counts.filled} filled, {counts.fronts_kept} kept their front"
