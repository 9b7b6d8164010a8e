"""What goes wrong in a client, by culprit. Every message names the topic, partition and offset it is about."""

from typing import Any

from tpc_broker.kafka import ErrorCode


class ClientError(Exception):
    """The family."""


class UnreachableError(ClientError):
    """No connection, or one that broke or fell silent: the request may be tried again."""


class AuthenticationError(ClientError):
    """One side could not prove who it is, or what the proof needs cannot be used. Never tried again."""


class RefusedError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, what: str) -> None:
        self.code = code
        known = code in ErrorCode._value2member_map_
        self.is_retriable = known and ErrorCode(code).is_retriable
        super().__init__(f"{what}: {ErrorCode(code).name if known else f'error {code}'}")


def refusal_of(answer: Any, what: str) -> RefusedError:
    """With the broker's own words, where it has any."""
    return RefusedError(answer.error_code, f"{what}: {answer.error_message}" if answer.error_message else what)


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
