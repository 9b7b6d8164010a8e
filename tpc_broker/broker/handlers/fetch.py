"""A Fetch that the data plane left to Python: what only the metadata, the segments or a partition's epochs can answer.

The data plane answers a plain Fetch by itself, and it keeps the sessions: what it leaves comes with its session looked
up and moved on.
"""

from __future__ import annotations

import functools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.confirmed import BESIDE_S, CONFIRM_S, Confirmed, confirm
from tpc_broker.broker.fetch_port import FetchOutcome
from tpc_broker.broker.partition import Partition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.fetch_port import Fetch, FetchPart
    from tpc_broker.broker.handled import Request
    from tpc_broker.kafka.encoder import Piece
    from tpc_broker.storage.ports import Bounds

READ_COMMITTED = 1
FOLLOWERS_VERSION = 11
"""From here on clients know that a follower may answer, and say which rack they are in (KIP-392)."""
DIVERGENCE_VERSION = 12
REPLICA_STATE_VERSION = 15
LEADER_HINT_VERSION = 16


@dataclass(slots=True)
class Reading:
    """What one partition gave."""

    asked: FetchPart
    listener: int
    version: int
    """Of the request: a session opened with a newer one may be continued with one that has fewer fields."""
    confirmed: Confirmed
    """The leaders of which it is known that the log's end is theirs to tell."""
    partition: Partition | None = None
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: list[Piece] = field(default_factory=list)
    size: int = 0
    aborted: list[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    preferred: int | None = None
    """The broker to read from, in place of this leader."""
    is_doubted: bool = False
    """What is asked for lies where the log of this leader does not tell, and no quorum has confirmed it."""

    def outcome(self) -> FetchOutcome:
        return FetchOutcome(
            int(self.error_code), self.high_watermark, self.log_start_offset, self.size > 0, self.preferred is not None
        )


async def handle_fetch(core: Core, request: Request, message: messages.FetchRequest) -> messages.FetchResponse | None:
    """Answer a Fetch of any version; waits up to ``max_wait_ms`` for ``min_bytes``."""
    core.grants.name(request)
    fetch = core.plane.begin_fetch(request)
    try:
        if fetch.lacks_rights:
            core.grants.decide_fetch(request, fetch)
            if fetch.go_on():
                return None
        if fetch.error_code:
            return messages.FetchResponse(error_code=fetch.error_code)
        if request.throttle_ms:  # above a quota a client gets nothing
            return messages.FetchResponse(session_id=fetch.session_id)
        readings = await _read_enough(core, request, message, fetch)
        return None if readings is None else _response(core, request, fetch, readings)
    finally:
        fetch.end()


async def _read_enough(
    core: Core, request: Request, message: messages.FetchRequest, fetch: Fetch
) -> list[Reading] | None:
    """What there is when it is enough or the time is over; None when the connection is gone. Who waits, for more or
    for a quorum, has no memory reserved.
    """
    deadline_ms = fetch.deadline_ms
    confirmed: Confirmed | None = None
    while True:
        bytes_max = await _reserve(core, request, fetch)
        if bytes_max is None:
            return None
        readings = await _read_all(core, request, message, fetch, bytes_max, confirmed or Confirmed())
        doubted = [one.partition for one in readings if one.is_doubted and one.partition is not None]
        remaining_ms = deadline_ms - core.clock.monotonic_ms()
        has_some = any(reading.size for reading in readings)
        asks = bool(doubted) and confirmed is None
        is_shortened = bytes_max < fetch.bytes_max and has_some
        if not asks and (is_shortened or _is_enough(readings, message.min_bytes) or remaining_ms <= 0):
            return readings
        _release(readings)
        fetch.unreserve()
        if asks:
            confirmed = await confirm(core, doubted, BESIDE_S if has_some else CONFIRM_S)
        else:
            confirmed = None
            if not await _wait(core, readings, message.isolation_level, remaining_ms):
                deadline_ms = 0
        if not core.dispatcher.is_open(request.connection):
            return None


async def _reserve(core: Core, request: Request, fetch: Fetch) -> int | None:
    """How many bytes the answer may have; None when the connection is gone."""
    bytes_max = fetch.reserve()
    if bytes_max is None:
        is_open = functools.partial(core.dispatcher.is_open, request.connection)
        bytes_max = await core.purgatory.wait_reserved(fetch.reserve, is_open)
    return bytes_max


def _is_follower(version: int, message: messages.FetchRequest) -> bool:
    """Whether a replica asks, not a consumer (KIP-903 moved the field)."""
    replica_id: int = message.replica_state.replica_id if version >= REPLICA_STATE_VERSION else message.replica_id
    return replica_id >= 0


async def _read_all(  # noqa: PLR0913  (one pass with all that it depends on)
    core: Core,
    request: Request,
    message: messages.FetchRequest,
    fetch: Fetch,
    bytes_max: int,
    confirmed: Confirmed,
) -> list[Reading]:
    is_follower = _is_follower(request.api_version, message)
    rack = message.rack_id if request.api_version >= FOLLOWERS_VERSION and not is_follower else ""
    readings = []
    left = bytes_max
    for asked in fetch.parts:
        reading = Reading(asked, fetch.listener, request.api_version, confirmed)
        may_exceed = left == bytes_max
        may_read = _may_read(core, request, reading, is_follower=is_follower)
        if may_read:
            await core.partitions.wait_moved(asked.topic, asked.partition)
            may_read = _may_read(core, request, reading, is_follower=is_follower)  # it may be gone behind a wait
        found = _readable(core, reading, is_follower=is_follower) if may_read else None
        if found is not None and not _is_nearer(core, reading, found, rack):
            await _read_one(core, reading, found, message.isolation_level, left, may_exceed=may_exceed)
        left = max(0, left - reading.size)
        readings.append(reading)
    return readings


# Rule: Who reads is asked for the right each time that something is read, also after a wait: it may have been taken
# away. Held by tests/broker/test_rights_of_data.py.
def _may_read(core: Core, request: Request, reading: Reading, *, is_follower: bool) -> bool:
    """Otherwise the reading has the error. A follower is a broker, which reads everything; nobody else is one."""
    access, key = core.access, reading.asked.topic
    if access.authorizer is None:
        return True
    topic = core.view.topic(key)
    name = key if isinstance(key, str) else topic.name if topic is not None else None
    if is_follower:
        is_allowed = access.allows_on_cluster(request, Operation.CLUSTER_ACTION)
    elif name is None:
        reading.error_code, reading.aborted = ErrorCode.UNKNOWN_TOPIC_ID, []
        return False
    else:
        is_allowed = access.allows_topic(request, Operation.READ, name)
    if not is_allowed:
        reading.error_code, reading.aborted = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
    return is_allowed


def _asks_divergence(asked: FetchPart, version: int) -> bool:
    return asked.last_fetched_epoch >= 0 and version >= DIVERGENCE_VERSION


def _is_inside(offset: int, bounds: Bounds) -> bool:
    return bounds.log_start_offset <= offset <= bounds.log_end_offset


def _is_nearer(core: Core, reading: Reading, found: Partition, rack: str) -> bool:
    """Whether a replica in the client's rack is to be read in place of this one; then the reading says which."""
    if core.replicated is not None:
        near = core.replicated.near
        reading.preferred = near.preferred(found, reading.asked.fetch_offset, rack, reading.listener)
    if reading.preferred is not None:
        _note_bounds(reading, found)
    return reading.preferred is not None


def _note_bounds(reading: Reading, found: Partition) -> Bounds:
    bounds = found.bounds()
    reading.partition = found
    reading.high_watermark = bounds.high_watermark
    reading.last_stable_offset = bounds.last_stable_offset
    reading.log_start_offset = bounds.log_start_offset
    return bounds


async def _read_one(  # noqa: PLR0913  (one read with all that it depends on)
    core: Core, reading: Reading, found: Partition, isolation_level: int, left: int, *, may_exceed: bool
) -> None:
    bounds, asked = _note_bounds(reading, found), reading.asked
    size_max = min(asked.max_bytes, left)
    try:
        if _asks_divergence(asked, reading.version):
            diverging = found.diverging_epoch(asked.last_fetched_epoch, asked.fetch_offset)
            if diverging is not None and not reading.confirmed.has(found):
                await _out_of_range(core, reading, found)
                return
            reading.diverging = diverging
            if diverging is not None:
                return
        if not _is_inside(asked.fetch_offset, bounds):
            await _out_of_range(core, reading, found)
            return
        await _read_records(reading, found, bounds, isolation_level, size_max, may_exceed=may_exceed)
    except OffsetOutOfRangeError:
        await _out_of_range(core, reading, found)
    except RecordsDamagedError as error:
        reading.error_code = ErrorCode.CORRUPT_MESSAGE
        core.note_damaged(found, error)
    except PartitionOfflineError:
        reading.error_code = ErrorCode.KAFKA_STORAGE_ERROR


async def _read_records(  # noqa: PLR0913  (one read with all that it depends on)
    reading: Reading, found: Partition, bounds: Bounds, isolation_level: int, size_max: int, *, may_exceed: bool
) -> None:
    offset, starts, is_read = reading.asked.fetch_offset, bounds.log_start_offset, size_max > 0 or may_exceed
    if isolation_level == READ_COMMITTED:
        reading.aborted = []
        if is_read and offset < bounds.last_stable_offset:
            reading.buffers, reading.size, reading.aborted = await found.read_committed(
                offset, bounds.last_stable_offset, size_max, at_least_one=may_exceed, starts=starts
            )
    elif is_read and offset < bounds.high_watermark:
        reading.buffers, reading.size = await found.read(
            offset, bounds.high_watermark, size_max, at_least_one=may_exceed, starts=starts
        )


def _readable(core: Core, reading: Reading, *, is_follower: bool) -> Partition | None:
    """The partition, if it is here and the reader's epoch is right; otherwise the reading has the error."""
    asked = reading.asked
    with_followers = reading.version >= FOLLOWERS_VERSION and not is_follower
    found = core.partitions.find(asked.topic, asked.partition, with_followers=with_followers)
    if not isinstance(found, Partition):
        reading.error_code = found
        if found == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            reading.leader = core.view.leader_of(reading.listener, asked.topic, asked.partition)
        else:
            reading.aborted = []  # null is for partitions that were read
        return None
    if is_follower:
        reading.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # one replica: nobody follows
        return None
    reading.error_code = found.check_leader_epoch(asked.current_leader_epoch)
    if reading.error_code:
        reading.partition = found
        if not found.is_led:
            reading.leader = core.view.leader_of(reading.listener, asked.topic, asked.partition)
        elif reading.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            reading.leader = (core.view.endpoint(reading.listener, core.core_id).broker_id, found.leader_epoch)
        return None
    return found


async def _out_of_range(core: Core, reading: Reading, found: Partition) -> None:
    """Only a leader that a quorum follows says that an offset is nowhere: a client would begin anew somewhere else.
    A follower may be behind, or have deleted what its leader has still; and who has led may not know of the next one.
    """
    if reading.confirmed.has(found):
        reading.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    elif found.is_led:
        reading.error_code, reading.is_doubted = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
    else:
        reading.error_code = ErrorCode.OFFSET_NOT_AVAILABLE
        assert core.replicated is not None, "followers are those of a cluster"
        await core.replicated.near.lacks(found, reading.asked.fetch_offset)
    reading.high_watermark = reading.last_stable_offset = reading.log_start_offset = -1


def _is_enough(readings: list[Reading], bytes_min: int) -> bool:
    if not readings or sum(reading.size for reading in readings) >= bytes_min:
        return True
    return any(reading.error_code or reading.diverging or reading.preferred is not None for reading in readings)


def _release(readings: list[Reading]) -> None:
    for reading in readings:
        reading.buffers = []


async def _wait(core: Core, readings: list[Reading], isolation_level: int, remaining_ms: int) -> bool:
    """Until one of the partitions has more to read than it had; False when the time is over."""
    is_committed = isolation_level == READ_COMMITTED
    before = {
        reading.partition.handle: reading.last_stable_offset if is_committed else reading.high_watermark
        for reading in readings
        if reading.partition is not None
    }
    partitions = {reading.partition.handle: reading.partition for reading in readings if reading.partition is not None}

    def has_moved() -> bool:
        for handle, partition in partitions.items():
            if not partition.is_open or not partition.is_readable:
                return True
            bounds = partition.bounds()
            if (bounds.last_stable_offset if is_committed else bounds.high_watermark) != before[handle]:
                return True
        return False

    return await core.purgatory.wait_advanced(partitions, remaining_ms / 1000, has_moved)


def _response(core: Core, request: Request, fetch: Fetch, readings: list[Reading]) -> messages.FetchResponse:
    for reading in readings:
        if reading.partition is not None and reading.size:
            core.plane.count_read(reading.partition.handle, reading.size)
    chosen = fetch.select([reading.outcome() for reading in readings])
    topics: dict[str | uuid.UUID, messages.FetchResponse.FetchableTopicResponse] = {}
    hints: set[int] = set()
    for reading, is_part in zip(readings, chosen, strict=True):
        if not is_part:
            continue
        topic = topics.get(reading.asked.topic)
        if topic is None:
            topic = topics[reading.asked.topic] = messages.FetchResponse.FetchableTopicResponse()
            if isinstance(reading.asked.topic, uuid.UUID):
                topic.topic_id = reading.asked.topic.bytes
            else:
                topic.topic = reading.asked.topic
        topic.partitions.append(_partition_data(reading, hints))
    response = messages.FetchResponse(session_id=fetch.session_id, responses=list(topics.values()))
    if hints:
        response.node_endpoints = [
            messages.FetchResponse.NodeEndpoint(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
            for node in core.view.endpoints(request.listener)
            if node.broker_id in hints
        ]
    return response


def _partition_data(reading: Reading, hints: set[int]) -> messages.FetchResponse.PartitionData:
    data = messages.FetchResponse.PartitionData(
        partition_index=reading.asked.partition,
        error_code=int(reading.error_code),
        high_watermark=reading.high_watermark,
        last_stable_offset=reading.last_stable_offset,
        log_start_offset=reading.log_start_offset,
        aborted_transactions=None,
        records=reading.buffers or b"",
    )
    if reading.aborted is not None:
        data.aborted_transactions = [
            messages.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in reading.aborted
        ]
    if reading.preferred is not None:
        data.preferred_read_replica = reading.preferred
    if reading.diverging is not None:
        data.diverging_epoch.epoch, data.diverging_epoch.end_offset = reading.diverging
    if reading.leader is not None and reading.version >= LEADER_HINT_VERSION:
        leader_id, leader_epoch = reading.leader
        data.current_leader.leader_id, data.current_leader.leader_epoch = leader_id, leader_epoch
        hints.add(leader_id)
    return data
