"""The classic group protocol and committed offsets."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.dialogue import Dialogue, Line, scenario, stable_versions
from tests.integration.differential.scenarios_data import STRANGE_ID


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """A consumer's subscription, version 0. Kafka reads it: rubbish makes its JoinGroup hang until the time-out."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + len(user_data).to_bytes(4, "big") + user_data


PROTOCOLS = [
    {"Name": "range", "Metadata": subscription(user_data=b"range")},
    {"Name": "roundrobin", "Metadata": subscription(user_data=b"round")},
]


def join(line: Line, version: int, group: str, member: str = "", **more: Any) -> dict[str, Any]:
    return line.ask("JoinGroup", version, joining(group, member, **more))


def joining(group: str, member: str = "", **more: Any) -> dict[str, Any]:
    return {
        "GroupId": group,
        "SessionTimeoutMs": 30_000,
        "RebalanceTimeoutMs": 30_000,
        "MemberId": member,
        "ProtocolType": "consumer",
        "Protocols": PROTOCOLS,
        **more,
    }


def syncing(group: str, member: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any) -> dict:
    return {
        "GroupId": group,
        "GenerationId": generation,
        "MemberId": member,
        "ProtocolType": "consumer",
        "ProtocolName": "range",
        "Assignments": [{"MemberId": one, "Assignment": raw} for one, raw in (assignments or {}).items()],
        **more,
    }


def sync(line: Line, version: int, *facts: Any, **more: Any) -> dict[str, Any]:
    return line.ask("SyncGroup", version, syncing(*facts, **more))


def heartbeat(line: Line, version: int, group: str, member: str, generation: int, **more: Any) -> None:
    line.ask("Heartbeat", version, {"GroupId": group, "MemberId": member, "GenerationId": generation, **more})


def leave(line: Line, version: int, group: str, *members: Any) -> None:
    if version < 3:
        line.ask("LeaveGroup", version, {"GroupId": group, "MemberId": members[0]})
        return
    named = [one if isinstance(one, dict) else {"MemberId": one} for one in members]
    line.ask("LeaveGroup", version, {"GroupId": group, "Members": named})


