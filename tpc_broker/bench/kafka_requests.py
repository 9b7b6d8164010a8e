"""Kafka requests as the generator sends them: whole frames, one topic and one partition in each. One is asked here."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages, protocol
from tpc_broker.kafka.records import Record, build_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
METADATA_VERSION: Final = 12
TRANSACTIONAL_PRODUCE_VERSION: Final = 12
"""The first one that adds its partitions to the transaction."""
END_VERSION: Final = 5
"""The first one that answers with the next transaction's producer id and epoch."""
COME_AGAIN: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}  # fmt: skip
_INIT_VERSION: Final = 5
_LIST_OFFSETS_VERSION: Final = 6
_OFFSET_MARK: Final = 0x0123456789ABCDEF
_SESSION_MARK: Final = 0x5E551017


def record_batch(
    records_count: int, value_bytes: int, *, key: bytes | None = None, is_transactional: bool = False
) -> bytes:
    """One batch of equal records without a producer id, uncompressed."""
    value = bytes(byte % 251 for byte in range(value_bytes))
    now_ms = int(time.time() * 1000)  # an old one would be deleted by retention
    records = [Record(value, key, timestamp_ms=now_ms) for _ in range(records_count)]
    return bytes(build_batch(records, is_transactional=is_transactional))


def produce_request(topic: str, partition: int, batch: bytes, *, acks: int = -1, client_id: str = "bench") -> bytes:
    request = messages.ProduceRequest(acks=acks, timeout_ms=30_000)
    data = request.TopicProduceData(name=topic)
    data.partition_data.append(request.PartitionProduceData(index=partition, records=batch))
    request.topic_data.append(data)
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, request, client_id)


class FetchRequests(NamedTuple):
    """What a session needs (KIP-227), and where in both frames its number, and in the first one the offset, stands."""

    whole: bytes
    unchanged: bytes
    offset_position: int
    session_position: int


def fetch_requests(  # noqa: PLR0913 - what a consumer chooses
    topic: str, partition: int, *, bytes_max: int, wait_ms: int, bytes_min: int = 1, is_committed_only: bool = False
) -> FetchRequests:
    """For one partition; the generator fills in session id, session epoch and offset."""
    frames: list[bytes] = []
    for is_whole in (True, False):
        request = messages.FetchRequest(
            max_wait_ms=wait_ms, min_bytes=bytes_min, max_bytes=max(bytes_max, bytes_min),
            session_id=_SESSION_MARK, session_epoch=0, isolation_level=int(is_committed_only),
        )  # fmt: skip
        if is_whole:
            wanted = request.FetchTopic(topic=topic)
            wanted.partitions.append(
                request.FetchPartition(partition=partition, fetch_offset=_OFFSET_MARK, partition_max_bytes=bytes_max)
            )
            request.topics.append(wanted)
        frames.append(_frame(ApiKey.FETCH, FETCH_VERSION, request))
    offset_position = frames[0].index(_OFFSET_MARK.to_bytes(8, "big"))
    session_places = {frame.index(_SESSION_MARK.to_bytes(4, "big")) for frame in frames}
    assert len(session_places) == 1, "what comes before the session is the same in both"
    return FetchRequests(frames[0], frames[1], offset_position, session_places.pop())


def _frame(key: ApiKey, version: int, request: object, client_id: str = "bench") -> bytes:
    return b"".join(protocol.encode_request_frame(key, version, 1, client_id, request))


def api_versions_request() -> bytes:
    """What every client asks first."""
    request = messages.ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    return _frame(ApiKey.API_VERSIONS, 3, request)


def all_metadata_request() -> bytes:
    """Of all topics."""
    return _frame(ApiKey.METADATA, METADATA_VERSION, messages.MetadataRequest(topics=None))


class PartitionState(NamedTuple):
    """As Metadata tell it."""

    leader: int
    """-1: none."""
    leader_epoch: int
    in_sync_count: int


