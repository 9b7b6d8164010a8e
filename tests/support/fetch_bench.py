"""A plane whose Fetches are answered in C, or by the broker's handler in Python: what both must agree on."""

from __future__ import annotations

from types import SimpleNamespace

import trio

from tests.support.connection_bench import header_of
from tests.support.definitions import decode_response, encode_request
from tests.support.plane_bench import PlaneBench, records_of, settings_with, topic_id_of
from tpc_broker._ring import ffi, lib
from tpc_broker.broker.handlers.fetch import handle_fetch
from tpc_broker.broker.partition import Partition
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import CloseReason, CloseWhen
from tpc_broker.engine.data_plane import READ_SLICES_MAX, RingDataPlane
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.protocol import encode_response_header
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.metadata.topic_config import TopicConfig

PRODUCE, FETCH = 0, 1
BROKER_ID = 3


class EmptyFiles:
    """A partition whose segments hold nothing: all of it is in memory."""

    def __init__(self, leader_epoch):
        self.leader_epoch = leader_epoch
        self.written_end_offset = 0
        self.failed = None
        self.epochs = LeaderEpochs()
        self.epochs.assign(leader_epoch, 0)

    async def read_once(self, _offset, _bytes_max, _upto):
        return b""

    def aborted_now(self, _offset, _upto, _bytes_max=None):
        return []

    def aborted_below(self, _offset, upto, _count_max):
        return upto, []


def plane_face(bench):
    """The broker's face of a plane that a bench has made."""
    face = RingDataPlane.__new__(RingDataPlane)
    face._plane, face._connections = bench.plane.pointer, bench.connections
    face._slices = ffi.new("tpc_slice[]", READ_SLICES_MAX)
    face._state, face._use = ffi.new("tpc_partition_state *"), ffi.new("tpc_partition_use *")
    return face


class FetchBench(PlaneBench):
    """`in_c`: Fetches are tried in C first. What C leaves, or everything, goes to the broker's handler."""

    def __init__(self, path, *, in_c, seed=1, **options):
        super().__init__(path, **options)
        self.face = plane_face(self)
        self.partitions, self.files = {}, {}
        lib.tpc_plane_set_fetch_seed(self.plane.pointer, seed)
        if in_c:
            self.plane.set_hot(on=True)
        endpoint = SimpleNamespace(broker_id=BROKER_ID, host="here", port=9092, rack=None)
        self.core = SimpleNamespace(
            plane=self.face, partitions=self, core_id=0, replicated=None,
            grants=SimpleNamespace(name=lambda _request: None), access=SimpleNamespace(authorizer=None),
            view=SimpleNamespace(
                leader_of=lambda _listener, _topic, _index: (BROKER_ID, 0), endpoints=lambda _listener: [endpoint],
                endpoint=lambda _listener, _core: endpoint,
            ),
            clock=SimpleNamespace(monotonic_ms=lambda: 1 << 60), dispatcher=SimpleNamespace(is_open=lambda _id: True),
        )  # fmt: skip
        self.handled = 0

    async def wait_moved(self, _topic, _index):
        """Nothing moves between cores here."""

    def find(self, topic, index, *, with_followers=False):
        name = topic if isinstance(topic, str) else topic.bytes.rstrip(b"!").decode()
        known = [key for key in self.partitions if key[0] == name]
        if not known:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID
        found = self.partitions.get((name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(found, Partition) and not (found.is_readable if with_followers else found.is_led):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return found

    def find_written(self, topic, index):
        found = self.find(topic, index)
        return found if isinstance(found, Partition) and found.is_replicated else None

    def make(self, topic, index=0, leader_epoch=0, *flags, files=None, **values):
        """A partition, empty or with what its segments (`PartitionStorage`) hold."""
        if files is not None:
            values |= {"log_start_offset": files.log_start_offset, "log_end_offset": files.written_end_offset}
        handle = self.lead(topic, index, settings_with(*flags, leader_epoch=leader_epoch), **values)
        self.partitions[topic, index] = Partition(
            topic_id_of(topic), topic, index, TopicConfig(), plane=self.face, storage=None,
            files=files or EmptyFiles(leader_epoch), handle=handle, is_internal=False,
        )  # fmt: skip
        return handle

    def delete(self, topic, index=0):
        self.plane.withdraw(self.partitions.pop((topic, index)).handle)

    def offer(self, request):
        if request.api_key == PRODUCE:
            super().offer(request)
            return
        self.handled += 1
        try:
            message = codec("FetchRequest", request.api_version).decode(request.body)
            response = self._handle(request, message)
        except DecodeError:
            self.connections.answer_none(request)
            self.connections.close(request.connection, CloseReason.REQUEST_INVALID, CloseWhen.AFTER_ANSWERED)
            return
        if response is None:  # C has it again
            return
        header = encode_response_header(ApiKey.FETCH, request.api_version, request.correlation_id)
        parts = codec("FetchResponse", request.api_version).encode_parts(response)
        ClientConnections(self.connections).answer(request, [header, *parts])

    def _handle(self, request, message):
        """A quorum is waited for; else there is nothing to wait for."""
        if self.core.replicated is not None:
            return trio.run(handle_fetch, self.core, request, message)
        try:
            handle_fetch(self.core, request, message).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")

    # -- the client's side -------------------------------------------------------------------------------------------

    def fill(self, client, topic, index, counts, value=b"value"):
        """One batch for each count, durable when this returns."""
        for count in counts:
            self.produce(client, (topic, index, records_of(count, value=value)))

    def send_fetch(self, client, version, values, correlation_id=1):
        payload = encode_request("Fetch", version, values, correlation_id)
        client.sendall(len(payload).to_bytes(4) + payload)

    def fetch(self, client, version, values, correlation_id=1):
        """The decoded answer."""
        self.send_fetch(client, version, values, correlation_id)
        return decode_response("Fetch", version, self.read_frame(client))[1]

    def fetch_counts(self):
        return self.face.fetch_statistics()

    def session(self, session_id):
        """(expected epoch, [(key, what is asked, what was sent)]) or None."""
        epoch = ffi.new("int32_t *")
        parts, sent = ffi.new("tpc_fetch_asked[]", 100), ffi.new("tpc_fetch_outcome[]", 100)
        count = lib.tpc_fetch_session_describe(self.plane.pointer, session_id, epoch, parts, sent, 100)
        if count < 0:
            return None
        return epoch[0], [
            (
                bytes(ffi.buffer(part.topic_name, part.topic_name_bytes)) if part.topic_name else bytes(part.topic_id),
                part.partition, part.fetch_offset, part.bytes_max, part.current_leader_epoch, part.last_fetched_epoch,
                told.high_watermark, told.log_start_offset,
            )
            for part, told in zip(parts[0:count], sent[0:count], strict=True)
        ]  # fmt: skip


def raw_fetch(version, body):
    """A Fetch whose body is any bytes."""
    header = header_of(api_key=FETCH, api_version=version, client_id="fuzz") + (b"\0" if version >= 12 else b"")
    return (len(header) + len(body)).to_bytes(4) + header + body
