"""The data plane in memory: one partition's log is a list of batches, which becomes durable when it is let.

It keeps the promises of the ports `ProducePort`, `ProducersPort`, `FetchPort`, `PreparedAnswers` and `Forwarding` that
Python relies on: offsets, durability before visibility, refusals, answers of the plane's own. It takes nothing by
itself (`produce` says no), so that all of Python's part is gone through. Replicated partitions are not in it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tpc_broker.broker.ports import AppendResult, AskedPart, AskedProduce, ProduceFallback, Verdict
from tpc_broker.broker.producers_port import KnownAborted, ToldProducer
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import decode_request, encode_response, encode_response_header
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.routing import PartitionUse
from tpc_broker.storage.ports import PartitionState
from tpc_broker.testing.fetches import FetchSessions, MemoryFetch
from tpc_broker.testing.guards import MemoryGuards, is_of_open, judged
from tpc_broker.testing.validation import Judged, judge_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpc_broker.broker.ports import Clock
    from tpc_broker.broker.producers_port import EndMarker
    from tpc_broker.broker.view import Endpoint
    from tpc_broker.log.batch import BatchHeader
    from tpc_broker.log.producer_state import Producer
    from tpc_broker.model import CoreId, TopicId
    from tpc_broker.storage.ports import Bounds
    from tpc_broker.testing.connections import MemoryConnections, MemoryRequest
    from tpc_broker.testing.logs import MemoryFiles, MemoryLog

TOPIC_IDS_IN_PRODUCE = 13
ADDS_PARTITIONS = 12
ACKS = (-1, 0, 1)
NO_KEY = "A record of a compacted topic needs a key"


@dataclass
class _Pending:
    """A Produce whose answer is ready, until everything that it appended is durable. `response` is None of acks=0."""

    request: MemoryRequest
    response: Any
    ends: dict[int, int] = field(default_factory=dict)
    parts: dict[int, Any] = field(default_factory=dict)
    """Of the response, by handle."""


class _Part(NamedTuple):
    """A partition of a Produce, with what Python says of it."""

    topic: Any
    asked: Any
    key: str | uuid.UUID
    verdict: Verdict

    @property
    def records(self) -> bytes:
        return bytes(self.asked.records or b"")


def _parts(message: Any, version: int, verdicts: Sequence[Verdict | None]) -> list[_Part]:
    pending = iter(verdicts)
    return [
        _Part(topic, asked, _key_of(topic, version), next(pending) or Verdict(ErrorCode.NONE))
        for topic in message.topic_data
        for asked in topic.partition_data
    ]


def _key_of(topic: Any, version: int) -> str | uuid.UUID:
    return uuid.UUID(bytes=bytes(topic.topic_id)) if version >= TOPIC_IDS_IN_PRODUCE else str(topic.name)


def _tell_bad_records(answer: Any, places: Iterable[int], reason: str) -> None:
    """As `native/requests/produce_errors.c`."""
    kind = messages.ProduceResponse.BatchIndexAndErrorMessage
    answer.record_errors = [kind(batch_index=place, batch_index_error_message=reason) for place in places]
    if answer.record_errors:
        answer.error_message = "One or more records have been rejected"


def _told(known: Iterable[Producer]) -> list[ToldProducer]:
    return sorted(
        ToldProducer(
            one.producer_id, one.last_timestamp, one.transaction_first_offset,
            one.batches[-1].last_sequence if one.batches else -1, one.coordinator_epoch, one.epoch,
        )
        for one in known
    )  # fmt: skip


class MemoryPlane:
    """Appends are durable at once, or with `make_durable` while `holds` is set. `connections` answer requests."""

    def __init__(self, connections: MemoryConnections | None = None, clock: Clock | None = None) -> None:
        self.logs: dict[int, MemoryLog] = {}
        self._files: dict[int, MemoryFiles] = {}
        self._by_name: dict[tuple[str | uuid.UUID, int], int] = {}
        self.holds, self.has_memory = False, True
        self.takes_transactions = False
        self.guards = MemoryGuards()
        self.sessions = FetchSessions()
        self.fetches: set[MemoryFetch] = set()
        self.prepared: dict[tuple[int, int, int, bytes], bytes] = {}
        self.marks: dict[tuple[int, int, int, bytes], int] = {}
        self.owners: dict[tuple[str, TopicId], tuple[CoreId, ...]] = {}
        self.datagram_owners: dict[tuple[str, TopicId], tuple[CoreId, ...]] = {}
        self.fetch_limits: tuple[int, int, int] | None = None
        self.grants: dict[tuple[int | None, Any, bool], bool] | None = None
        """By subject, what (a topic's id, a transactional id) and whether to write."""
        self.generation: int | None = None
        self.named: dict[int, int] = {}
        self.datagrams_subject = 0
        self.uses: dict[int, PartitionUse] = {}
        self._connections, self._clock = connections, clock
        self._handles = 0
        self._durable = trio.Event()
        self._watched: set[int] = set()
        self._tell_advanced: Callable[[int], None] = lambda _handle: None
        self._pending: list[_Pending] = []

    # -- what storage asks --------------------------------------------------------------------------------------------

    def register(self, files: MemoryFiles) -> int:
        self._handles += 1
        self.logs[self._handles], self._files[self._handles] = files.log, files
        for name in (files.topic, files.key.topic_id):
            self._by_name[name, files.key.partition] = self._handles
        return self._handles

    def withdraw(self, handle: int) -> None:
        self.logs.pop(handle, None)
        files = self._files.pop(handle, None)
        if files is not None:
            for name in (files.topic, files.key.topic_id):
                if self._by_name.get((name, files.key.partition)) == handle:
                    del self._by_name[name, files.key.partition]
        self.guards.forget(handle)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()

    def _log(self, handle: int) -> MemoryLog:
        if handle not in self.logs:
            raise PartitionOfflineError("the partition was withdrawn")
        return self.logs[handle]

    def _now_ms(self) -> int:
        return 0 if self._clock is None else self._clock.wall_ms()

    # -- ProducePort --------------------------------------------------------------------------------------------------

    def produce(self, _request: MemoryRequest) -> bool:
        return False

    def bound_producers(self, _bytes_max: int) -> None:
        """There are few."""

    def take_transactions(self, *, on: bool) -> None:
        self.takes_transactions = on

    def _producer(self, handle: int, producer_id: int) -> Producer | None:
        return self._log(handle).log_state.producers.producers.get(producer_id)

    def begin_verification(
        self, handle: int, producer_id: int, producer_epoch: int, sequence: int, *, begins_anew: bool
    ) -> int | ErrorCode:
        if handle not in self.logs:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = self._producer(handle, producer_id)
        return self.guards.begin(handle, known, producer_id, producer_epoch, sequence, begins_anew=begins_anew)

    def end_verification(self, handle: int, producer_id: int, guard: int) -> None:
        self.guards.leave(handle, producer_id, guard)

    def _lacks_verification(self, version: int, handle: int | None, records: bytes, verdict: Verdict) -> bool:
        if handle is None or verdict.error_code or not records or not self.takes_transactions:
            return False
        header = decode_header(records)
        known = self._producer(handle, header.producer_id)
        if not header.is_transactional or is_of_open(known, header):
            return False
        is_overtaken = version >= ADDS_PARTITIONS and self.guards.is_overtaken(handle, known, header, verdict.guard)
        return not verdict.guard or is_overtaken

    def asked(self, request: MemoryRequest) -> AskedProduce | ProduceFallback:
        version, message = request.api_version, decode_request(ApiKey.PRODUCE, request.api_version, request.body)
        body, parts, place = bytes(request.body), [], 0
        for topic in message.topic_data:
            for part in topic.partition_data:
                records = bytes(part.records or b"")
                place = body.index(records, place)
                parts.append(AskedPart(_key_of(topic, version), part.index, place, len(records)))
                place += len(records)
        return AskedProduce(parts, message.timeout_ms, message.transactional_id)

    def _authorized(
        self, request: MemoryRequest, parts: list[_Part], transactional_id: str | None
    ) -> list[_Part] | None:
        """With what the rights refuse; None: not all of them are known."""
        if self.grants is None:
            return parts
        subject, judged_parts = self.named.get(request.connection), []
        for part in parts:
            verdict, handle = part.verdict, self._handle_of(part.key, part.asked.index)
            wanted: list[tuple[Any, ErrorCode]] = []
            if handle is not None and not verdict.error_code:
                wanted.append((self._files[handle].key.topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            if part.records and decode_header(part.records).is_transactional:
                wanted.append((transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            for name, code in wanted:
                is_allowed = self.grants.get((subject, name, True), None if name is not None else False)
                if is_allowed is None:
                    return None
                if not is_allowed:
                    verdict = Verdict(code)
            judged_parts.append(part._replace(verdict=verdict))
        return judged_parts

    def produce_with(
        self, request: MemoryRequest, verdicts: Sequence[Verdict | None], endpoints: Sequence[Endpoint]
    ) -> ProduceFallback:
        version, message = request.api_version, decode_request(ApiKey.PRODUCE, request.api_version, request.body)
        parts = self._authorized(request, _parts(message, version, verdicts), message.transactional_id)
        if parts is None:
            return ProduceFallback.AUTHORIZE
        if any(
            self._lacks_verification(version, self._handle_of(part.key, part.asked.index), part.records, part.verdict)
            for part in parts
        ):
            return ProduceFallback.VERIFY
        if message.acks not in ACKS:
            refused = Verdict(ErrorCode.INVALID_REQUIRED_ACKS)
            parts = [part if part.verdict.error_code else part._replace(verdict=refused) for part in parts]
        pending = _Pending(request, messages.ProduceResponse())
        for topic in message.topic_data:
            answer = messages.ProduceResponse.TopicProduceResponse()
            if version >= TOPIC_IDS_IN_PRODUCE:
                answer.topic_id = topic.topic_id
            else:
                answer.name = topic.name
            of_topic = [part for part in parts if part.topic is topic]
            answer.partition_responses = [self._take(part, version, pending) for part in of_topic]
            pending.response.responses.append(answer)
        told = {part.verdict.leader_id for part in parts}
        pending.response.node_endpoints = [
            messages.ProduceResponse.NodeEndpoint(node_id=one.broker_id, host=one.host, port=one.port)
            for one in endpoints
            if one.broker_id in told
        ]
        self._pending.append(pending if message.acks else self._unanswered(pending))
        if not self.holds:
            self.make_durable()
        self._answer()
        return ProduceFallback.NONE

    def _unanswered(self, pending: _Pending) -> _Pending:
        """Of acks=0: a connection whose request met an error is closed, so that its client notices."""
        rows = [row for topic in pending.response.responses for row in topic.partition_responses]
        if any(row.error_code for row in rows) and self._connections is not None:
            self._connections.close(pending.request.connection, "refused")
        return _Pending(pending.request, None)

    def _take(self, part: _Part, version: int, pending: _Pending) -> Any:
        """One partition's answer, for when what was appended is durable."""
        verdict, handle = part.verdict, self._handle_of(part.key, part.asked.index)
        answer = messages.ProduceResponse.PartitionProduceResponse(
            index=part.asked.index, error_code=int(verdict.error_code), base_offset=-1, error_message=verdict.message
        )
        if verdict.error_code:
            answer.current_leader.leader_id = verdict.leader_id
            answer.current_leader.leader_epoch = verdict.leader_epoch
            if verdict.keyless and handle is not None:
                answer.log_start_offset = self.logs[handle].log_start_offset
                _tell_bad_records(answer, verdict.keyless, NO_KEY)
            return answer
        if handle is None:
            answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return answer
        log, batch = self.logs[handle], self._judge(handle, part.records, version)
        answer.error_code = int(batch.error_code)
        answer.log_start_offset = log.log_start_offset if batch.tells_log_start else -1
        if batch.error_code:
            _tell_bad_records(answer, batch.bad_records, batch.reason)
            return answer
        header = decode_header(batch.records)
        known = self._producer(handle, header.producer_id) if header.producer_id >= 0 else None
        error, duplicate = judged(known, header)
        if duplicate is not None:
            answer.base_offset = duplicate.last_offset - duplicate.offset_delta
            answer.log_append_time_ms = duplicate.timestamp
            pending.ends[handle], pending.parts[handle] = duplicate.last_offset + 1, answer
            return answer
        if known is None and self._begins_too_late(handle, header):
            error = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        error = error or self.guards.refusal(handle, known, header, verdict.guard)
        if error:
            answer.error_code = int(error)
            return answer
        answer.base_offset = log.append(batch.records, self._files[handle].leader_epoch)
        answer.log_append_time_ms = batch.append_ms
        self.guards.end(handle, header)
        self._count_append(handle, len(batch.records))
        pending.ends[handle], pending.parts[handle] = log.log_end_offset, answer
        return answer

    def _judge(self, handle: int, records: bytes, version: int) -> Judged:
        files = self._files[handle]
        if files.config is None:
            return Judged(ErrorCode.NONE, records)
        if files.is_internal:
            return Judged(ErrorCode.INVALID_TOPIC_EXCEPTION, records)
        return judge_batch(records, files.config, version, self._now_ms())

    def _begins_too_late(self, handle: int, header: BatchHeader) -> bool:
        """Of a producer that is not known: where no record has ever been, none is missing that it followed."""
        config = self._files[handle].config
        is_told = config is not None and config.durability != "relaxed"
        return is_told and header.base_sequence > 0 and not self.logs[handle].log_end_offset

    def _handle_of(self, key: str | uuid.UUID, index: int) -> int | None:
        return self._by_name.get((key, index))

    def _answer(self) -> None:
        waiting, self._pending = self._pending, []
        for one in waiting:
            for handle in one.ends.keys() - self.logs.keys():
                one.parts[handle].error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                del one.ends[handle]
            assert self._connections is not None, "requests come by connections"
            if any(self.logs[handle].high_watermark < end for handle, end in one.ends.items()):
                self._pending.append(one)
            elif one.response is None:
                self._connections.answer_none(one.request)
            else:
                key, version = ApiKey.PRODUCE, one.request.api_version
                header = encode_response_header(key, version, one.request.correlation_id)
                self._connections.answer(one.request, [header, encode_response(key, version, one.response)])

    def append(self, handle: int, data: bytes) -> AppendResult | None:
        log, files = self._log(handle), self._files[handle]
        base_offset = log.append(data, files.leader_epoch)
        for header, _place in walk_headers(data):
            self.guards.end(handle, header)
        if not self.holds:
            self.make_durable()
        return AppendResult(base_offset, log.log_end_offset, files.leader_epoch, 0)

    def make_durable(self) -> None:
        """All that was appended."""
        for handle, log in list(self.logs.items()):
            if log.high_watermark < log.log_end_offset:
                log.high_watermark = log.log_end_offset
                log.log_state.settle(log.high_watermark)
                if handle in self._watched:
                    self._watched.remove(handle)
                    self._tell_advanced(handle)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()

    async def wait_committed(self, handle: int, end_offset: int, leader_epoch: int) -> None:
        await trio.lowlevel.checkpoint()
        while self._log(handle).high_watermark < end_offset:
            await self._durable.wait()
            if handle in self._files and self._files[handle].leader_epoch != leader_epoch:
                raise LeadershipLostError("its epoch has ended")

    # -- ProducersPort ------------------------------------------------------------------------------------------------

    def producers(self, handle: int, count_max: int) -> list[ToldProducer] | None:
        told = sorted(_told(self._log(handle).log_state.producers), key=lambda one: one.transaction_first_offset < 0)
        is_open_left_out = len(told) > count_max and told[count_max].transaction_first_offset >= 0
        return None if is_open_left_out else sorted(told[:count_max])

    def append_marker(self, handle: int, marker: EndMarker) -> AppendResult | None:
        """As `native/log/append.c`."""
        producers = self.producers(handle, 1 << 20) or ()
        known = next((one for one in producers if one.producer_id == marker.producer_id), None)
        refused = ErrorCode.NONE
        if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
            refused = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        elif known is not None and marker.producer_epoch < known.producer_epoch + (
            marker.transaction_version >= 2 and known.transaction_first_offset >= 0
        ):
            refused = ErrorCode.INVALID_PRODUCER_EPOCH
        if refused:
            return AppendResult(-1, -1, -1, int(refused))
        return self.append(handle, control_batch(
            ControlType.COMMIT if marker.commits else ControlType.ABORT, producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch, coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._now_ms(),
        ))  # fmt: skip

    # -- GrantsPort: as `native/requests/grants.c`, for Produce --------------------------------------------------------

    def begin_grants(self, generation: int) -> None:
        self.grants, self.generation = {}, generation
        self.sessions.are_owned = True

    def end_grants(self) -> None:
        self.grants = self.generation = None
        self.sessions.are_owned = False

    def forget_grants(self, generation: int) -> None:
        assert self.generation is not None
        assert generation > self.generation
        self.grants, self.generation = {}, generation

    def grant(self, generation: int, subject: int, topic_id: TopicId, *, writes: bool, is_allowed: bool) -> None:
        if generation == self.generation and self.grants is not None:
            self.grants[subject, topic_id, writes] = is_allowed

    def grant_transactional(
        self, generation: int, subject: int, transactional_id: str, *, is_allowed: bool
    ) -> None:
        if generation == self.generation and self.grants is not None:
            self.grants[subject, transactional_id, True] = is_allowed

    def name_subject(self, request: MemoryRequest, subject: int) -> None:
        self.named[request.connection] = subject

    def set_datagrams_subject(self, subject: int) -> None:
        self.datagrams_subject = subject

    def on_grant_wanted(self, callback: Callable[[TopicId, int], None]) -> None:
        self.want_grant = callback

    # -- FetchPort ----------------------------------------------------------------------------------------------------

    def begin_fetch(self, request: MemoryRequest) -> MemoryFetch:
        assert self._clock is not None, "fetches wait"
        return MemoryFetch(self, request, self._clock.monotonic_ms())

    def set_fetch_limits(self, response_bytes_max: int, sessions_max: int, eviction_ms: int) -> None:
        self.fetch_limits = (response_bytes_max, sessions_max, eviction_ms)
        self.sessions.slots_max, self.sessions.eviction_ms = sessions_max, eviction_ms

    def bounds(self, handle: int) -> Bounds:
        return self._log(handle).bounds

    def state(self, handle: int) -> PartitionState:
        log = self._log(handle)
        size = sum(map(len, log.batches))
        return PartitionState(log.high_watermark, log.high_watermark, 0, size, size, 1 << 30, -1, 0)

    def use(self, handle: int) -> PartitionUse:
        return self.uses.get(handle, PartitionUse())

    def _count_append(self, handle: int, size: int) -> None:
        appends, append_bytes, reads, read_bytes = self.use(handle)
        self.uses[handle] = PartitionUse(appends + 1, append_bytes + size, reads, read_bytes)

    def count_read(self, handle: int, size: int) -> None:
        appends, append_bytes, reads, read_bytes = self.use(handle)
        self.uses[handle] = PartitionUse(appends, append_bytes, reads + 1, read_bytes + size)

    def read(
        self, handle: int, offset: int, upto: int, bytes_max: int, at_least_one: bool  # noqa: FBT001  (the port's)
    ) -> tuple[list[Any], int] | None:
        return self._log(handle).read(offset, upto, bytes_max, at_least_one=at_least_one)

    def wants_window(self, _handle: int, _offset: int, _bytes_max: int) -> bool:
        return False

    def open_window(self, _handle: int, _window: object) -> None:
        raise AssertionError("nobody wants one")

    def aborted(self, handle: int, offset: int, upto: int) -> KnownAborted:
        known = self._log(handle).aborted
        return KnownAborted([one for one in known if one.last_offset >= offset and one.first_offset < upto], 0, 0)

    def watch(self, handle: int) -> None:
        self._watched.add(handle)

    def on_advanced(self, callback: Callable[[int], None]) -> None:
        self._tell_advanced = callback

    def release_fetches(self) -> None:
        """None waits here."""

    # -- PreparedAnswers, Forwarding ----------------------------------------------------------------------------------

    def prepare_answer(self, request: MemoryRequest, answer: bytes, mark: int = 0) -> None:
        asked = (request.api_key, request.api_version, request.listener, bytes(request.body))
        self.prepared[asked], self.marks[asked] = answer, mark
        if mark and self._connections is not None:
            self._connections.marks[request.connection] = mark

    def forget_answers(self, api_key: int) -> None:
        self.prepared = {asked: answer for asked, answer in self.prepared.items() if asked[0] != api_key}

    def set_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        self.owners[topic, topic_id] = tuple(owners)

    def set_datagram_owners(self, topic: str, topic_id: TopicId, owners: Sequence[CoreId]) -> None:
        self.datagram_owners[topic, topic_id] = tuple(owners)
