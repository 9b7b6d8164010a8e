"""The data plane in memory: one partition's log is a list of batches, which becomes durable when it is let.

It keeps the promises of the ports `ProducePort`, `ProducersPort`, `FetchPort`, `PreparedAnswers` and `Forwarding` that
Python relies on: offsets, durability before visibility, refusals, answers of the plane's own. It takes nothing by
itself (`produce` says no), so that what is tested is Python's part. Replicated partitions are not in it: those are
tested on the real one.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.support.memory_guards import MemoryGuards, is_of_open, judged
from tpc_broker.broker.fetch_port import FetchOutcome, FetchPart
from tpc_broker.broker.ports import AppendResult, AskedPart, AskedProduce, ProduceFallback, Verdict
from tpc_broker.broker.producers_port import KnownAborted, ToldProducer
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import decode_request, encode_response, encode_response_header
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.indexes import AbortedTransaction
from tpc_broker.log.state import LogState
from tpc_broker.routing import PartitionUse
from tpc_broker.storage.ports import Bounds, PartitionState

TOPIC_IDS_IN_PRODUCE = TOPIC_IDS_IN_FETCH = 13
ADDS_PARTITIONS = 12
_BASE_OFFSET, _EPOCH = struct.Struct(">q"), struct.Struct(">i")
EPOCH_AT, EPOCH_END = 12, 16


class MemoryLog:
    """One partition's batches; `high_watermark` is where the durable ones end. A crash leaves those."""

    def __init__(self):
        self.batches: list[bytes] = []
        self.log_start_offset = self.high_watermark = self.log_end_offset = 0
        self.log_state = LogState()
        """Of all batches: producers and transactions, as `native/ring/producer.c`."""
        self.aborted: list[AbortedTransaction] = []

    @property
    def bounds(self):
        stable = max(self.log_state.last_stable_offset(self.high_watermark), self.log_start_offset)
        return Bounds(self.log_start_offset, stable, self.high_watermark, self.log_end_offset)

    def find_state(self):
        """From the batches."""
        self.log_state, self.aborted = LogState(), []
        for batch in self.batches:
            self.take(batch)

    def take(self, batch):
        if (aborted := self.log_state.take(decode_header(batch), batch)) is not None:
            self.aborted.append(aborted)

    def append(self, data, leader_epoch):
        """Whole batches; the first one's offset."""
        base_offset = self.log_end_offset
        for header, place in walk_headers(data):
            batch = data[place : place + header.size_bytes]
            offset, epoch = _BASE_OFFSET.pack(self.log_end_offset), _EPOCH.pack(leader_epoch)
            self.batches.append(offset + batch[_BASE_OFFSET.size : EPOCH_AT] + epoch + batch[EPOCH_END:])
            self.take(self.batches[-1])
            self.log_end_offset += header.last_offset_delta + 1
        return base_offset

    def crash(self):
        self.batches = [one for one in self.batches if decode_header(one).base_offset < self.high_watermark]
        self.log_end_offset = self.high_watermark
        self.find_state()


class MemoryFiles:
    """What `PartitionStorage` is to a partition; all of the log is in memory, nothing is in segments."""

    def __init__(self, key, topic):
        self.key, self.topic = key, topic
        self.log = MemoryLog()
        self.leader_epoch, self.epochs = 0, LeaderEpochs()
        self.written_end_offset = self.size_bytes = 0
        self.segments = ()
        self.failed = None

    async def read_once(self, _offset, _bytes_max, _upto):
        return b""

    async def offset_for_timestamp(self, _timestamp, _start_offset):
        return None

    async def largest_timestamp(self, _start_offset, _upto_offset):
        return None


class MemoryFetch:
    """`Fetch`, without a session."""

    error_code = session_id = 0
    lacks_rights = False

    def __init__(self, plane, request, now_ms):
        message = decode_request(ApiKey.FETCH, request.api_version, request.body)
        self.listener, self.bytes_max = request.listener, message.max_bytes
        self.deadline_ms = now_ms + message.max_wait_ms
        by_id = request.api_version >= TOPIC_IDS_IN_FETCH
        self.parts = [
            FetchPart(
                uuid.UUID(bytes=bytes(topic.topic_id)) if by_id else topic.topic, asked.partition, asked.fetch_offset,
                asked.partition_max_bytes, asked.current_leader_epoch, asked.last_fetched_epoch,
            )
            for topic in message.topics
            for asked in topic.partitions
        ]  # fmt: skip
        self.is_reserved = False
        self._plane = plane
        plane.fetches.add(self)

    def select(self, outcomes: list[FetchOutcome]):
        assert len(outcomes) == len(self.parts)
        return [True] * len(outcomes)

    def reserve(self):
        self.is_reserved = self._plane.has_memory
        return self.bytes_max if self.is_reserved else None

    def unreserve(self):
        self.is_reserved = False

    def go_on(self):
        return False

    def end(self):
        self._plane.fetches.remove(self)


