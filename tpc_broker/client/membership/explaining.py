"""Errors of groups in words: which group, member and coordinator, what was asked, and the setting that would change it.
No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.client.errors import ClientError, RefusedError, UnreachableError
from tpc_broker.client.membership.assignors import ASSIGNORS
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from tpc_broker.client.membership.settings import GroupSettings

ELSEWHERE: Final = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
"""The coordinator is to be looked for anew."""
ROUND_UNDER_WAY: Final = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
FENCED: Final = {
    ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}  # fmt: skip
"""Who asks is no member (any more)."""


def is_tried_again(error: ClientError) -> bool:
    """Whether the same request may be granted a little later, without anybody changing anything."""
    if isinstance(error, RefusedError):
        return error.is_retriable or error.code in ROUND_UNDER_WAY
    return isinstance(error, UnreachableError)


def is_elsewhere(error: ClientError) -> bool:
    return isinstance(error, UnreachableError) or (isinstance(error, RefusedError) and error.code in ELSEWHERE)


def explained(error: ClientError, what: str, place: str, settings: GroupSettings) -> ClientError:
    """The same error with all that is known. ``what`` was being done, ``place`` is the coordinator's."""
    where = f"{what} (coordinator {place})" if place else what
    if isinstance(error, RefusedError):
        told = error.args[0].rpartition(": ")[0] if error.args else ""
        advice = _advice(error.code, settings)
        return RefusedError(error.code, ": ".join(part for part in (where, told, advice) if part))
    if isinstance(error, UnreachableError):
        return UnreachableError(f"{where}: {error}; retry_seconds says how long that is tried again")
    return ClientError(f"{where}: {error}")


def _advice(code: int, settings: GroupSettings) -> str:
    """What to change; "" where there is nothing to say."""
    instance = settings.instance_id
    texts: dict[int, str] = {
        ErrorCode.INVALID_SESSION_TIMEOUT: (
            f"session_seconds is {settings.session_seconds:g}, outside of what the broker allows: its "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        ),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
            f"its members share none of our assignors ({', '.join(settings.assignors or ASSIGNORS)}), or it is no "
            "group of consumers: see `assignors` and `group`"
        ),
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full: the broker's group.max.size or group.consumer.max.size",
        ErrorCode.FENCED_INSTANCE_ID: f"another member is instance_id={instance!r} now: each needs one of its own",
        ErrorCode.UNRELEASED_INSTANCE_ID: (
            f"another member is instance_id={instance!r} still: each needs one of its own, and one that was killed is "
            "released after its session (the group's consumer.session.timeout.ms)"
        ),
        ErrorCode.UNSUPPORTED_ASSIGNOR: (
            f"server_assignor is {settings.server_assignor!r}: the broker's group.consumer.assignors has the others"
        ),
        ErrorCode.GROUP_AUTHORIZATION_FAILED: f"READ of group {settings.group} is needed",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "READ and DESCRIBE of every topic are needed",
        ErrorCode.INVALID_GROUP_ID: f"{settings.group!r} is not the name of a group",
        ErrorCode.UNSUPPORTED_VERSION: f"the broker has no groups of protocol={settings.protocol!r}",
        ErrorCode.GROUP_ID_NOT_FOUND: (
            f"{settings.group} is no group of protocol={settings.protocol!r}: 'auto' takes what it is"
        ),
        ErrorCode.OFFSET_METADATA_TOO_LARGE: "the broker's offset.metadata.max.bytes is less than the metadata's size",
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "fewer partitions at once: the broker's bound is one batch of its log",
        ErrorCode.INVALID_REGULAR_EXPRESSION: "the broker understands RE2",
    }
    if code in FENCED:
        return texts.get(
            code,
            "the coordinator knows the member no more: no heartbeat came within session_seconds "
            f"({settings.session_seconds:g}), or one item took max_work_seconds ({settings.max_work_seconds:g})",
        )
    return texts.get(code, "")