def commit(
    line: Line, version: int, group: str, topic: Any, *, generation: int = -1, member: str = "", **more: Any
) -> None:
    partition = {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedLeaderEpoch": -1, "CommittedMetadata": "note"}
    named = more.pop("named", {"Name": topic})
    partitions = [{**partition, **more.pop("partition", {})}]
    line.ask(
        "OffsetCommit",
        version,
        {
            "GroupId": group,
            "GenerationIdOrMemberEpoch": generation,
            "MemberId": member,
            "Topics": [{**named, "Partitions": partitions}],
            **more,
        },
    )


def admitted(line: Line, version: int, group: str, **more: Any) -> str:
    """Join until the group has a generation with this one member; returns the member id. Compared like all else."""
    member = join(line, version, group, **more)["MemberId"]
    if version >= 4 and not more.get("GroupInstanceId"):
        join(line, version, group, member, **more)
    return member


@scenario
def one_member_in_every_version(d: Dialogue) -> None:
    topic = d.topic("one", 3)
    for version in stable_versions("JoinGroup"):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        member = admitted(line, version, group)
        sync_version = min(version, 5)
        heartbeat(line, min(version, 4), group, member, 1)
        sync(line, sync_version, group, member, 1, {member: b"assigned"})
        sync(line, sync_version, group, member, 1)
        heartbeat(line, min(version, 4), group, member, 1)
        commit(line, max(2, min(version, 9)), group, topic, generation=1, member=member)
        line.ask("DescribeGroups", min(version, 6), {"Groups": [group]})
        d.ask_every_broker("ListGroups", min(version, 5), {}, "Groups")
        join(line, version, group, member)
        heartbeat(line, min(version, 4), group, member, 1)
        heartbeat(line, min(version, 4), group, member, 2)
        leave(line, min(version, 5), group, member)
        heartbeat(line, min(version, 4), group, member, 2)
        line.ask("DescribeGroups", min(version, 6), {"Groups": [group]})


@scenario
def join_that_is_refused(d: Dialogue) -> None:
    for version in (0, 1, 3, 4, 5, 6, 7, 8, 9):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        join(line, version, "")
        join(line, version, group, "stranger")
        join(line, version, group, SessionTimeoutMs=10)
        join(line, version, group, SessionTimeoutMs=2_000_000)
        join(line, version, group, ProtocolType="")
        join(line, version, group, Protocols=[])
        join(line, version, group, SessionTimeoutMs=-1)
        line.ask("DescribeGroups", 5, {"Groups": [group]})
        member = admitted(line, version, group)
        join(line, version, group, member, ProtocolType="connect")
        join(line, version, group, ProtocolType="connect")
        join(line, version, group, Protocols=[{"Name": "other", "Metadata": subscription()}])
        join(line, version, group, "stranger")


@scenario
def member_ids_that_are_required(d: Dialogue) -> None:
    for version in range(4, 10):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        member = join(line, version, group)["MemberId"]
        d.until_described(group)
        line.ask("DescribeGroups", 5, {"Groups": [group]})
        heartbeat(line, 3, group, member, 0)
        heartbeat(line, 3, group, member, -1)
        sync(line, 3, group, member, 0)
        join(line, version, group, member)
        line.ask("DescribeGroups", 5, {"Groups": [group]})


@scenario
def wrong_generations_and_strangers(d: Dialogue) -> None:
    topic = d.topic("one")
    for version in range(6):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        beat = min(version, 4)
        heartbeat(line, beat, group, "stranger", 1)
        heartbeat(line, beat, "", "stranger", 1)
        sync(line, version, group, "stranger", 1)
        sync(line, version, "", "stranger", 1)
        leave(line, version, group, "stranger")
        leave(line, version, "", "stranger")
        member = admitted(line, 5, group)
        sync(line, version, group, member, 7)
        sync(line, version, group, member, 1, ProtocolType="connect")
        sync(line, version, group, member, 1, ProtocolName="other")
        sync(line, version, group, "stranger", 1)
        sync(line, version, group, member, 1, {member: b"a", "stranger": b"b"})
        heartbeat(line, beat, group, member, 7)
        heartbeat(line, beat, group, member, -1)
        heartbeat(line, beat, group, "stranger", 1)
        heartbeat(line, beat, group, "", 1)
        for offset_version in (2, 7, 8, 9):
            commit(line, offset_version, group, topic, generation=7, member=member)
            commit(line, offset_version, group, topic, generation=1, member="stranger")
            commit(line, offset_version, group, topic, generation=-1, member="")
            commit(line, offset_version, group, topic, generation=1, member=member)
        leave(line, version, group, "stranger")
        if version >= 3:
            leave(line, version, group, member, "stranger", member)
            leave(line, version, group)


@scenario
def three_members_rebalance(d: Dialogue) -> None:
    """Join, follow, share out, leave; the leader of the group assigns."""
    for version in (2, 5, 7, 9):
        group = f"{d.prefix}-g{version}"
        lines = [d.coordinator(group, name) for name in ("a", "b", "c")]
        sync_version = min(version, 5)
        first = admitted(lines[0], version, group)
        sync(lines[0], sync_version, group, first, 1, {first: b"all"})
        second = join(lines[1], version, group)["MemberId"] if version >= 4 else ""
        lines[1].send("JoinGroup", version, joining(group, second))
        d.until(lambda group=group, first=first: _beat_error(d, group, first, 1) == 27)
        heartbeat(lines[0], 3, group, first, 1)
        sync(lines[0], sync_version, group, first, 1)
        join(lines[0], version, group, first)
        second = lines[1].receive()["MemberId"]
        lines[1].send("SyncGroup", sync_version, syncing(group, second, 2))
        sync(lines[0], sync_version, group, first, 2, {first: b"half", second: b"other half"})
        lines[1].receive()
        line = lines[0]
        line.ask("DescribeGroups", 5, {"Groups": [group]})
        third = join(lines[2], version, group)["MemberId"] if version >= 4 else ""
        lines[2].send("JoinGroup", version, joining(group, third))
        d.until(lambda group=group, first=first: _beat_error(d, group, first, 2) == 27)
        lines[1].send("JoinGroup", version, joining(group, second))
        join(lines[0], version, group, first)
        lines[1].receive()
        third = lines[2].receive()["MemberId"]
        heartbeat(line, 3, group, third, 3)
        lines[1].send("SyncGroup", sync_version, syncing(group, second, 3))
        lines[2].send("SyncGroup", sync_version, syncing(group, third, 3))
        sync(lines[0], sync_version, group, first, 3, {first: b"1", second: b"2", third: b"3"})
        lines[1].receive()
        lines[2].receive()
        leave(lines[2], min(version, 5), group, third)
        heartbeat(line, 3, group, first, 3)
        lines[1].send("JoinGroup", version, joining(group, second))
        join(lines[0], version, group, first)
        lines[1].receive()
        line.ask("DescribeGroups", 5, {"Groups": [group]})
        leave(lines[0], min(version, 5), group, first)
        leave(lines[1], min(version, 5), group, second)
        line.ask("DescribeGroups", 5, {"Groups": [group]})


def _beat_error(d: Dialogue, group: str, member: str, generation: int) -> int:
    """A heartbeat outside the comparison: 27 says that a rebalance is under way."""
    return d.guide_coordinator(
        group, "Heartbeat", 3, {"GroupId": group, "MemberId": member, "GenerationId": generation}
    )["ErrorCode"]


@scenario
def static_members(d: Dialogue) -> None:
    for version in (5, 7, 9):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        first = join(line, version, group, GroupInstanceId="left")["MemberId"]
        sync(line, 5, group, first, 1, {first: b"all"}, GroupInstanceId="left")
        again = join(line, version, group, GroupInstanceId="left")["MemberId"]
        heartbeat(line, 4, group, first, 1, GroupInstanceId="left")
        heartbeat(line, 4, group, again, 1, GroupInstanceId="left")
        heartbeat(line, 4, group, again, 1, GroupInstanceId="other")
        heartbeat(line, 4, group, again, 1)
        sync(line, 5, group, first, 1, GroupInstanceId="left")
        sync(line, 5, group, again, 1, GroupInstanceId="left")
        join(line, version, group, first, GroupInstanceId="left")
        join(line, version, group, "stranger", GroupInstanceId="new")
        line.ask("DescribeGroups", 5, {"Groups": [group]})
        topic = d.topic(f"t{version}")
        commit(line, 8, group, topic, generation=1, member=first, GroupInstanceId="left")
        commit(line, 8, group, topic, generation=1, member=again, GroupInstanceId="left")
        leave(line, 4, group, {"MemberId": first, "GroupInstanceId": "left"})
        leave(line, 4, group, {"MemberId": "", "GroupInstanceId": "nobody"})
        leave(line, 4, group, {"MemberId": "", "GroupInstanceId": "left"})
        line.ask("DescribeGroups", 5, {"Groups": [group]})


@scenario
def commit_offsets(d: Dialogue) -> None:
    topic = d.topic("one", 3)
    for version in stable_versions("OffsetCommit"):
        group = f"{d.prefix}-g{version}"
        line = d.coordinator(group)
        named = {"TopicId": d.topic_id(topic)} if version >= 10 else {"Name": topic}
        commit(line, version, group, topic, named=named)
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 1, "CommittedMetadata": None})
        commit(
            line, version, group, topic, named=named, partition={"PartitionIndex": 2, "CommittedMetadata": "x" * 4096}
        )
        commit(
            line, version, group, topic, named=named, partition={"PartitionIndex": 2, "CommittedMetadata": "x" * 4097}
        )
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 0, "CommittedOffset": -1})
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 0, "CommittedOffset": -100})
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 0, "CommittedOffset": 10**15})
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 1, "CommittedLeaderEpoch": 3})
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": 9})
        commit(line, version, group, topic, named=named, partition={"PartitionIndex": -1})
        if version < 10:
            commit(line, version, group, f"{d.prefix}-absent")
            commit(line, version, group, "bad name")
        else:
            commit(line, version, group, "", named={"TopicId": STRANGE_ID})
        commit(d.coordinator(""), version, "", topic, named=named)
        commit(line, version, group, topic, named=named, generation=0)
        commit(line, version, group, topic, named=named, generation=3, member="stranger")
        new = f"{group}-new"
        commit(d.coordinator(new), version, new, topic, named=named, generation=3, member="stranger")
        line.ask("OffsetCommit", version, {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "Topics": []})
        d.coordinator(group).ask("OffsetFetch", 7, {"GroupId": group, "Topics": None})


