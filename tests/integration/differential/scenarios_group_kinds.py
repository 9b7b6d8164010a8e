"""Both kinds of group by all APIs: lists, descriptions, offsets; the classic APIs on a group of KIP-848 and the other
way round.
"""

from __future__ import annotations

from typing import Any

from tests.integration.differential.consumer_members import (
    assigned_at_once,
    beat,
    describe,
    join,
    owned,
    scenario,
    setting,
    until_known,
)
from tests.integration.differential.dialogue import Dialogue, stable_versions
from tests.integration.differential.scenarios_data import STRANGE_ID
from tests.integration.differential.scenarios_groups import (
    admitted,
    commit,
    heartbeat,
    leave,
    subscription,
    sync,
)
from tests.integration.differential.scenarios_groups import join as classic_join


def _with_member(d: Dialogue, partitions_count: int = 3, name: str = "group") -> tuple[str, str]:
    """A topic, and a group of KIP-848 in which member a owns it at epoch 2."""
    group = f"{d.prefix}-{name}"
    topic = d.topic(f"of-{name}", partitions_count)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    got = join(d, group, "a", topic)
    beat(d, group, "a", 2, TopicPartitions=owned(got))
    return topic, group


# ---- lists and descriptions ------------------------------------------------------------------------------------------


@scenario
def descriptions_of_both_kinds(d: Dialogue) -> None:
    topic, group = _with_member(d)
    classic, simple, absent = f"{d.prefix}-classic", f"{d.prefix}-simple", f"{d.prefix}-absent"
    admitted(d.coordinator(classic), 5, classic)
    commit(d.coordinator(simple), 8, simple, topic)
    for version in stable_versions("ConsumerGroupDescribe"):
        for one in (group, classic, simple, absent, ""):
            describe(d, one, version)
        line = d.coordinator(group)
        line.ask("ConsumerGroupDescribe", version, {"GroupIds": []})
        line.ask("ConsumerGroupDescribe", version, {"GroupIds": [group, group]})
        describe(d, group, version, IncludeAuthorizedOperations=True)
    for version in stable_versions("DescribeGroups"):
        line.ask("DescribeGroups", version, {"Groups": [group]})
    beat(d, group, "a", -1)
    describe(d, group)
    line.ask("DescribeGroups", 6, {"Groups": [group]})
    line.ask("DescribeGroups", 5, {"Groups": [group]})


@scenario
def lists_of_both_kinds(d: Dialogue) -> None:
    """By states and types; the state of a group of KIP-848 goes from Stable to Reconciling, Assigning, Empty."""
    topic, group = _with_member(d)
    classic = f"{d.prefix}-classic"
    commit(d.coordinator(classic), 8, classic, topic)

    def list_all() -> None:
        for version in stable_versions("ListGroups"):
            d.ask_every_broker("ListGroups", version, {}, "Groups")

    def filtered(version: int, **filters: Any) -> None:
        d.ask_every_broker("ListGroups", version, filters, "Groups")

    list_all()
    for states in (["Stable"], ["stable"], ["Reconciling"], ["Assigning"], ["Empty"], ["Dead"], ["Stable", "Empty"]):
        filtered(4, StatesFilter=states)
        filtered(5, StatesFilter=states, TypesFilter=["consumer"])
    for types in (["consumer"], ["Consumer"], ["classic"], ["consumer", "classic"], ["share"], ["streams"], [""]):
        filtered(5, TypesFilter=types)
    join(d, group, "b", topic)
    filtered(5)
    filtered(5, StatesFilter=["Reconciling"])
    beat(d, group, "b", -1)
    filtered(5)
    filtered(5, StatesFilter=["Assigning"], TypesFilter=["consumer"])
    beat(d, group, "a", -1)
    list_all()
    filtered(5, StatesFilter=["Empty"], TypesFilter=["consumer"])


