"""What is wrong with a heartbeat by itself, whoever sends it to whatever group: in Kafka's order and words.

What Kafka does not bound is bounded here, before anything is kept of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.consumer.messages import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from tpc_broker.coordinator.consumer.regexes import PATTERN_BYTES_MAX, fault_of
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat

ID_CHARACTERS_MAX: Final = 1_000
"""Of each id, rack and assignor. Kafka's bound is that of any string, 32,767 bytes; its clients' ids have 22."""
NAMES_MAX: Final = 10_000
"""Topics that a member subscribes to by name."""
OWNED_PARTITIONS_MAX: Final = 100_000
_NOT_GIVEN: Final = -1

Fault = tuple[ErrorCode, str]


def fault_of_heartbeat(request: ConsumerHeartbeat, assignors: Sequence[str]) -> Fault | None:
    """None: it is sound. `assignors`: those that there are here."""
    text = _fault_of_ids(request) or _fault_at_its_epoch(request) or _fault_of_sizes(request)
    if text is not None:
        return ErrorCode.INVALID_REQUEST, text
    if request.assignor is not None and request.assignor not in assignors:
        known = ", ".join(assignors)
        text = f"ServerAssignor {request.assignor} is not supported. Supported assignors: {known}."
        return ErrorCode.UNSUPPORTED_ASSIGNOR, text
    return None


def fault_of_expression(pattern: str) -> str | None:
    """In words, what is wrong with an expression. Of a heartbeat it is asked last, of one that its group takes."""
    why = fault_of(pattern)
    if why is None:
        return None
    return f"SubscribedTopicRegex `{pattern[:PATTERN_BYTES_MAX]}` is not a valid regular expression: {why}."


def _fault_of_ids(request: ConsumerHeartbeat) -> str | None:
    needs_member_id = request.requires_member_id or request.member_epoch > JOIN_EPOCH
    if (needs_member_id or request.member_epoch == LEAVE_EPOCH) and _is_blank(request.member_id):
        return "MemberId can't be empty."
    for name, text in (
        ("GroupId", request.group_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id)
    ):  # fmt: skip
        if text is not None and _is_blank(text):
            return f"{name} can't be empty."
    return None


def _fault_at_its_epoch(request: ConsumerHeartbeat) -> str | None:
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == _NOT_GIVEN:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.owned is None or request.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if request.topic_names is None and request.topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            return "InstanceId can't be null."
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        return f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to {STATIC_LEAVE_EPOCH}."
    return None


def _fault_of_sizes(request: ConsumerHeartbeat) -> str | None:
    texts = {
        "GroupId": request.group_id, "MemberId": request.member_id, "InstanceId": request.instance_id,
        "RackId": request.rack_id, "ServerAssignor": request.assignor,
    }  # fmt: skip
    for name, text in texts.items():
        if text is not None and len(text) > ID_CHARACTERS_MAX:
            return f"{name} is longer than {ID_CHARACTERS_MAX} characters."
    if request.topic_names is not None and len(request.topic_names) > NAMES_MAX:
        return f"SubscribedTopicNames has more than {NAMES_MAX} names."
    if request.owned is not None and sum(map(len, request.owned.values())) > OWNED_PARTITIONS_MAX:
        return f"TopicPartitions has more than {OWNED_PARTITIONS_MAX} partitions."
    return None


def _is_blank(text: str) -> bool:
    """As Java's `trim` has it."""
    return all(character <= " " for character in text)
