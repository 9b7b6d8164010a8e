"""What an expression of a consumer group matches is what the member may see whose heartbeat has it resolved."""

from __future__ import annotations

from tests.broker.test_consumer_groups import ALL, SETTINGS, settle
from tests.broker.test_group_service import with_group
from tests.support.consumer_members import ConsumerMember
from tests.support.memory_clients import create_topic
from tests.support.memory_node import running_node
from tests.support.rights import DESCRIBE, READ, allow_only, on_group, on_topic
from tpc_broker.auth.principals import ANONYMOUS, NOBODY, Subject
from tpc_broker.broker import group_service

READS = on_group(READ, "g")


async def test_hidden_topics_are_not_matched_and_are_once_they_may_be_seen(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        await create_topic(node, 0, "logs-secret", 2)
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-a"))
        member = ConsumerMember(node, "g", 10, (), regex="logs-.*")
        await settle(member, beats=4)
        assert (member.partitions("logs-a"), member.partitions("logs-secret")) == (ALL, set())
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-a"), on_topic(DESCRIBE, "logs-secret"))
        await settle(member, beats=4)
        assert (member.partitions("logs-a"), member.partitions("logs-secret")) == (ALL, {0, 1})
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-secret"))
        await settle(member, beats=4)
        assert (member.partitions("logs-a"), member.partitions("logs-secret")) == (set(), {0, 1})


async def test_a_topic_that_comes_later_is_matched_by_who_may_see_it(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        member = ConsumerMember(node, "g", 10, (), regex="logs-.*")
        await settle(member, beats=3)
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-a"))
        await settle(member, beats=3)
        node[0].access.authorizer = None
        await create_topic(node, 0, "logs-b", 2)
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-a"))
        await settle(member, beats=4)
        assert (member.partitions("logs-a"), member.partitions("logs-b")) == (ALL, set())


async def test_nobody_sees_nothing_whatever_the_rules(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        allow_only(node[0], READS, on_topic(DESCRIBE, "logs-a"))
        service, *_others = node[0].groups.loaded()
        assert await service._visible(("logs-a", "logs-b"), Subject(ANONYMOUS, "127.0.0.1")) == ("logs-a",)
        assert await service._visible(("logs-a",), NOBODY) == ()


async def test_many_names_are_asked_about_in_steps(autojump_clock, monkeypatch):
    monkeypatch.setattr(group_service, "VISIBLE_AT_ONCE", 2)
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node, "logs-0")
        for number in range(1, 6):
            await create_topic(node, 0, f"logs-{number}", 1)
        allow_only(node[0], READS, *(on_topic(DESCRIBE, f"logs-{number}") for number in range(0, 6, 2)))
        member = ConsumerMember(node, "g", 10, (), regex="logs-.*")
        await settle(member, beats=4)
        found = {name for name in (f"logs-{number}" for number in range(6)) if member.partitions(name)}
        assert found == {"logs-0", "logs-2", "logs-4"}
        assert len(node[0].access.on_rules_changed) == len(set(node[0].access.on_rules_changed))


async def test_nothing_is_kept_of_more_groups_than_there_may_be(autojump_clock, monkeypatch):
    monkeypatch.setattr(group_service, "WANTED_KEPT_MAX", 2)
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        groups = [f"g{number}" for number in range(8)]
        allow_only(node[0], *(on_group(READ, group) for group in groups), on_topic(DESCRIBE, "logs-a"))
        members = [ConsumerMember(node, group, 10 + place, (), regex="logs-.*") for place, group in enumerate(groups)]
        await settle(*members, beats=4)
        assert all(member.partitions("logs-a") == ALL for member in members)
        assert all(len(one._wanted_last) <= 2 for one in node[0].groups.loaded())
