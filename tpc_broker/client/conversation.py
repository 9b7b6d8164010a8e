"""One connection's requests and answers, as a machine without I/O.

Bytes to send come out of `request`, whole frames (without their size prefix) go into `answer`. `introduction` says what
is sent first. Once `agree` was given the broker's ApiVersions answer, each API is used in the highest version that both
sides and `VERSION_MAX` know.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tpc_broker.client.errors import ClientError, RefusedError, UnsupportedError
from tpc_broker.kafka import ApiKey, ErrorCode, api, protocol

CLIENT_SOFTWARE: Final = ("tpc-broker", "1")
HELLO_VERSION: Final = 3
"""Of the first request, of which nothing is agreed yet: every broker since Kafka 2.4 has it."""
VERSION_MAX: Final = {
    ApiKey.API_VERSIONS: 4,
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 16,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 1,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.END_TXN: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.DELETE_GROUPS: 3,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CLUSTER: 2,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 1,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.UPDATE_FEATURES: 1,
    ApiKey.WRITE_TXN_MARKERS: 2,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 1,
}
"""The newest version of each API whose meaning this client knows."""
_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
"""Behind the correlation id of an answer to ApiVersions: the broker knows lower versions only, and says so in version 0
(KIP-511).
"""


class Request:
    """A question to a broker until its answer has come, and the only note of it. Who asks often has a class of its own,
    which knows how it is written and what becomes of the answer.
    """

    __slots__ = ("correlation_id", "key", "message", "version", "wait_seconds")

    correlation_id: int
    """From when it is sent."""
    wait_seconds: float
    """A channel's: how long the broker is asked to wait by itself."""

    def __init__(self, key: ApiKey, version: int, message: Any) -> None:
        self.key = key
        self.version = version
        self.message = message
        """Until it is sent."""

    def frame(self, correlation_id: int, client_id: str) -> list[Any]:
        """The buffers to send: called once."""
        message, self.message = self.message, None
        return protocol.encode_request_frame(self.key, self.version, correlation_id, client_id, message)

    def read(self, frame: Any) -> Any:
        """The message in the frame of its answer."""
        version = self.version
        if self.key == ApiKey.API_VERSIONS and bytes(frame[4:6]) == _UNSUPPORTED:
            version = 0
        found, message = protocol.decode_response_frame(self.key, version, frame)
        if found != self.correlation_id:
            raise ClientError(f"the answer to request {found} came for request {self.correlation_id}")
        return message

    def answered(self, given: Any) -> None:
        """What came, or the `ClientError` that came in its place: told by a channel, once. It must not raise."""


class Conversation:
    """Requests in flight are answered in order; anything else is an error and ends the connection."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._versions: dict[int, tuple[int, int]] = {}
        self._chosen: dict[int, int] = {}
        self.in_flight: deque[Request] = deque()
        """In the order in which they are answered."""
        self._next_correlation_id = 0

    def agree(self, response: Any) -> None:
        """Take the broker's ApiVersions answer."""
        if response.error_code:
            raise RefusedError(response.error_code, "ApiVersions")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        self._chosen.clear()

    def knows(self, key: ApiKey) -> bool:
        """Whether the broker said that it has this API."""
        return key in self._versions

    def version(self, key: ApiKey) -> int:
        """The version in which an API is used on this connection."""
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._choose(key)
        return chosen

    def _choose(self, key: ApiKey) -> int:
        if key not in VERSION_MAX:
            raise UnsupportedError(f"this client does not speak {api(key).name}")
        first, last = self._versions.get(key, (1, 0))
        chosen = min(last, VERSION_MAX[key], api(key).last_version)
        if chosen < max(first, api(key).first_version):
            raise UnsupportedError(f"the broker and this client have no version of {api(key).name} in common")
        return chosen

    def prepare(self, key: ApiKey, version: int, make: Callable[[bytes], Any]) -> protocol.BlobRequest:
        """For requests that differ in a blob alone; ``make`` gives the message for one."""
        return protocol.BlobRequest(key, version, self._client_id, make)

    def request(self, request: Request) -> list[Any]:
        """The buffers of a request to send; its answer is expected after those of the earlier ones."""
        correlation_id = request.correlation_id = self._next_correlation_id
        buffers = request.frame(correlation_id, self._client_id)
        self._next_correlation_id = correlation_id + 1 & 0x7FFF_FFFF
        self.in_flight.append(request)
        return buffers

    def answer(self, frame: Any) -> Any:
        """The message in a frame that answers the oldest request in flight."""
        if not self.in_flight:
            raise ClientError("an answer that nothing was asked for")
        return self.in_flight.popleft().read(frame)
