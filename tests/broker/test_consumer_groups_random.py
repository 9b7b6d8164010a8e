"""Consumer groups of KIP-848 on cores in memory under random orders of joins, silences, crashes and full disks."""

from __future__ import annotations

import pytest
import trio

from tests.broker.test_group_service import with_group
from tests.support.consumer_members import REBALANCE_MS, ConsumerMember, Told
from tests.support.disturbed_groups import DisturbedGroups
from tests.support.memory_clients import create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker.error_codes import ErrorCode

NONE = ErrorCode.NONE
CORES, MEMBERS, STEPS, SESSION_S = 2, 4, 150, 6
SETTINGS = (
    "offsets.topic.num.partitions=3", "group.consumer.min.session.timeout.ms=1000",
    f"group.consumer.session.timeout.ms={SESSION_S * 1000}", "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=1000", "group.consumer.assignment.interval.ms=300",
)  # fmt: skip


class Story(DisturbedGroups):
    def __init__(self, node, seed):
        super().__init__(node, seed)
        self.told, self.broken = Told(min(SESSION_S, REBALANCE_MS / 1000), self.fails), []
        instances = [None, None, "one", "two"]
        self.members = [
            ConsumerMember(node, "g", 100 + number, ("t", "u"), regex=[None, "t|v.*"][number % 2], instance=instance)
            for number, instance in enumerate(instances)
        ]
        for member in self.members:
            member.told = self.told
        self.ids = iter(range(1, 1 << 30))

    def fails(self, what):
        self.broken.append(f"at {trio.current_time():.3f} s: {what}")

    async def take_part(self):
        member = self.chooser.choice(self.members)
        if self.busy[member].locked():
            return
        async with self.busy[member]:
            await self.attempt(member.beat())
            if member.epoch and self.chooser.random() < 0.5:
                await self.commit(member)

    async def commit(self, member):
        """Of something that it has in its epoch, or that it may have had in an older one."""
        owned, epoch = sorted(member.partitions("t")), member.epoch
        if not owned or self.chooser.random() < 0.3:
            owned, epoch = range(4), max(0, epoch - self.chooser.choice([1, 2]))
        index, value = self.chooser.choice(owned), next(self.values)
        topic = self.node.lives and next(iter(self.node.lives.values())).core.view.topic("t")
        others_have = bool(topic) and self.told.others_have(str(member), (topic.topic_id, index))
        self.possible[index] = self.possible[index] | {value}
        answer = await self.attempt(member.commit("t", {index: value}, epoch=epoch))
        if answer is None:
            return
        if answer[index] is NONE and others_have:
            self.fails(f"{member} commits {index} in epoch {epoch}, which another has")
        self.told.stale_commits += answer[index] is ErrorCode.STALE_MEMBER_EPOCH

    async def leave(self):
        member = self.chooser.choice(self.members)
        if member.epoch and not self.busy[member].locked():
            async with self.busy[member]:
                await self.attempt(member.leave(-2 if member.instance and self.chooser.random() < 0.7 else -1))
                if self.chooser.random() < 0.5:
                    member.member_id = f"another-{next(self.ids)}"

    async def fall_silent(self):
        member = self.chooser.choice(self.members)
        async with self.busy[member]:
            await trio.sleep(self.chooser.uniform(0, 2 * SESSION_S))

    async def change_topics(self):
        name = self.chooser.choice(["u", "v1", "v2"])
        if 0 in self.node.lives:
            with trio.move_on_after(20):
                await (delete_topic if self.chooser.random() < 0.4 else create_topic)(self.node, 0, name)

    async def settle(self):
        """Left alone, they come to one epoch, and each partition is somebody's."""
        why = "they have not been asked"
        with trio.move_on_after(60):
            while why:
                for member in self.members:
                    await self.attempt(member.beat())
                await trio.sleep(0.5)
                why = await self.why_unsettled()
        assert not why

    async def why_unsettled(self):
        group = await self.attempt(self.members[0].describe())
        if group is None or group.group_state != "Stable" or len(group.members) != MEMBERS:
            return f"the group is {group}"
        view = self.node[0].view
        topics = [topic for name in ("t", "u", "v1", "v2") if (topic := view.topic(name)) is not None]
        every = sorted(pair for member in self.members for pair in member.pairs())
        if every != sorted((topic.topic_id, index) for topic in topics for index in range(4)):
            return f"they have {every}"
        epochs = {member.epoch for member in self.members}
        return f"they are in epochs {epochs}" if len(epochs) > 1 else ""

    async def check_offsets(self):
        error, found = await self.members[0].committed_as_member("t", range(4))
        assert error is NONE
        for index, offset in found.items():
            assert offset in self.possible[index], index


@pytest.mark.parametrize("seed", range(8))
async def test_a_partition_has_one_owner_and_epochs_never_fall(seed, autojump_clock):
    async with running_node(CORES, settings=SETTINGS, seed=seed) as node:
        await with_group(node)
        node.delay_s_max, node.write_s_max = 0.1, 0.3
        story = Story(node, seed)
        steps = [*[story.take_part] * 30, *[story.leave] * 2, story.fall_silent, story.change_topics]
        await story.go_through(steps, STEPS)
        await trio.sleep(2)
        await story.settle()
        await story.check_offsets()
        for number in range(CORES):
            await node.restart(number)
        await trio.sleep(2)
        await story.settle()
        await story.check_offsets()
        assert story.broken == []
        assert story.told.handed_over > MEMBERS
