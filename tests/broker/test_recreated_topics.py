"""Committed offsets of topics that were deleted and made again: nothing of them is the next topic's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from tests.broker.test_group_service import SETTINGS, log_of_groups, with_group
from tests.support.memory_clients import create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker.broker import group_service
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

NONE = ErrorCode.NONE


@pytest.mark.parametrize("deletions", [1, 1_001])
async def test_a_topic_made_again_does_not_inherit_offsets_that_nobody_was_there_to_forget(autojump_clock, deletions):
    """Its coordinator is away while the topic goes; also where more have gone since than the image names."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        while member.coordinator() == 0:
            member.group += "x"
        await create_topic(node, 0, "stays")
        assert await member.commit("t", {0: 5}) == {0: NONE}
        assert await member.commit("stays", {0: 6}) == {0: NONE}
        number = member.coordinator()
        await node.crash(number)
        await delete_topic(node, 0, "t")
        for _ in range(deletions - 1):
            await create_topic(node, 0, "other", 1)
            await delete_topic(node, 0, "other")
        await create_topic(node, 0, "t")
        await node.start(number)
        assert (await member.committed("t", [0]))[1] != {0: 5}
        await trio.sleep(1)
        assert await member.committed("t", [0]) == (NONE, {0: -1})
        assert await member.committed("stays", [0]) == (NONE, {0: 6})
        assert log_of_groups(node[number]).bounds()[3] == 3, "it is forgotten in the log, too"
        assert await member.commit("t", {0: 1}) == {0: NONE}
        await node.restart(number)
        await trio.sleep(1)
        assert await member.committed("t", [0]) == (NONE, {0: 1})


async def test_a_commit_that_waited_is_not_made_for_the_next_topic_of_that_name(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        wait = group_service.GroupService.wait_coordinator
        going = trio.Event()

        async def waiting(self, group_id):
            await wait(self, group_id)
            await going.wait()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group_service.GroupService, "wait_coordinator", waiting)
            told = []
            async with trio.open_nursery() as nursery:

                async def commit():
                    told.append(await member.commit("t", {0: 5}))

                nursery.start_soon(commit)
                await trio.testing.wait_all_tasks_blocked()
                await delete_topic(node, 0, "t")
                await create_topic(node, 0, "t")
                going.set()
        assert told == [{0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
        assert await member.committed("t", [0]) == (NONE, {0: -1})


async def test_offsets_of_topics_that_this_core_does_not_know_yet_wait_for_the_metadata(autojump_clock):
    """It may be behind the coordinator before it: what is not there may be new, as well as gone."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        while member.coordinator() == 0:
            member.group += "x"
        assert await member.commit("t", {0: 5}) == {0: NONE}
        number = member.coordinator()
        await node.restart(number)
        await trio.sleep(1)
        core = node[number]
        known, core.view.image = core.view.image, without(core.view.image, "t")
        node.lives[number].mailboxes.lost.add("metadata.newest")
        (coordinator,) = (one for one in core.groups.loaded() if one.machine.statistics().offsets_count)
        key = coordinator._partition.key
        core.groups.end(key)
        core.groups.begin_if_coordinates(key)
        await trio.sleep(1)
        asked = messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=member.group, topics=None)
        (group,) = (await member.ask(messages.OffsetFetchRequest(groups=[asked]), 8)).groups
        (found,) = group.topics[0].partitions
        assert (found.committed_offset, found.error_code) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        core.view.image = known
        assert await member.committed("t", [0]) == (NONE, {0: 5})
        node.lives[number].mailboxes.lost.clear()
        await trio.sleep(60)
        assert await member.committed("t", [0]) == (NONE, {0: 5})


def without(image, name):
    """The image before the topic was made, as a core has it that has not heard of it yet."""
    topics = {topic_id: topic for topic_id, topic in image.topics.items() if topic.name != name}
    ids = {known: topic_id for known, topic_id in image.ids.items() if known != name}
    return replace(image, topics=topics, ids=ids)
