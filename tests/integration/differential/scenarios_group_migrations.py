"""Groups that go from the classic protocol to KIP-848 and back while members work, seen from both kinds of member."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.consumer_members import (
    assigned_at_once,
    beat,
    beat_until,
    describe,
    is_told,
    join,
    owned,
    scenario,
    setting,
    until_known,
)
from tests.integration.differential.dialogue import Dialogue, Line
from tests.integration.differential.scenarios_groups import (
    commit,
    heartbeat,
    joining,
    leave,
    subscription,
    sync,
    syncing,
)
from tests.integration.differential.scenarios_groups import join as classic_join

JOIN, SYNC = 9, 5


def assignment(topic: str, *indexes: int) -> bytes:
    """As a leader of a classic group sends it, version 0."""
    listed = b"".join(index.to_bytes(4, "big") for index in indexes)
    named = len(topic).to_bytes(2, "big") + topic.encode() + len(indexes).to_bytes(4, "big") + listed
    return b"\0\0\0\0\0\1" + named + b"\xff\xff\xff\xff"


def protocols(*topics: str) -> list[dict[str, Any]]:
    """What a member of the classic kind offers."""
    return [{"Name": name, "Metadata": subscription(*topics)} for name in ("range", "roundrobin")]


def _classic_group(
    d: Dialogue, *owners: str, partitions_count: int = 4
) -> tuple[str, str, dict[str, str]]:
    """A topic, and a stable classic group whose first owner has all of it; or two, who have a partition each. Member
    ids are the broker's, so that the share of one must not depend on which id is the smaller one.
    """
    group = f"{d.prefix}-group"
    topic = d.topic("one", partitions_count)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    first = owners[0]
    line = d.coordinator(group, first)
    members = {first: _admitted(line, group, topic)}
    sync(line, SYNC, group, members[first], 1, {members[first]: assignment(topic, *range(partitions_count))})
    if len(owners) == 1:
        return topic, group, members
    second = owners[1]
    other = d.coordinator(group, second)
    members[second] = classic_join(other, JOIN, group, Protocols=protocols(topic))["MemberId"]
    other.send("JoinGroup", JOIN, joining(group, members[second], Protocols=protocols(topic)))
    until_rebalancing(d, group, members[first], 1)
    classic_join(line, JOIN, group, members[first], Protocols=protocols(topic))
    other.receive()
    shares = {members[first]: assignment(topic, 0), members[second]: assignment(topic, 1)}
    sync(line, SYNC, group, members[first], 2, shares)
    sync(other, SYNC, group, members[second], 2)
    return topic, group, members


def _admitted(line: Line, group: str, topic: str) -> str:
    member = classic_join(line, JOIN, group, Protocols=protocols(topic))["MemberId"]
    classic_join(line, JOIN, group, member, Protocols=protocols(topic))
    return member


def until_rebalancing(d: Dialogue, group: str, member: str, generation: int) -> None:
    asked = {"GroupId": group, "MemberId": member, "GenerationId": generation}
    d.until(lambda: d.guide_coordinator(group, "Heartbeat", 4, asked)["ErrorCode"] == 27)


def describe_both(d: Dialogue, group: str) -> None:
    describe(d, group)
    d.coordinator(group).ask("DescribeGroups", 6, {"Groups": [group]})


# ---- there and back --------------------------------------------------------------------------------------------------


@scenario
def one_classic_member_there_and_back(d: Dialogue) -> None:
    topic, group, members = _classic_group(d, "old")
    old, line = members["old"], d.coordinator(group, "old")
    commit(line, 8, group, topic, generation=1, member=old)
    join(d, group, "new", topic)
    describe_both(d, group)
    d.ask_every_broker("ListGroups", 5, {}, "Groups")
    heartbeat(line, 4, group, old, 2)
    heartbeat(line, 4, group, old, 0)
    heartbeat(line, 4, group, old, 1)
    sync(line, SYNC, group, old, 1)
    commit(line, 8, group, topic, generation=1, member=old)
    beat(d, group, old, 1)
    beat(d, group, "new", 2, TopicPartitions=[])
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    describe_both(d, group)
    beat(d, group, "new", 2)
    heartbeat(line, 4, group, old, 2)
    sync(line, SYNC, group, old, 1)
    sync(line, SYNC, group, old, 2, ProtocolName="roundrobin")
    sync(line, SYNC, group, old, 2, ProtocolType="connect")
    sync(line, SYNC, group, old, 2)
    sync(line, SYNC, group, old, 2, {old: b"ignored"})
    heartbeat(line, 4, group, old, 2)
    heartbeat(line, 4, group, old, 1)
    for version, generation in ((8, 2), (8, 1), (9, 2), (9, 1)):
        commit(line, version, group, topic, generation=generation, member=old)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    describe_both(d, group)
    beat(d, group, "new", -1)
    describe_both(d, group)
    d.ask_every_broker("ListGroups", 5, {}, "Groups")
    heartbeat(line, 4, group, old, 2)
    commit(line, 8, group, topic, generation=2, member=old)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    sync(line, SYNC, group, old, 3, {old: assignment(topic, 0, 1, 2, 3)})
    describe_both(d, group)
    line.ask("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}]})


@scenario
def two_classic_members_and_a_new_one(d: Dialogue) -> None:
    """Both are told by their heartbeats to join again, and share what is left."""
    topic, group, members = _classic_group(d, "one", "two", partitions_count=2)
    one, two = members["one"], members["two"]
    first, second = d.coordinator(group, "one"), d.coordinator(group, "two")
    join(d, group, "new", topic)
    describe(d, group)
    heartbeat(first, 4, group, one, 2)
    heartbeat(second, 4, group, two, 2)
    for line, member in ((first, one), (second, two)):
        generation = classic_join(line, JOIN, group, member, Protocols=protocols(topic))["GenerationId"]
        sync(line, SYNC, group, member, generation)
        heartbeat(line, 4, group, member, generation)
        beat(d, group, "new", 3)
        describe(d, group)
    leave(first, 5, group, one)
    describe(d, group)
    heartbeat(second, 4, group, two, 3)
    sync(second, SYNC, group, two, 3)
    beat(d, group, "new", 3)
    heartbeat(second, 4, group, two, 3)
    sync(second, SYNC, group, two, 3)
    generation = classic_join(second, JOIN, group, two, Protocols=protocols(topic))["GenerationId"]
    sync(second, SYNC, group, two, generation)
    describe(d, group)
    leave(second, 5, group, two)
    beat(d, group, "new", generation)
    describe(d, group)
    beat(d, group, "new", -1)
    describe(d, group)


@scenario
def new_members_of_both_kinds_in_a_mixed_group(d: Dialogue) -> None:
    topic, group, members = _classic_group(d, "old", partitions_count=1)
    other = d.topic("other")
    until_known(d, group, other)
    line, extra = d.coordinator(group, "old"), d.coordinator(group, "extra")
    join(d, group, "new", topic)
    asked = classic_join(extra, JOIN, group, Protocols=protocols(topic))["MemberId"]
    classic_join(extra, JOIN, group, "stranger", Protocols=[{"Name": "sticky", "Metadata": subscription(topic)}])
    classic_join(extra, JOIN, group, asked, Protocols=[{"Name": "sticky", "Metadata": subscription(topic)}])
    classic_join(extra, JOIN, group, asked, Protocols=[{"Name": "range", "Metadata": b"\x07"}])
    generation = classic_join(extra, JOIN, group, asked, Protocols=protocols(topic, other))["GenerationId"]
    sync(extra, SYNC, group, asked, generation)
    describe(d, group)
    classic_join(line, JOIN, group, members["old"], Protocols=protocols(other))
    describe(d, group)
    d.coordinator(group).ask("DescribeGroups", 6, {"Groups": [group]})
    without_id = classic_join(extra, 3, group, Protocols=protocols(topic))
    leave(extra, 5, group, without_id["MemberId"], asked)
    describe(d, group)


@scenario
def static_members_change_their_kind(d: Dialogue) -> None:
    """The instance of a classic member comes back as a new one, and back again."""
    group = f"{d.prefix}-group"
    topic = d.topic("one", 4)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    line = d.coordinator(group)
    one = {"GroupInstanceId": "one"}
    old = classic_join(line, JOIN, group, Protocols=protocols(topic), **one)["MemberId"]
    sync(line, SYNC, group, old, 1, {old: assignment(topic, 0, 1, 2, 3)}, **one)
    join(d, group, "n", topic, InstanceId="one")
    describe_both(d, group)
    heartbeat(line, 4, group, old, 1, **one)
    heartbeat(line, 4, group, old, 1)
    classic_join(line, JOIN, group, Protocols=protocols(topic), **one)
    beat(d, group, "n", -2, InstanceId="one")
    describe_both(d, group)
    join(d, group, "other", topic)
    again = classic_join(line, JOIN, group, Protocols=protocols(topic), **one)
    describe_both(d, group)
    sync(line, SYNC, group, again["MemberId"], again["GenerationId"], **one)
    heartbeat(line, 4, group, again["MemberId"], again["GenerationId"], **one)
    classic_join(line, JOIN, group, Protocols=protocols(topic), **one)
    describe(d, group)
    leave(line, 5, group, {"MemberId": "", "GroupInstanceId": "one"})
    describe_both(d, group)
    beat(d, group, "other", -1)
    describe_both(d, group)


@scenario
def last_new_member_leaves_for_a_while(d: Dialogue) -> None:
    """A static member that says -2 is still one of the group, which stays what it is."""
    topic, group, members = _classic_group(d, "old")
    line = d.coordinator(group, "old")
    join(d, group, "new", topic, InstanceId="one")
    generation = classic_join(line, JOIN, group, members["old"], Protocols=protocols(topic))["GenerationId"]
    sync(line, SYNC, group, members["old"], generation)
    beat(d, group, "new", -2, InstanceId="one")
    describe_both(d, group)
    join(d, group, "newer", topic, InstanceId="one")
    describe_both(d, group)
    leave(line, 5, group, {"MemberId": "", "GroupInstanceId": "one"})
    describe_both(d, group)
    heartbeat(line, 4, group, members["old"], generation)


# ---- while the classic group is at work ------------------------------------------------------------------------------


@scenario
def new_member_while_classic_ones_join(d: Dialogue) -> None:
    """A JoinGroup that waits for the others is answered when the group changes its kind."""
    topic, group, members = _classic_group(d, "one", partitions_count=1)
    second = d.coordinator(group, "two")
    asked = classic_join(second, JOIN, group, Protocols=protocols(topic))["MemberId"]
    second.send("JoinGroup", JOIN, joining(group, asked, Protocols=protocols(topic)))
    until_rebalancing(d, group, members["one"], 1)
    join(d, group, "new", topic)
    second.receive()
    describe_both(d, group)
    heartbeat(d.coordinator(group, "one"), 4, group, members["one"], 1)
    classic_join(second, JOIN, group, asked, Protocols=protocols(topic))
    describe(d, group)


@scenario
def new_member_while_classic_ones_sync(d: Dialogue) -> None:
    topic, group, members = _classic_group(d, "one", partitions_count=1)
    first, second = d.coordinator(group, "one"), d.coordinator(group, "two")
    asked = classic_join(second, JOIN, group, Protocols=protocols(topic))["MemberId"]
    second.send("JoinGroup", JOIN, joining(group, asked, Protocols=protocols(topic)))
    until_rebalancing(d, group, members["one"], 1)
    classic_join(first, JOIN, group, members["one"], Protocols=protocols(topic))
    second.receive()
    second.send("SyncGroup", SYNC, syncing(group, asked, 2))
    join(d, group, "new", topic)
    second.receive()
    sync(first, SYNC, group, members["one"], 2, {members["one"]: assignment(topic, 0)})
    describe_both(d, group)


@scenario
def classic_members_that_are_asked_for_an_id_only(d: Dialogue) -> None:
    """A group in which nobody has joined yet is empty to a new member."""
    group = f"{d.prefix}-group"
    topic = d.topic("one")
    assigned_at_once(d, group)
    until_known(d, group, topic)
    line = d.coordinator(group)
    pending = classic_join(line, JOIN, group, Protocols=protocols(topic))["MemberId"]
    d.until_described(group)
    join(d, group, "new", topic)
    describe_both(d, group)
    classic_join(line, JOIN, group, pending, Protocols=protocols(topic))
    describe(d, group)


@scenario
def classic_members_that_give_back_late(d: Dialogue) -> None:
    """What a classic member owns, a new one gets when the classic one has synced."""
    topic, group, members = _classic_group(d, "old", partitions_count=2)
    old, line = members["old"], d.coordinator(group, "old")
    join(d, group, "new", topic)
    beat(d, group, "new", 2)
    heartbeat(line, 4, group, old, 1)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    told = beat_until(d, is_told, group, "new", 2)
    beat(d, group, "new", 2, TopicPartitions=owned(told))
    sync(line, SYNC, group, old, 2)
    join(d, group, "newer", topic)
    heartbeat(line, 4, group, old, 2)
    beat(d, group, "newer", 3)
    beat(d, group, "new", 2)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    sync(line, SYNC, group, old, 3)
    describe(d, group)


@scenario
def classic_members_that_say_what_they_own(d: Dialogue) -> None:
    """A cooperative member keeps its partitions over a JoinGroup, until it says that it has given some back."""
    topic, group, members = _classic_group(d, "old")
    old, line = members["old"], d.coordinator(group, "old")
    join(d, group, "new", topic)
    generation = 1
    for held in ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (0, 1)):
        heartbeat(line, 4, group, old, generation)
        generation = classic_join(line, JOIN, group, old, Protocols=_owning(topic, *held))["GenerationId"]
        describe(d, group)
        sync(line, SYNC, group, old, generation)
        beat(d, group, "new", 2)
    heartbeat(line, 4, group, old, generation)


def _owning(topic: str, *indexes: int) -> list[dict[str, Any]]:
    """A subscription of version 1, which has the partitions that are owned."""
    listed = b"".join(index.to_bytes(4, "big") for index in indexes)
    name = len(topic).to_bytes(2, "big") + topic.encode()
    one = b"\0\0\0\1" + name
    metadata = b"\0\1" + one + b"\xff\xff\xff\xff" + one + len(indexes).to_bytes(4, "big") + listed
    return [{"Name": "range", "Metadata": metadata}]


@scenario
def commits_of_a_classic_member_in_a_mixed_group(d: Dialogue) -> None:
    topic, group, members = _classic_group(d, "old")
    old, line = members["old"], d.coordinator(group, "old")

    def commit_all(generation: int) -> None:
        for version in (8, 9):
            for index in (0, 3):
                at = {"PartitionIndex": index}
                commit(line, version, group, topic, generation=generation, member=old, partition=at)

    join(d, group, "new", topic)
    for generation in (0, 1, 2):
        commit_all(generation)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))
    for generation in (0, 1, 2, 3):
        commit_all(generation)
    commit(line, 8, group, topic, generation=-1, member="")
    commit(line, 8, group, topic, generation=2, member="stranger")


# ---- time ------------------------------------------------------------------------------------------------------------


@scenario
def classic_member_that_does_not_join_again(d: Dialogue) -> None:
    """It is out when its rebalance time-out has passed since it was told."""
    group = f"{d.prefix}-group"
    topic = d.topic("one", 2)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    line = d.coordinator(group, "old")
    short = {"RebalanceTimeoutMs": 1500, "Protocols": protocols(topic)}
    old = classic_join(line, JOIN, group, **short)["MemberId"]
    classic_join(line, JOIN, group, old, **short)
    sync(line, SYNC, group, old, 1, {old: assignment(topic, 0, 1)})
    join(d, group, "new", topic)
    heartbeat(line, 4, group, old, 1)
    asked = {"GroupId": group, "MemberId": old, "GenerationId": 1}
    d.until(lambda: d.guide_coordinator(group, "Heartbeat", 4, asked)["ErrorCode"] == 25)
    heartbeat(line, 4, group, old, 1)
    describe_both(d, group)
    beat(d, group, "new", 2)


@scenario
def classic_member_that_does_not_sync(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    topic = d.topic("one", 2)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    join(d, group, "new", topic)
    line = d.coordinator(group, "old")
    short = {"RebalanceTimeoutMs": 1500, "Protocols": protocols(topic)}
    old = classic_join(line, JOIN, group, **short)["MemberId"]
    generation = classic_join(line, JOIN, group, old, **short)["GenerationId"]
    describe(d, group)
    asked = {"GroupId": group, "MemberId": old, "GenerationId": generation}
    d.until(lambda: d.guide_coordinator(group, "Heartbeat", 4, asked)["ErrorCode"] == 25)
    describe_both(d, group)


def _classic_state(d: Dialogue, group: str) -> str:
    [found] = d.guide_coordinator(group, "DescribeGroups", 5, {"Groups": [group]})["Groups"]
    return found["GroupState"]


@scenario
def last_new_member_whose_session_ends(d: Dialogue) -> None:
    topic, group, members = _classic_group(d, "old")
    old, line = members["old"], d.coordinator(group, "old")
    setting(d, group, "consumer.heartbeat.interval.ms", "400")
    setting(d, group, "consumer.session.timeout.ms", "1000")
    join(d, group, "new", topic)
    d.until(lambda: _classic_state(d, group) == "PreparingRebalance")
    describe_both(d, group)
    heartbeat(line, 4, group, old, 1)
    classic_join(line, JOIN, group, old, Protocols=protocols(topic))


@scenario
def classic_members_at_a_full_group(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    topic = d.topic("one")
    assigned_at_once(d, group)
    until_known(d, group, topic)
    for member in "abcd":
        join(d, group, member, topic)
    line = d.coordinator(group)
    classic_join(line, JOIN, group, Protocols=protocols(topic))
    classic_join(line, JOIN, group, "stranger", Protocols=protocols(topic))
    classic_join(line, JOIN, group, Protocols=protocols(topic), GroupInstanceId="one")
    classic_join(line, JOIN, group, "a", Protocols=protocols(topic))
    describe(d, group)
