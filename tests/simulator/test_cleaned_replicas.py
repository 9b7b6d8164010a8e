"""Replicas that clean their files, are filled, fail over and lose power: fixed seeds, scripts and planted faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.simulator.cleaned_mutants import MUTANTS, Mutant
from tests.simulator.cleaned_replica import RETENTION_MS, Replica
from tests.simulator.cleaned_run import execute
from tests.simulator.cleaned_truth import Truth
from tests.simulator.schedule import failure_of
from tpc_broker.log.files import LOSSES_FILE, decode_losses, encode_losses

STEPS = 60
SEEDS_MAX = 40
OFTEN = ("clean", "checkpoint", "fill", "wait")


@pytest.mark.parametrize("seed", range(1, 9))
def test_readers_find_the_newest_of_each_key_whatever_was_cleaned_and_filled(seed):
    assert execute(seed, STEPS).counts.cleaned


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(9, 60))
def test_more_seeds(seed):
    assert execute(seed, STEPS).counts.cleaned
    assert execute(seed, STEPS, OFTEN).counts.cleaned


def test_a_seed_repeats_itself():
    first, again, other = execute(3, STEPS), execute(3, STEPS), execute(4, STEPS)
    assert first.counts == again.counts
    assert first.truth.batches == again.truth.batches != other.truth.batches


class Pair:
    """A leader and a follower, whose log a test writes: small records, and so many segments as it says."""

    def __init__(self) -> None:
        self.truth = Truth(Random(1))
        self.leader, self.follower = (Replica(number, self.truth, NeverGivesUp(number)) for number in range(2))

    async def open(self) -> None:
        for replica in (self.leader, self.follower):
            await replica.open_new()

    async def both_take(self) -> None:
        await self.leader_takes()
        await self.follower.take(self.truth.end_offset)
        self.follower.committed_offset = self.truth.end_offset

    async def leader_takes(self) -> None:
        await self.leader.take(self.truth.end_offset)
        self.leader.committed_offset = self.truth.end_offset

    def append(self, count: int, name: bytes = b"filler") -> None:
        """Records of keys of their own, of 100 bytes or so: some seven make a segment."""
        for _record in range(count):
            self.truth.append_one(b"%s %d" % (name, self.truth.end_offset), b"v")

    async def clean(self, replica: Replica) -> None:
        """Again and again, until horizons are over and what they protect is gone."""
        for _time in range(3):
            await replica.checkpoint()
            await replica.clean()
            replica.now_ms += 2 * RETENTION_MS

    async def is_right(self) -> bool:
        return not await self.leader.why_wrong() and not await self.follower.why_wrong()


class NeverGivesUp(Random):
    """Of jobs: all groups are swapped in; the largest choices."""

    def random(self) -> float:
        return 0.5

    def choice(self, some):
        return some[-1]


def told(script: Callable[[Pair], Awaitable[None]]) -> None:
    async def tell() -> None:
        pair = Pair()
        await pair.open()
        await script(pair)

    trio.run(tell, clock=MockClock(autojump_threshold=0))


KEY = b"k0"


def deleted(follower_has: int) -> Callable[[Pair], Awaitable[None]]:
    """A value in the first segment and its tombstone in a later one, which the leader forgets. The follower has all of
    it, or all in front of the tombstone, and cleans nothing.
    """

    async def script(pair: Pair) -> None:
        pair.truth.append_one(KEY, b"old")
        pair.append(24)
        await pair.both_take()
        if follower_has == 0:
            pair.truth.append_one(KEY, None)
        pair.append(2)
        if follower_has == 1:
            pair.truth.append_one(KEY, None)
            pair.append(1)
            await pair.both_take()
        pair.append(40)
        await pair.leader_takes()
        await pair.clean(pair.leader)
        state = pair.leader.files.cleaned
        assert state.removed_upto > 0
        assert (pair.follower.end_offset >= state.removed_upto) == bool(follower_has)
        assert len(pair.leader.files.segments) > 2
        await pair.follower.fill_from(pair.leader)
        assert pair.follower.end_offset == pair.truth.end_offset
        assert await pair.is_right()

    return script


@pytest.mark.parametrize("follower_has", [0, 1])
def test_a_value_does_not_rise_when_the_leader_has_forgotten_its_tombstone(follower_has):
    """Whether the follower lay in front of the tombstone or behind it."""
    told(deleted(follower_has))


async def far_behind(pair: Pair) -> None:
    """The front that a follower has is kept, linked and cut, when nothing was removed behind it."""
    pair.append(30)
    await pair.both_take()
    await pair.clean(pair.follower)
    pair.append(60)
    await pair.leader_takes()
    await pair.clean(pair.leader)
    assert pair.leader.files.cleaned.end_offset > pair.follower.end_offset
    assert await pair.follower.fill_from(pair.leader), "its front was kept"
    assert pair.follower.files.cleaned.end_offset >= pair.leader.files.cleaned.end_offset
    assert await pair.is_right()


def test_a_follower_far_behind_a_cleaned_leader_keeps_its_front():
    told(far_behind)


def lost(follower_has: int) -> Callable[[Pair], Awaitable[None]]:
    """Both have lost records that a repair could not bring back; the follower lacks all, or has a front of its own."""

    async def script(pair: Pair) -> None:
        async def note(replica: Replica, losses: list[tuple[int, int]]) -> None:
            await replica.files.folder.write_file(LOSSES_FILE, encode_losses(losses))

        if follower_has:
            pair.append(30)
            await pair.both_take()
            await note(pair.follower, [(3, 5), (20, 1000)])
        pair.append(60)
        await pair.leader_takes()
        await note(pair.leader, [(1, 2), (20, 40)])
        assert await pair.follower.fill_from(pair.leader) == bool(follower_has)
        segments = pair.leader.files.segments
        first = segments[pair.leader.files.segment_number(30)].base_offset
        found = decode_losses(await pair.follower.files.folder.read_file(LOSSES_FILE) or b"")
        assert found == ([(3, 5), (20, first), (first, 40)] if follower_has else [(1, 2), (20, 40)])

    return script


@pytest.mark.parametrize("follower_has", [0, 1])
def test_what_a_repair_has_lost_is_known_to_who_is_filled(follower_has):
    told(lost(follower_has))


async def ends_sealed(pair: Pair) -> None:
    """All segments but an empty active one are cleaned, and the last of them ends in a gap."""
    pair.append(20)
    pair.truth.append_one(KEY, b"first")
    pair.truth.append_one(KEY, b"second")
    await pair.leader_takes()
    await pair.leader.files.roll()
    pair.truth.append_one(KEY, b"third")
    await pair.leader_takes()
    await pair.clean(pair.leader)
    files = pair.leader.files
    end = files.cleaned.end_offset
    assert end == files.active.base_offset == pair.truth.end_offset - 1
    pair.leader.committed_offset = end  # as if the last record were not
    pair.truth.batches.pop()
    pair.truth.ends.pop()
    pair.truth.records.pop()
    await pair.follower.fill_from(pair.leader)
    assert (pair.follower.end_offset, pair.follower.files.active.base_offset) == (end, end)
    assert pair.follower.files.cleaned.end_offset == end
    await pair.follower.crash()
    assert pair.follower.files.written_end_offset == end
    pair.append(3)
    await pair.follower.take(pair.truth.end_offset)
    pair.follower.committed_offset = pair.truth.end_offset
    assert not await pair.follower.why_wrong()


def test_a_shipment_may_end_with_a_cleaned_segment_whose_last_batches_are_gone():
    told(ends_sealed)


async def fails_over(pair: Pair) -> None:
    """Right behind a swap another one leads, which has cleaned nothing; the one before follows it."""
    for number in range(40):
        pair.truth.append_one(b"k%d" % (number % 5), b"%d" % number)
    await pair.both_take()
    await pair.clean(pair.leader)
    pair.truth.begin_epoch()
    pair.append(20)
    await pair.follower.take(pair.truth.end_offset)
    pair.follower.committed_offset = pair.truth.end_offset
    await pair.leader.follow(pair.follower, pair.truth.end_offset)
    pair.leader.committed_offset = pair.truth.end_offset
    assert await pair.is_right()
    await pair.leader.crash()
    await pair.clean(pair.follower)
    assert await pair.is_right()


def test_a_failover_right_behind_a_swap():
    told(fails_over)


SCRIPTED = {
    "the own position says whether the front is kept": deleted(1),
    "the own front is kept whatever was removed behind it": deleted(0),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant):
    script = SCRIPTED.get(mutant.name)
    with mutant.planted():
        if script is not None:
            with pytest.raises(AssertionError):
                told(script)
            return
        for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
            if failure_of(execute, seed, STEPS, OFTEN) is not None:
                return
    pytest.fail(f"{mutant.name} was not found in {SEEDS_MAX} runs")