@scenario
def fetch_offsets(d: Dialogue) -> None:
    topic = d.topic("one", 3)
    group = f"{d.prefix}-group"
    line = d.coordinator(group)
    for index in (0, 1):
        commit(line, 8, group, topic, partition={"PartitionIndex": index, "CommittedOffset": 10 + index})
    unknown = f"{d.prefix}-nobody"
    for version in range(1, 8):
        for asked in (
            [{"Name": topic, "PartitionIndexes": [0, 1, 2, 9]}],
            [{"Name": topic, "PartitionIndexes": []}],
            [{"Name": f"{d.prefix}-absent", "PartitionIndexes": [0]}],
            [],
            None,
        ):
            if asked is None and version < 2:
                continue
            line.ask("OffsetFetch", version, {"GroupId": group, "Topics": asked})
            d.coordinator(unknown).ask("OffsetFetch", version, {"GroupId": unknown, "Topics": asked})
        d.coordinator("").ask("OffsetFetch", version, {"GroupId": "", "Topics": []})
        if version == 7:
            line.ask("OffsetFetch", version, {"GroupId": group, "Topics": None, "RequireStable": True})
    for version in (8, 9, 10):
        named = {"TopicId": d.topic_id(topic)} if version >= 10 else {"Name": topic}
        strange = {"TopicId": STRANGE_ID} if version >= 10 else {"Name": f"{d.prefix}-absent"}
        for asked in (
            [{**named, "PartitionIndexes": [0, 1, 2, 9]}],
            [{**strange, "PartitionIndexes": [0]}],
            [{**strange, "PartitionIndexes": [0]}, {**named, "PartitionIndexes": [0]}],
            [],
            None,
        ):
            line.ask("OffsetFetch", version, {"Groups": [{"GroupId": group, "Topics": asked}]})
            d.coordinator(unknown).ask("OffsetFetch", version, {"Groups": [{"GroupId": unknown, "Topics": asked}]})
        line.ask("OffsetFetch", version, {"Groups": []})
        d.coordinator("").ask("OffsetFetch", version, {"Groups": [{"GroupId": "", "Topics": None}]})
        line.ask("OffsetFetch", version, {"Groups": [{"GroupId": group, "Topics": None}] * 2, "RequireStable": True})
        if version >= 9:
            member = {"MemberId": "stranger", "MemberEpoch": 3}
            line.ask("OffsetFetch", version, {"Groups": [{"GroupId": group, **member, "Topics": None}]})
            d.coordinator(unknown).ask(
                "OffsetFetch", version, {"Groups": [{"GroupId": unknown, **member, "Topics": None}]}
            )


