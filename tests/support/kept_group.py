"""A group by KIP-848 as a directory of data holds it, and what is told of it when that is opened: a static
member and one with an expression, what they have in which epoch, and what they have committed in it.

Who looks is each of its members once: that they go on where they were, and commit, is part of what is told. Nothing of
what is stored of the group is another after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.support.broker_process import TpcBroker
from tests.support.raw_members import RawMember, RawMembers
from tests.support.waiting import eventually
from tpc_broker.error_codes import ErrorCode

GROUP: Final = "kept-consumers"
_FOR_A_WHILE = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
_NO_SUCH_GROUP = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}


def fill_kept_group(nodes: Sequence[TpcBroker], topic: str, partitions: int) -> None:
    members = RawMembers(nodes, GROUP, topic, partitions)
    members.members = [RawMember(1, instance="kept"), RawMember(2, regex=f"{topic[:-1]}.?")]
    members.wait_stable()
    eventually(lambda: _is_stable(members), "no other assignment is being made", not_yet=())
    members.close()


def _is_stable(members: RawMembers) -> bool:
    members.turn()
    return _described(members)["GroupState"] == "Stable"


def _described(asked: RawMembers) -> dict[str, Any]:
    return _answered(asked, "ConsumerGroupDescribe", 1, {"GroupIds": [GROUP]}, lambda answer: answer["Groups"][0])


def told_of_kept_group(nodes: Sequence[TpcBroker]) -> dict[str, Any] | None:
    """None where there is no such group, as in the data of an earlier release."""
    asked = RawMembers(nodes, GROUP, "", 0)
    try:
        group = _described(asked)
        if group["ErrorCode"] in _NO_SUCH_GROUP:
            return None
        members = {member["MemberId"]: _told_of(asked, member) for member in group["Members"]}
        fetched = {"GroupId": GROUP, "MemberId": None, "MemberEpoch": -1, "Topics": None}
        offsets = _answered(asked, "OffsetFetch", 9, {"Groups": [fetched]}, lambda answer: answer["Groups"][0])
        committed = {f"{topic['Name']}-{one['PartitionIndex']}": one["CommittedOffset"]
                     for topic in offsets["Topics"] for one in topic["Partitions"]}  # fmt: skip
        epochs = [group["GroupEpoch"], group["AssignmentEpoch"]]
        return {"state": group["GroupState"], "epochs": epochs, "members": members, "committed": committed}
    finally:
        asked.close()


def _answered(asked: RawMembers, api: str, version: int, values: dict[str, Any], part_of: Any) -> dict[str, Any]:
    """Once the coordinator is there."""

    def found() -> dict[str, Any] | None:
        answer = asked.ask(api, version, values)
        if answer is None or part_of(answer)["ErrorCode"] in _FOR_A_WHILE:
            asked.close()
            return None
        part: dict[str, Any] = part_of(answer)
        return part

    return eventually(found, f"{api} is answered", not_yet=())


def _told_of(asked: RawMembers, member: dict[str, Any]) -> dict[str, Any]:
    """What is described of it, and what it is answered: a heartbeat, and a commit in its epoch of what is committed."""
    who = {"GroupId": GROUP, "MemberId": member["MemberId"]}
    beat = {**who, "MemberEpoch": member["MemberEpoch"], "InstanceId": member["InstanceId"]}
    heard = _answered(asked, "ConsumerGroupHeartbeat", 1, beat, lambda answer: answer)
    has = {part["TopicName"]: part["Partitions"] for part in member["Assignment"]["TopicPartitions"]}
    told = {
        "instance": member["InstanceId"], "regex": member["SubscribedTopicRegex"], "has": has,
        "names": member["SubscribedTopicNames"], "epoch": member["MemberEpoch"],
        "heartbeat": [ErrorCode(heard["ErrorCode"]).name, heard["MemberEpoch"]],
    }  # fmt: skip
    if has:
        told["commits"] = _commits_again(asked, who, member, *next(iter(has.items())))
    return told


def _commits_again(
    asked: RawMembers, who: dict[str, Any], member: dict[str, Any], topic: str, indexes: list[int]
) -> list[str]:
    of_member = {**who, "MemberEpoch": member["MemberEpoch"],
                 "Topics": [{"Name": topic, "PartitionIndexes": indexes[:1]}]}  # fmt: skip
    fetched = _answered(asked, "OffsetFetch", 9, {"Groups": [of_member]}, lambda answer: answer["Groups"][0])
    if fetched["ErrorCode"]:
        return [ErrorCode(fetched["ErrorCode"]).name]
    (one,) = fetched["Topics"][0]["Partitions"]
    part = {"PartitionIndex": indexes[0], "CommittedOffset": one["CommittedOffset"]}
    commit = {**who, "GenerationIdOrMemberEpoch": member["MemberEpoch"], "GroupInstanceId": member["InstanceId"],
              "Topics": [{"Name": topic, "Partitions": [part]}]}  # fmt: skip
    answer = _answered(asked, "OffsetCommit", 9, commit, lambda answer: answer["Topics"][0]["Partitions"][0])
    return [ErrorCode(fetched["ErrorCode"]).name, ErrorCode(answer["ErrorCode"]).name]