@dataclass
class _Pending:
    """A Produce whose answer is ready, until everything that it appended is durable."""

    request: Any
    response: Any
    ends: dict[int, int] = field(default_factory=dict)
    parts: dict[int, Any] = field(default_factory=dict)
    """Of the response, by handle."""


def _told(known):
    return sorted(
        ToldProducer(
            one.producer_id, one.last_timestamp, one.transaction_first_offset,
            one.batches[-1].last_sequence if one.batches else -1, one.coordinator_epoch, one.epoch,
        )
        for one in known
    )  # fmt: skip


class MemoryPlane:
    """Appends are durable at once, or with `make_durable` while `holds` is set. `refuses`: of the next requests."""

    def __init__(self, connections=None, clock=None):
        self.logs, self._files = {}, {}
        self.holds, self.has_memory = False, True
        self.takes_transactions = False
        self.guards = MemoryGuards()
        self.refuses: list[ProduceFallback] = []
        self.fetches, self.prepared, self.marks, self.owners, self.datagram_owners = set(), {}, {}, {}, {}
        self.fetch_limits = None
        self.grants = self.generation = None
        self.named, self.datagrams_subject = {}, 0
        self.uses = {}
        self._connections, self._clock = connections, clock
        self._handles = 0
        self._durable = trio.Event()
        self._watched, self._tell_advanced = set(), lambda _handle: None
        self._pending: list[_Pending] = []

    # -- what storage asks --------------------------------------------------------------------------------------------

    def register(self, files):
        self._handles += 1
        self.logs[self._handles], self._files[self._handles] = files.log, files
        return self._handles

    def withdraw(self, handle):
        self.logs.pop(handle, None)
        self._files.pop(handle, None)
        self.guards.forget(handle)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()

    def _log(self, handle):
        if handle not in self.logs:
            raise PartitionOfflineError("the partition was withdrawn")
        return self.logs[handle]

    # -- ProducePort --------------------------------------------------------------------------------------------------

    def produce(self, _request):
        return False

    def bound_producers(self, _bytes_max):
        """There are few."""

    def take_transactions(self, *, on):
        self.takes_transactions = on

    def _producer(self, handle, producer_id):
        return self._log(handle).log_state.producers.producers.get(producer_id)

    def begin_verification(self, handle, producer_id, producer_epoch, sequence, *, begins_anew):
        if handle not in self.logs:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = self._producer(handle, producer_id)
        return self.guards.begin(handle, known, producer_id, producer_epoch, sequence, begins_anew=begins_anew)

    def end_verification(self, handle, producer_id, guard):
        self.guards.leave(handle, producer_id, guard)

    def _lacks_verification(self, version, handle, records, verdict):
        if handle is None or verdict.error_code or not records or not self.takes_transactions:
            return False
        header = decode_header(records)
        known = self._producer(handle, header.producer_id)
        if not header.is_transactional or is_of_open(known, header):
            return False
        is_overtaken = version >= ADDS_PARTITIONS and self.guards.is_overtaken(handle, known, header, verdict.guard)
        return not verdict.guard or is_overtaken

    def asked(self, request):
        version, message = request.api_version, decode_request(ApiKey.PRODUCE, request.api_version, request.body)
        by_id, body, parts = version >= TOPIC_IDS_IN_PRODUCE, bytes(request.body), []
        for topic in message.topic_data:
            for part in topic.partition_data:
                key = uuid.UUID(bytes=bytes(topic.topic_id)) if by_id else topic.name
                records = bytes(part.records or b"")
                parts.append(AskedPart(key, part.index, body.index(records), len(records)))
        return AskedProduce(parts, message.timeout_ms, message.transactional_id)

    def _authorized(self, request, verdicts):
        """With what the rights refuse; None: not all of them are known."""
        if self.grants is None:
            return verdicts
        subject, asked, judged = self.named.get(request.connection), self.asked(request), []
        for part, verdict in zip(asked.parts, verdicts, strict=True):
            handle = self._handle_of(part.topic, part.partition)
            records = bytes(request.body[part.records_place : part.records_place + part.records_bytes])
            wanted = [] if handle is None or verdict.error_code else [(self._files[handle].key.topic_id, 29)]
            if records and decode_header(records).is_transactional:
                wanted.append((asked.transactional_id, 53))
            for name, code in wanted:
                is_allowed = self.grants.get((subject, name, True), None if name is not None else False)
                if is_allowed is None:
                    return None
                if not is_allowed:
                    verdict = Verdict(ErrorCode(code))  # noqa: PLW2901
            judged.append(verdict)
        return judged

    def produce_with(self, request, verdicts, endpoints):
        if self.refuses:
            return self.refuses.pop(0)
        verdicts = self._authorized(request, verdicts)
        if verdicts is None:
            return ProduceFallback.AUTHORIZE
        version, message = request.api_version, decode_request(ApiKey.PRODUCE, request.api_version, request.body)
        response, ends, parts = messages.ProduceResponse(), {}, {}
        pending, told = iter(verdicts), set()
        for topic in message.topic_data:
            key = uuid.UUID(bytes=bytes(topic.topic_id)) if version >= TOPIC_IDS_IN_PRODUCE else topic.name
            for asked in topic.partition_data:
                handle, records = self._handle_of(key, asked.index), bytes(asked.records or b"")
                if self._lacks_verification(version, handle, records, next(pending)):
                    return ProduceFallback.VERIFY
        pending = iter(verdicts)
        for topic in message.topic_data:
            key = uuid.UUID(bytes=bytes(topic.topic_id)) if version >= TOPIC_IDS_IN_PRODUCE else topic.name
            answer = messages.ProduceResponse.TopicProduceResponse()
            if version >= TOPIC_IDS_IN_PRODUCE:
                answer.topic_id = topic.topic_id
            else:
                answer.name = topic.name
            for asked in topic.partition_data:
                verdict = next(pending)
                told.add(verdict.leader_id)
                answer.partition_responses.append(self._take(key, asked, verdict, ends, parts))
            response.responses.append(answer)
        response.node_endpoints = [
            messages.ProduceResponse.NodeEndpoint(node_id=one.broker_id, host=one.host, port=one.port)
            for one in endpoints
            if one.broker_id in told
        ]
        self._pending.append(_Pending(request, response, ends, parts) if message.acks else _Pending(request, None))
        if not self.holds:
            self.make_durable()
        self._answer()
        return ProduceFallback.NONE

    def _take(self, key, asked, verdict, ends, parts):
        answer = messages.ProduceResponse.PartitionProduceResponse(
            index=asked.index, error_code=int(verdict.error_code), base_offset=-1, error_message=verdict.message
        )
        if verdict.error_code:
            answer.current_leader.leader_id = verdict.leader_id
            answer.current_leader.leader_epoch = verdict.leader_epoch
            return answer
        handle = self._handle_of(key, asked.index)
        if handle is None:
            answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return answer
        records = bytes(asked.records)
        header = decode_header(records)
        known = self._producer(handle, header.producer_id) if header.producer_id >= 0 else None
        error, duplicate = judged(known, header)
        if duplicate is not None:
            answer.base_offset, ends[handle] = duplicate.last_offset - duplicate.offset_delta, duplicate.last_offset + 1
            parts[handle] = answer
            return answer
        error = error or self.guards.refusal(handle, known, header, verdict.guard)
        if error:
            answer.error_code = int(error)
            return answer
        answer.base_offset = self.logs[handle].append(records, self._files[handle].leader_epoch)
        self.guards.end(handle, header)
        answer.log_start_offset = self.logs[handle].log_start_offset
        ends[handle], parts[handle] = self.logs[handle].log_end_offset, answer
        return answer

    def _handle_of(self, key, index):
        for handle, files in self._files.items():
            if key in (files.topic, files.key.topic_id) and files.key.partition == index:
                return handle
        return None

    def _answer(self):
        waiting, self._pending = self._pending, []
        for one in waiting:
            for handle in one.ends.keys() - self.logs.keys():
                one.parts[handle].error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                del one.ends[handle]
            if any(self.logs[handle].high_watermark < end for handle, end in one.ends.items()):
                self._pending.append(one)
            elif one.response is None:
                self._connections.answer_none(one.request)
            else:
                key, version = ApiKey.PRODUCE, one.request.api_version
                header = encode_response_header(key, version, one.request.correlation_id)
                self._connections.answer(one.request, [header, encode_response(key, version, one.response)])

    def append(self, handle, data):
        log, files = self._log(handle), self._files[handle]
        base_offset = log.append(data, files.leader_epoch)
        for header, _place in walk_headers(data):
            self.guards.end(handle, header)
        if not self.holds:
            self.make_durable()
        return AppendResult(base_offset, log.log_end_offset, files.leader_epoch, 0)

    def make_durable(self):
        """All that was appended."""
        for handle, log in list(self.logs.items()):
            if log.high_watermark < log.log_end_offset:
                log.high_watermark = log.log_end_offset
                if handle in self._watched:
                    self._watched.remove(handle)
                    self._tell_advanced(handle)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()

    async def wait_committed(self, handle, end_offset, leader_epoch):
        await trio.lowlevel.checkpoint()
        while self._log(handle).high_watermark < end_offset:
            await self._durable.wait()
            if handle in self._files and self._files[handle].leader_epoch != leader_epoch:
                raise LeadershipLostError("its epoch has ended")

    # -- ProducersPort ------------------------------------------------------------------------------------------------

    def producers(self, handle, count_max):
        known = self._log(handle).log_state.producers
        return _told(known) if len(known) <= count_max else None

    def append_marker(self, handle, marker):
        """As `native/ring/append.c`."""
        known = next((one for one in self.producers(handle, 1 << 20) if one.producer_id == marker.producer_id), None)
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
            timestamp_ms=self._clock.wall_ms() if self._clock is not None else 0,
        ))  # fmt: skip

    # -- GrantsPort: as `native/ring/grants.c`, for Produce ------------------------------------------------------------

    def begin_grants(self, generation):
        self.grants, self.generation = {}, generation

    def end_grants(self):
        self.grants = self.generation = None

    def forget_grants(self, generation):
        assert generation > self.generation
        self.grants, self.generation = {}, generation

    def grant(self, generation, subject, topic_id, *, writes, is_allowed):
        if generation == self.generation:
            self.grants[subject, topic_id, writes] = is_allowed

    def grant_transactional(self, generation, subject, transactional_id, *, is_allowed):
        if generation == self.generation:
            self.grants[subject, transactional_id, True] = is_allowed

    def name_subject(self, request, subject):
        self.named[request.connection] = subject

    def set_datagrams_subject(self, subject):
        self.datagrams_subject = subject

    def on_grant_wanted(self, callback):
        self.want_grant = callback

    # -- FetchPort ----------------------------------------------------------------------------------------------------

    def begin_fetch(self, request):
        return MemoryFetch(self, request, self._clock.monotonic_ms())

    def set_fetch_limits(self, response_bytes_max, sessions_max, eviction_ms):
        self.fetch_limits = (response_bytes_max, sessions_max, eviction_ms)

    def bounds(self, handle):
        return self._log(handle).bounds

    def state(self, handle):
        log = self._log(handle)
        size = sum(map(len, log.batches))
        return PartitionState(log.high_watermark, log.high_watermark, 0, size, size, 1 << 30, -1, 0)

    def use(self, handle):
        return self.uses.get(handle, PartitionUse())

    def count_read(self, handle, size):
        appends, append_bytes, reads, read_bytes = self.use(handle)
        self.uses[handle] = PartitionUse(appends, append_bytes, reads + 1, read_bytes + size)

    def read(self, handle, offset, upto, bytes_max, at_least_one):
        found, size = [], 0
        for data in self._log(handle).batches:
            header = decode_header(data)
            if header.next_offset <= offset:
                continue
            if header.base_offset >= upto or (size + len(data) > bytes_max and not (at_least_one and not found)):
                break
            found.append(data)
            size += len(data)
        return found, size

    def wants_window(self, _handle, _offset, _bytes_max):
        return False

    def open_window(self, _handle, _window):
        raise AssertionError("nobody wants one")

    def aborted(self, handle, offset, upto):
        known = self._log(handle).aborted
        return KnownAborted([one for one in known if one.last_offset >= offset and one.first_offset < upto], 0, 0)

    def watch(self, handle):
        self._watched.add(handle)

    def on_advanced(self, callback):
        self._tell_advanced = callback

    def release_fetches(self):
        pass

    # -- PreparedAnswers, Forwarding ----------------------------------------------------------------------------------

    def prepare_answer(self, request, answer, mark=0):
        asked = (request.api_key, request.api_version, request.listener, bytes(request.body))
        self.prepared[asked], self.marks[asked] = answer, mark
        if mark and self._connections is not None:
            self._connections.marks[request.connection] = mark

    def forget_answers(self, api_key):
        self.prepared = {asked: answer for asked, answer in self.prepared.items() if asked[0] != api_key}

    def set_owners(self, topic, topic_id, owners):
        self.owners[topic, topic_id] = tuple(owners)

    def set_datagram_owners(self, topic, topic_id, owners):
        self.datagram_owners[topic, topic_id] = tuple(owners)