@scenario
def list_groups(d: Dialogue) -> None:
    topic = d.topic("one")
    group = f"{d.prefix}-committed"
    commit(d.coordinator(group), 8, group, topic)
    for version in stable_versions("ListGroups"):
        d.ask_every_broker("ListGroups", version, {}, "Groups")
        if version >= 4:
            for states in (["Empty"], ["Stable"], ["empty"], ["NoSuchState"], ["Empty", "Dead"]):
                d.ask_every_broker("ListGroups", version, {"StatesFilter": states}, "Groups")
        if version >= 5:
            for types in (["classic"], ["Classic"], ["consumer"], ["nothing"]):
                d.ask_every_broker("ListGroups", version, {"TypesFilter": types}, "Groups")


@scenario
def describe_groups(d: Dialogue) -> None:
    topic = d.topic("one")
    group = f"{d.prefix}-committed"
    line = d.coordinator(group)
    commit(line, 8, group, topic)
    for version in stable_versions("DescribeGroups"):
        line.ask("DescribeGroups", version, {"Groups": [group]})
        line.ask("DescribeGroups", version, {"Groups": [group, group]})
        absent = f"{d.prefix}-nobody"
        d.coordinator(absent).ask("DescribeGroups", version, {"Groups": [absent]})
        line.ask("DescribeGroups", version, {"Groups": []})
        d.coordinator("").ask("DescribeGroups", version, {"Groups": [""]})
        line.ask("DescribeGroups", version, {"Groups": [group], "IncludeAuthorizedOperations": True})


