"""What goes wrong in a client, by culprit. Every message names the topic, partition, offset and broker it is about, and
the setting that would change it where there is one.

`UnreachableError` the network, `AuthenticationError` who somebody is, `RefusedError` the broker's answer,
`UnsupportedError` the broker's age, `ClosedError` the program itself; the rest is about the data.
"""

import copy
from typing import Any, Final, Self

from tpc_broker.kafka import ErrorCode


class ClientError(Exception):
    """The family."""

    def again(self, more: str = "") -> Self:
        """The same, to be raised at another place: in several tasks, each with a traceback of its own."""
        made = copy.copy(self)
        made.args = (f"{self}; {more}" if more else str(self),)
        made.__cause__, made.__suppress_context__ = self.__cause__, self.__suppress_context__
        return made

    def __reduce__(self) -> Any:
        """For copies and pickles: a subclass takes other arguments than the text."""
        return _made_again, (type(self), str(self)), self.__dict__


def _made_again(kind: type[ClientError], text: str) -> ClientError:
    made = kind.__new__(kind)
    made.args = (text,)
    return made


class UnreachableError(ClientError):
    """No connection, or one that broke or fell silent: the request may be tried again."""


class AuthenticationError(ClientError):
    """One side could not prove who it is, or what the proof needs cannot be used. Never tried again."""


class UnsupportedError(ClientError):
    """The broker has no such API, or none of the versions of it that this client knows."""


class ClosedError(ClientError):
    """The client was closed before, or while it was used."""


class RefusedError(ClientError):
    """The broker answered with an error code. ``what`` was refused; where a setting may help, the text names it."""

    def __init__(self, code: int, what: str) -> None:
        self.code = code
        known = code in ErrorCode._value2member_map_
        self.is_retriable = known and ErrorCode(code).is_retriable
        text = f"{what}: {ErrorCode(code).name if known else f'error {code}'}"
        setting = _SETTINGS.get(code)
        super().__init__(text if setting is None else f"{text} ({setting})")


_SETTINGS: Final[dict[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the topic's segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "the topic's min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the topic's min.insync.replicas",
    ErrorCode.INVALID_TIMESTAMP: "the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the broker's group.max.size",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the broker's offset.metadata.max.bytes",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the broker's transaction.max.timeout.ms",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "an ACL of the topic for this user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "an ACL of the group for this user",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "an ACL of the transactional id for this user",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "an ACL of the cluster for this user",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "the quota of this user or client id",
}
"""By code, what would have to be set otherwise."""


def refusal_of(answer: Any, what: str) -> RefusedError:
    """With the broker's own words, where it has any."""
    return RefusedError(answer.error_code, f"{what}: {answer.error_message}" if answer.error_message else what)


class UnknownTopicError(ClientError):
    """There is no such topic or partition."""


class TopicReplacedError(UnknownTopicError):
    """The topic of that name is another one: it was deleted and created again."""


class OffsetsMissingError(ClientError):
    """Offsets that were to be read are not in the log (any more)."""


class DamagedDataError(ClientError):
    """Bytes of the log that cannot be believed."""