@scenario
def deletion_of_consumer_groups(d: Dialogue) -> None:
    topic, group = _with_member(d)
    for version in stable_versions("DeleteGroups"):
        d.coordinator(group).ask("DeleteGroups", version, {"GroupsNames": [group]})
    commit(d.coordinator(group), 9, group, topic, generation=2, member="a")
    beat(d, group, "a", -1)
    d.coordinator(group).ask("DeleteGroups", 2, {"GroupsNames": [group]})
    d.coordinator(group).ask("DeleteGroups", 2, {"GroupsNames": [group]})
    describe(d, group)
    d.coordinator(group).ask("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}]})
    d.ask_every_broker("ListGroups", 5, {}, "Groups")
    join(d, group, "b", topic)
    describe(d, group)


# ---- offsets ---------------------------------------------------------------------------------------------------------


@scenario
def commits_to_consumer_groups(d: Dialogue) -> None:
    for version in stable_versions("OffsetCommit"):
        topic, group = _with_member(d, name=f"v{version}")
        line = d.coordinator(group)
        named = {"TopicId": d.topic_id(topic)} if version >= 10 else {"Name": topic}

        def to(
            generation: int, member: str, index: int = 0, version: int = version, named: Any = named, group: str = group
        ) -> None:
            commit(
                d.coordinator(group), version, group, "", named=named, generation=generation, member=member,
                partition={"PartitionIndex": index},
            )  # fmt: skip

        to(2, "a")
        to(1, "a")
        to(3, "a")
        to(0, "a")
        to(-1, "a")
        to(2, "stranger")
        to(-1, "")
        to(2, "")
        to(2, "a", 1)
        to(2, "a", 9)
        if version >= 10:
            to(2, "a", named={"TopicId": STRANGE_ID})
        if version >= 7:
            commit(line, version, group, "", named=named, generation=2, member="a", GroupInstanceId="one")
        beat(d, group, "a", -1)
        to(2, "a")
        to(-1, "")
        line.ask("OffsetFetch", 8, {"Groups": [{"GroupId": group, "Topics": None}]})


@scenario
def commits_by_the_epoch_of_an_assignment(d: Dialogue) -> None:
    """A member that has not heard of its new epoch yet commits for what it has kept since."""
    topic, group = _with_member(d, 4)
    join(d, group, "b", topic)
    line = d.coordinator(group)

    def commit_all(epoch: int, member: str) -> None:
        for index in range(4):
            commit(line, 9, group, topic, generation=epoch, member=member, partition={"PartitionIndex": index})

    told = beat(d, group, "a", 2)
    commit_all(2, "a")
    commit_all(1, "a")
    beat(d, group, "a", 2, TopicPartitions=owned(told))
    for epoch in (1, 2, 3, 4):
        commit_all(epoch, "a")
    got = beat(d, group, "b", 3)
    beat(d, group, "b", 3, TopicPartitions=owned(got))
    beat(d, group, "a", -1)
    beat(d, group, "b", 3)
    for epoch in (2, 3, 4):
        commit_all(epoch, "b")
    describe(d, group)


@scenario
def fetches_of_offsets_by_members(d: Dialogue) -> None:
    topic, group = _with_member(d)
    line = d.coordinator(group)
    commit(line, 9, group, topic, generation=2, member="a")

    def fetch(version: int, member: Any, epoch: int, topics: Any = "all", asked: str = group) -> None:
        named = {"TopicId": d.topic_id(topic)} if version >= 10 else {"Name": topic}
        wanted = [{**named, "PartitionIndexes": [0, 1]}] if topics == "all" else topics
        who = {"MemberId": member, "MemberEpoch": epoch}
        d.coordinator(asked).ask("OffsetFetch", version, {"Groups": [{"GroupId": asked, **who, "Topics": wanted}]})

    for version in (9, 10):
        for member in ("a", "", None, "stranger"):
            for epoch in (2, 1, 3, -1, 0):
                fetch(version, member, epoch)
        fetch(version, "a", 1, None)
        fetch(version, "a", 2, None)
        fetch(version, "a", 2, asked=f"{d.prefix}-absent")
    beat(d, group, "a", -1)
    for member in ("a", "", None):
        fetch(9, member, 2)
        fetch(9, member, -1)


@scenario
def deletions_of_offsets_of_members(d: Dialogue) -> None:
    topic, group = _with_member(d)
    other = d.topic("other")
    line = d.coordinator(group)
    for one in (topic, other):
        commit(line, 9, group, one, generation=2, member="a")

    def delete(*topics: str) -> None:
        asked = [{"Name": one, "Partitions": [{"PartitionIndex": 0}, {"PartitionIndex": 7}]} for one in topics]
        line.ask("OffsetDelete", 0, {"GroupId": group, "Topics": asked})

    delete(topic, other)
    line.ask("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}]})
    beat(d, group, "a", -1)
    delete(topic)
    line.ask("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}]})


# ---- the classic APIs on a group of KIP-848 --------------------------------------------------------------------------


@scenario
def classic_calls_on_a_consumer_group(d: Dialogue) -> None:
    topic, group = _with_member(d)
    line = d.coordinator(group)
    protocols = [{"Name": "range", "Metadata": subscription(topic)}]
    for member in ("a", "stranger", ""):
        for generation in (2, 1, -1):
            heartbeat(line, 4, group, member, generation)
            sync(line, 5, group, member, generation)
        heartbeat(line, 4, group, member, 2, GroupInstanceId="one")
    classic_join(line, 9, group, "a", Protocols=protocols)
    classic_join(line, 9, group, "stranger", Protocols=protocols)
    classic_join(line, 9, group, ProtocolType="connect")
    classic_join(line, 9, group, ProtocolType="")
    classic_join(line, 9, group, Protocols=[])
    classic_join(line, 9, group, Protocols=[{"Name": "range", "Metadata": b"rubbish"}])
    classic_join(line, 9, group, SessionTimeoutMs=10, Protocols=protocols)
    classic_join(line, 9, group, "stranger", ProtocolType="connect")
    describe(d, group)
    leave(line, 5, group, "stranger", "")
    leave(line, 5, group, {"MemberId": "a", "GroupInstanceId": "one"})
    leave(line, 5, group, {"MemberId": "", "GroupInstanceId": "one"})
    describe(d, group)
    leave(line, 5, group, "a")
    describe(d, group)
    heartbeat(line, 4, group, "a", 2)
    sync(line, 5, group, "a", 2)
    leave(line, 5, group, "a")


@scenario
def static_member_that_leaves_by_the_classic_api(d: Dialogue) -> None:
    """By its instance alone, in old versions by its id."""
    topic, group = _with_member(d)
    line = d.coordinator(group)
    join(d, group, "b", topic, InstanceId="one")
    join(d, group, "c", topic, InstanceId="two")
    leave(line, 3, group, {"MemberId": "c", "GroupInstanceId": "one"})
    leave(line, 3, group, {"MemberId": "", "GroupInstanceId": "one"}, {"MemberId": "c", "GroupInstanceId": "two"})
    describe(d, group)
    leave(line, 2, group, "a")
    describe(d, group)


@scenario
def classic_calls_on_an_empty_consumer_group(d: Dialogue) -> None:
    """Any kind of classic member takes an empty group over."""
    topic, group = _with_member(d)
    commit(d.coordinator(group), 9, group, topic, generation=2, member="a")
    beat(d, group, "a", -1)
    line = d.coordinator(group)
    heartbeat(line, 4, group, "a", 2)
    sync(line, 5, group, "a", 2)
    leave(line, 5, group, "a")
    classic_join(line, 9, group, "stranger")
    describe(d, group)
    classic_join(line, 9, group, Protocols=[])
    describe(d, group)
    admitted(line, 9, group, ProtocolType="connect", Protocols=[{"Name": "sessioned", "Metadata": b"\1"}])
    describe(d, group)
    line.ask("DescribeGroups", 6, {"Groups": [group]})
    line.ask("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}]})
    d.ask_every_broker("ListGroups", 5, {}, "Groups")


@scenario
def consumer_members_at_groups_of_another_kind(d: Dialogue) -> None:
    """A Connect cluster's group, and one whose members' metadata are no subscription."""
    topic = d.topic("one")
    group, rubbish = f"{d.prefix}-connect", f"{d.prefix}-rubbish"
    for name in (group, rubbish):
        setting(d, name, "consumer.assignment.interval.ms", "0")
        until_known(d, name, topic)
    line = d.coordinator(group)
    connect = {"ProtocolType": "connect", "Protocols": [{"Name": "sessioned", "Metadata": b"\1"}]}
    member = admitted(line, 5, group, **connect)
    sync(line, 5, group, member, 1, {member: b"work"}, ProtocolType="connect", ProtocolName="sessioned")
    join(d, group, "a", topic)
    beat(d, group, "a", 3)
    beat(d, group, member, 1)
    describe(d, group)
    leave(line, 4, group, member)
    join(d, group, "a", topic)
    describe(d, group)
    line = d.coordinator(rubbish)
    member = admitted(line, 5, rubbish, Protocols=[{"Name": "range", "Metadata": b"\x07"}])
    sync(line, 5, rubbish, member, 1, {member: b"work"})
    join(d, rubbish, "a", topic)
    describe(d, rubbish)
    line.ask("DescribeGroups", 6, {"Groups": [rubbish]})


@scenario
def heartbeats_for_a_classic_group(d: Dialogue) -> None:
    """All but a first one, which would make it a group of the other kind."""
    topic = d.topic("one")
    group = f"{d.prefix}-classic"
    line = d.coordinator(group)
    member = admitted(line, 5, group, Protocols=[{"Name": "range", "Metadata": subscription(topic)}])
    for name in (member, "stranger"):
        for epoch in (1, 2, -1):
            beat(d, group, name, epoch)
        beat(d, group, name, -2, InstanceId="one")
    beat(d, group, "stranger", 0)
    line.ask("DescribeGroups", 6, {"Groups": [group]})
