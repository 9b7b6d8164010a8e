"""What goes wrong in a client, by culprit. Every message names the topic, partition, offset and broker it is about, and
the setting that would change it where there is one.

`UnreachableError` the network, `AuthenticationError` who somebody is, `RefusedError` the broker's answer,
`UnsupportedError` the broker's age, `ClosedError` the program itself; the rest is about the data.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, Self

from tpc_broker.kafka import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Fate


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


class DeliveryError(ClientError):
    """A record was not delivered. ``fate``: UNKNOWN, it may be in the log; REFUSED, it is certainly not."""

    def __init__(self, text: str, where: TopicPartition, fate: Fate) -> None:
        ClientError.__init__(self, text)
        self.where = where
        self.fate = fate


class RecordRefusedError(DeliveryError, RefusedError):
    """The broker refused a record, or the batch it was in, for good."""

    def __init__(self, code: int, text: str, where: TopicPartition, fate: Fate) -> None:
        DeliveryError.__init__(self, text, where, fate)
        self.code = code
        self.is_retriable = False


class RecordTooLargeError(ClientError):
    """A record is larger than the client's memory for records: it was not taken."""


class UndeliveredError(ClientError):
    """Records that were handed over and not delivered, and of which nobody was told one by one.

    ``counts``: how many of each partition, with their fate.
    """

    def __init__(
        self, counts: Mapping[tuple[TopicPartition, Fate], int], reasons: Mapping[TopicPartition, str]
    ) -> None:
        self.counts = dict(counts)
        self.reasons = dict(reasons)
        rows = [f"{where}: {count} {fate.value}" for (where, fate), count in sorted(self.counts.items(), key=str)]
        text = f"{sum(self.counts.values())} records were not delivered ({'; '.join(rows)})"
        first = next(iter(self.reasons.values()), "")
        super().__init__(f"{text}: {first}" if first else text)


class PartitionsLostError(ClientError):
    """Partitions are another member's of the group by now: what was done with their records may be done twice."""


class UnknownTopicError(ClientError):
    """There is no such topic or partition."""


class TopicReplacedError(UnknownTopicError):
    """The topic of that name is another one: it was deleted and created again."""


class OffsetsMissingError(ClientError):
    """Offsets that were to be read are not in the log (any more)."""


class DamagedDataError(ClientError):
    """Bytes of the log that cannot be believed."""


class TransactionError(ClientError):
    """About one transaction, or its id."""

    def __init__(self, transactional_id: str, why: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(f"transactional id {transactional_id}: {why}")


class FencedError(TransactionError):
    """Another client has taken the transactional id over: this one may not use it again. Never tried again."""


class TransactionAbortedError(TransactionError):
    """Nothing of it is seen by who reads committed records: it is aborted, or can only be. The id can be used again."""


class TransactionInDoubtError(TransactionError):
    """The time was over before the coordinator said whether a commit was carried out: it is committed or aborted, as
    a whole.
    """


class TransactionInUseError(TransactionError):
    """A client has one transaction of an id at a time."""