def topic_state(address: tuple[str, int], topic: str, timeout_s: float) -> dict[int, PartitionState]:
    """By partition, as that broker itself tells it: a client library would ask any. Empty while it does not answer."""
    wanted = messages.MetadataRequest.MetadataRequestTopic(name=topic)
    request = messages.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    answer = _asked(address, ApiKey.METADATA, METADATA_VERSION, request, timeout_s)
    found = answer.topics[0].partitions if answer is not None else []
    return {one.partition_index: PartitionState(one.leader_id, one.leader_epoch, len(one.isr_nodes)) for one in found}


def _asked(address: tuple[str, int], key: ApiKey, version: int, request: object, timeout_s: float) -> Any:
    """The answer to one request on a connection of its own; None when there is none."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(_frame(key, version, request))
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            frame = connection.recv(size, socket.MSG_WAITALL)
    except OSError:
        return None
    if not size or len(frame) != size:
        return None
    return protocol.decode_response_frame(key, version, frame)[1]


def without_session(requests: FetchRequests) -> bytes:
    """From the beginning; its offset stands where it did."""
    frame = bytearray(requests.whole)
    frame[requests.offset_position : requests.offset_position + 8] = bytes(8)
    frame[requests.session_position : requests.session_position + 8] = (-1 & 0xFFFFFFFF).to_bytes(8, "big")
    return bytes(frame)


def single_fetch_request(topic: str, partition: int) -> bytes:
    """From the beginning, without a session and without waiting."""
    return without_session(fetch_requests(topic, partition, bytes_max=1 << 20, wait_ms=0, bytes_min=0))


def transactional_produce_request(topic: str, partitions: Iterable[int], batch: bytes, transactional_id: str) -> bytes:
    """`batch` for each of the partitions, whose transaction the server adds them to; "": idempotent only."""
    request = messages.ProduceRequest(transactional_id=transactional_id or None, acks=-1, timeout_ms=30_000)
    data = request.TopicProduceData(name=topic)
    data.partition_data.extend(request.PartitionProduceData(index=one, records=batch) for one in partitions)
    request.topic_data.append(data)
    return _frame(ApiKey.PRODUCE, TRANSACTIONAL_PRODUCE_VERSION, request)


def end_transaction_request(transactional_id: str) -> tuple[bytes, int]:
    """With the place of the producer's id, behind which its epoch and "committed" stand."""
    request = messages.EndTxnRequest(transactional_id=transactional_id, producer_id=_OFFSET_MARK, committed=True)
    frame = _frame(ApiKey.END_TXN, END_VERSION, request)
    return frame, frame.index(_OFFSET_MARK.to_bytes(8, "big"))


class Producer(NamedTuple):
    producer_id: int
    epoch: int


def new_producer(address: tuple[str, int], transactional_id: str, within_s: float = 60.0) -> Producer:
    """As the server there gives it to a new one; "": idempotent only. Asked again while the coordinator comes to life.
    RuntimeError: refused, or not in that time.
    """
    request = messages.InitProducerIdRequest(
        transactional_id=transactional_id or None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    give_up_at = time.monotonic() + within_s
    answer = None
    while time.monotonic() < give_up_at:
        answer = _asked(address, ApiKey.INIT_PRODUCER_ID, _INIT_VERSION, request, timeout_s=10)
        if answer is not None and not answer.error_code:
            return Producer(answer.producer_id, answer.producer_epoch)
        if answer is not None and ErrorCode(answer.error_code) not in COME_AGAIN:
            break
        time.sleep(0.1)
    refused = "no answer" if answer is None else ErrorCode(answer.error_code).name
    raise RuntimeError(f"InitProducerId of {transactional_id!r}: {refused}")


def list_end_offsets(address: tuple[str, int], topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The ends of partitions as their leader tells them now; those that it does not answer for are left out.

    One request on a connection of its own: a client library would wait between its attempts.
    """
    request = messages.ListOffsetsRequest(replica_id=-1)
    asked = request.ListOffsetsTopic(name=topic)
    for partition in partitions:
        asked.partitions.append(request.ListOffsetsPartition(partition_index=partition, timestamp=-1))
    request.topics.append(asked)
    answer = _asked(address, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, request, timeout_s=5)
    if answer is None:
        return {}
    found = answer.topics[0].partitions
    return {one.partition_index: one.offset for one in found if one.error_code == 0}