@scenario
def delete_groups(d: Dialogue) -> None:
    topic = d.topic("one")
    for version in stable_versions("DeleteGroups"):
        group, busy = f"{d.prefix}-g{version}", f"{d.prefix}-busy{version}"
        line = d.coordinator(group)
        commit(line, 8, group, topic)
        line.ask("DeleteGroups", version, {"GroupsNames": [group]})
        line.ask("DeleteGroups", version, {"GroupsNames": [group]})
        line.ask("OffsetFetch", 5, {"GroupId": group, "Topics": None})
        line.ask("DeleteGroups", version, {"GroupsNames": []})
        d.coordinator("").ask("DeleteGroups", version, {"GroupsNames": [""]})
        admitted(d.coordinator(busy), 5, busy)
        d.coordinator(busy).ask("DeleteGroups", version, {"GroupsNames": [busy]})
        d.coordinator(busy).ask("DescribeGroups", 5, {"Groups": [busy]})


@scenario
def delete_offsets(d: Dialogue) -> None:
    topic = d.topic("one", 3)
    group, busy, absent = f"{d.prefix}-idle", f"{d.prefix}-busy", f"{d.prefix}-nobody"

    def delete(name: str, full: str, *partitions: int) -> None:
        topics = [{"Name": full, "Partitions": [{"PartitionIndex": index} for index in partitions]}]
        d.coordinator(name).ask("OffsetDelete", 0, {"GroupId": name, "Topics": topics})

    line = d.coordinator(group)
    for index in (0, 1):
        commit(line, 8, group, topic, partition={"PartitionIndex": index})
    delete(group, topic, 0, 2, 9)
    line.ask("OffsetFetch", 5, {"GroupId": group, "Topics": None})
    delete(group, f"{d.prefix}-absent", 0)
    delete(absent, topic, 0)
    delete("", topic, 0)
    line.ask("OffsetDelete", 0, {"GroupId": group, "Topics": []})
    delete(group, topic)
    busy_line = d.coordinator(busy)
    member = admitted(busy_line, 5, busy)
    sync(busy_line, 3, busy, member, 1, {member: b"x"})
    commit(busy_line, 7, busy, topic, generation=1, member=member)
    delete(busy, topic, 0)
    other = f"{d.prefix}-subscribed"
    other_line = d.coordinator(other)
    protocols = [{"Name": "range", "Metadata": subscription(topic)}]
    member = admitted(other_line, 5, other, Protocols=protocols)
    sync(other_line, 3, other, member, 1, {member: b"x"})
    commit(other_line, 7, other, topic, generation=1, member=member)
    delete(other, topic, 0)
    delete(other, f"{d.prefix}-elsewhere", 0)


@scenario
def offsets_of_a_deleted_topic(d: Dialogue) -> None:
    topic = d.topic("one")
    group = f"{d.prefix}-group"
    line = d.coordinator(group)
    commit(line, 8, group, topic)
    d.anywhere.ask("DeleteTopics", 5, {"TopicNames": [topic], "TimeoutMs": 10_000})
    asked = {"GroupId": group, "Topics": None}
    d.until(lambda: not d.guide_coordinator(group, "OffsetFetch", 5, asked)["Topics"])
    line.ask("OffsetFetch", 5, {"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": [0]}]})


@scenario
def groups_of_another_kind(d: Dialogue) -> None:
    """Not a consumer's group: a Connect cluster's, with other protocols."""
    group = f"{d.prefix}-connect"
    line = d.coordinator(group)
    member = admitted(line, 5, group, ProtocolType="connect", Protocols=[{"Name": "sessioned", "Metadata": b"\x01"}])
    sync(line, 5, group, member, 1, {member: b"work"}, ProtocolType="connect", ProtocolName="sessioned")
    line.ask("DescribeGroups", 5, {"Groups": [group]})
    d.ask_every_broker("ListGroups", 4, {}, "Groups")
    join(line, 5, group, member, ProtocolType="consumer")
    leave(line, 4, group, member)
    line.ask("DescribeGroups", 5, {"Groups": [group]})
