"""Groups on cores in memory under random orders of joins, commits, crashes and pauses, from seeds.

An offset that was acknowledged is there until a later one was sent, whatever became of its coordinator. And when all
cores are up and left alone, members find their coordinator and get a generation together.
"""

from __future__ import annotations

import math

import pytest
import trio

from tests.support.disturbed_groups import DisturbedGroups
from tests.support.memory_clients import Member, create_topic
from tests.support.memory_node import running_node
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

NONE = ErrorCode.NONE
CORES, MEMBERS, STEPS = 2, 3, 80
GROUPS = ("g", "h")
ALONE = "nobody-joins"


class Story(DisturbedGroups):
    patience_s = 30

    def __init__(self, node, seed):
        super().__init__(node, seed)
        self.members = [Member(node, group, 100 + number) for group in GROUPS for number in range(MEMBERS)]
        self.ended_s = {-1: 0.0}
        """When a commit was answered, or given up."""

    async def take_part(self):
        """Join if that is wanted, and do what members do."""
        member = self.chooser.choice(self.members)
        if self.busy[member].locked():
            return
        async with self.busy[member]:
            if await self.attempt(member.heartbeat()) is not NONE:
                joined = await self.attempt(member.join())
                if joined in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    member.member_id = ""
                if joined is not NONE:
                    return
                if await self.attempt(member.sync(dict.fromkeys(member.others, b"x"))) is not NONE:
                    return
            await self.commit(member)

    async def commit_alone(self):
        """Of a group without members."""
        member = Member(self.node, ALONE, 1000 + next(self.values))
        async with self.busy[ALONE]:
            await self.commit(member)

    async def commit(self, member):
        key, value = (member.group, self.chooser.randrange(2)), next(self.values)
        began_s = trio.current_time()
        self.possible[key] = self.possible[key] | {value}
        answer = await self.attempt(member.commit("t", {key[1]: value}))
        self.ended_s[value] = trio.current_time()
        if answer is not None and set(answer.values()) == {NONE}:
            beside = {one for one in self.possible[key] if self.ended_s.get(one, math.inf) >= began_s}
            self.possible[key] = beside | {value}

    async def check_offsets(self):
        for group in (*GROUPS, ALONE):
            error, found = await Member(self.node, group, 5000 + next(self.values)).committed("t", range(2))
            assert error is NONE, group
            for index, offset in found.items():
                assert offset in self.possible[group, index], (group, index)

    async def check_members(self):
        """New ones: what was there ends with its sessions."""
        for group in GROUPS:
            pair = [Member(self.node, group, 9000 + next(self.values)) for _ in range(2)]
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    for member in pair:
                        nursery.start_soon(self.until_member, member)
                while sorted(pair[0].others or pair[1].others) != sorted(one.member_id for one in pair):
                    async with trio.open_nursery() as nursery:
                        for member in pair:
                            nursery.start_soon(self.until_member, member)

    async def until_member(self, member):
        while True:
            error = await member.join()
            if error is NONE and await member.sync(dict.fromkeys(member.others, b"x")) is NONE:
                return
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                member.member_id = ""
            await trio.sleep(0.5)


@pytest.mark.parametrize("seed", range(10))
async def test_acknowledged_offsets_stay_and_members_come_together(seed, autojump_clock):
    async with running_node(CORES, settings=("offsets.topic.num.partitions=3",), seed=seed) as node:
        await create_topic(node, 0, "t", 2)
        kind = messages.FindCoordinatorRequest
        with trio.fail_after(60):
            while (await node.ask(0, kind(key_type=0, coordinator_keys=["g"]), 4)).coordinators[0].error_code:
                await trio.sleep(0.1)
        node.delay_s_max, node.write_s_max = 0.1, 0.5
        story = Story(node, seed)
        await story.go_through([*[story.take_part] * 12, *[story.commit_alone] * 4], STEPS)
        await trio.sleep(30)
        await story.check_offsets()
        await story.check_members()
        assert story.removed > 5
        for number in range(CORES):
            await node.restart(number)
        await trio.sleep(30)
        await story.check_offsets()
