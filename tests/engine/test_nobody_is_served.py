"""Who has not said who it is gets nothing: every API that this broker offers, on every way that a request takes in C.

An API without a row in `ASKED`, or a way that serves, parks, appends or sends on, fails. What a way does for who was
let in is looked at as well, so that no way is one that nothing could come by.
"""

from __future__ import annotations

import errno

import pytest

from tests.engine.test_plane_fetch import asks
from tests.support.connection_bench import frame_of
from tests.support.definitions import encode_request
from tests.support.plane_bench import produce_body, records_of
from tpc_broker._bytes import ffi as bytes_ffi
from tpc_broker._bytes import lib as bytes_lib
from tpc_broker._ring import ffi, lib
from tpc_broker.broker.handlers.table import HANDLERS
from tpc_broker.engine.connections import CloseReason, Stage
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.protocol import encode_request_frame

HERE, ELSEWHERE = 0, 1  # partitions of "t": of the core that is asked, and of the other one
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
STRANGERS_MAY_ASK = {SASL_HANDSHAKE, SASL_AUTHENTICATE, int(ApiKey.API_VERSIONS)}
LARGE_BYTES = 200_000
FETCH_VERSION = 12


def whole(payload):
    return len(payload).to_bytes(4) + payload


def produce(partition, value_bytes=10, **fields):
    records = records_of(1, value=bytes(value_bytes))
    return frame_of(produce_body([("t", partition, records)], **fields), api_key=0, api_version=7)


def fetch(partition, wait_ms):
    values = asks(("t", partition, 0), wait_ms=wait_ms, bytes_min=1)
    return whole(encode_request("Fetch", FETCH_VERSION, values, 1))


def asks_to_produce(_key):
    for partition in (HERE, ELSEWHERE):
        yield produce(partition)
        yield produce(partition, acks=0)
        yield produce(partition, LARGE_BYTES)


def asks_to_fetch(_key):
    for partition in (HERE, ELSEWHERE):
        yield fetch(partition, 0)
        yield fetch(partition, 60_000)


def asks_by_default(key):
    """With nothing filled in, in the first version and in the last: what matters is which API it is."""
    for version in {api(key).first_version, api(key).last_version}:
        message = codec(api(key).request_name, version).message_type()
        yield b"".join(map(bytes, encode_request_frame(key, version, 1, None, message)))


def asks_to_be_let_in(key):
    yield frame_of(b"\0\5PLAIN", api_key=key, api_version=1)


_BY_DEFAULT = (
    "METADATA", "LIST_OFFSETS", "API_VERSIONS", "FIND_COORDINATOR", "OFFSET_COMMIT", "OFFSET_FETCH", "JOIN_GROUP",
    "HEARTBEAT", "LEAVE_GROUP", "SYNC_GROUP", "DESCRIBE_GROUPS", "LIST_GROUPS", "CREATE_TOPICS", "DELETE_TOPICS",
    "DELETE_RECORDS", "INIT_PRODUCER_ID", "OFFSET_FOR_LEADER_EPOCH", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN",
    "END_TXN", "WRITE_TXN_MARKERS", "TXN_OFFSET_COMMIT", "DESCRIBE_ACLS", "CREATE_ACLS", "DELETE_ACLS",
    "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALTER_REPLICA_LOG_DIRS", "DESCRIBE_LOG_DIRS", "CREATE_PARTITIONS",
    "CREATE_DELEGATION_TOKEN", "RENEW_DELEGATION_TOKEN", "EXPIRE_DELEGATION_TOKEN", "DESCRIBE_DELEGATION_TOKEN",
    "DELETE_GROUPS", "ELECT_LEADERS", "INCREMENTAL_ALTER_CONFIGS", "ALTER_PARTITION_REASSIGNMENTS",
    "LIST_PARTITION_REASSIGNMENTS", "OFFSET_DELETE", "DESCRIBE_CLIENT_QUOTAS", "ALTER_CLIENT_QUOTAS",
    "DESCRIBE_USER_SCRAM_CREDENTIALS", "ALTER_USER_SCRAM_CREDENTIALS", "DESCRIBE_QUORUM", "UPDATE_FEATURES",
    "DESCRIBE_CLUSTER", "DESCRIBE_PRODUCERS", "UNREGISTER_BROKER", "DESCRIBE_TRANSACTIONS", "LIST_TRANSACTIONS",
    "CONSUMER_GROUP_HEARTBEAT", "CONSUMER_GROUP_DESCRIBE", "GET_TELEMETRY_SUBSCRIPTIONS", "PUSH_TELEMETRY",
    "LIST_CONFIG_RESOURCES", "DESCRIBE_TOPIC_PARTITIONS",
)  # fmt: skip
ASKED = {
    int(ApiKey.PRODUCE): asks_to_produce,
    int(ApiKey.FETCH): asks_to_fetch,
    SASL_HANDSHAKE: asks_to_be_let_in,
    SASL_AUTHENTICATE: asks_to_be_let_in,
    **{int(ApiKey[name]): asks_by_default for name in _BY_DEFAULT if name in ApiKey.__members__},
}


def test_every_api_that_is_offered_is_asked_here():
    assert {int(key) for key in HANDLERS} <= set(ASKED), "a row for the new API is missing in `ASKED`"


class World:
    """Two cores of a node behind a shared listener that asks for authentication. An answer is prepared to whatever is
    asked, and there are records to be fetched.
    """

    def __init__(self, node):
        self.node = node
        self.front, self.owner = node.cores
        self.handles = node.make("t", [0, 1])
        self.appended = [0, 0]
        self.reached_python = []
        for core in node.cores:
            client = core.connect()
            partition = HERE if core is self.front else ELSEWHERE
            core.produce(client, ("t", partition, records_of(1)))
            core.settle()
        self.appended = self.log_ends()
        self.front.connections.begin_in(0, Stage.SASL)
        self.front.on_request = self.note
        self.handed_over = []
        self.before = self.done()

    def note(self, request):
        self.reached_python.append(request.api_key)
        self.handed_over.append(request)

    def answer_next(self):
        self.front.until(lambda: self.handed_over)
        self.front.connections.answer(self.handed_over.pop(0), b"\0\0\0\1")

    def log_ends(self):
        cores = self.node.cores
        return [
            core.plane.state(handle).log_end_offset for core, handle in zip(cores, self.handles, strict=True)
        ]

    def done(self):
        """All that could have been done for a stranger."""
        core = self.front
        return {
            "requests_hot": core.connections.statistics().requests_hot,
            "prepared": core.plane.statistics()["prepared_answers"],
            "appended": self.log_ends(),
            "parked": core.fetch_counts().parked_now + self.owner.fetch_counts().parked_now,
            "forwarded": core.link_counts()["forwarded"],
            "streams": self.owner.link_counts()["streams"],
        }

    def prepare(self, frame):
        """An answer to exactly this request."""
        key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
        out, at = bytes_ffi.new("tpc_request_header *"), bytes_ffi.new("uint8_t[]", frame[4:])
        assert bytes_lib.tpc_request_header_decode(at, len(frame) - 4, out) == 0
        body = frame[4 + out.body_position :]
        request, held = ffi.new("tpc_request *"), ffi.new("uint8_t[]", body)
        request.api_key, request.api_version, request.body, request.body_bytes = key, version, held, len(body)
        result = lib.tpc_plane_prepare_answer(self.front.plane.pointer, request, b"secret", 6, 0)
        assert result == 0 or (result == -errno.EMSGSIZE and key == ApiKey.PRODUCE)
        return key

    def forget(self, key):
        lib.tpc_plane_forget_answers(self.front.plane.pointer, key)


def all_at_once(world, client, frame):
    world.front.feed(client, frame)


def behind_api_versions(world, client, frame):
    world.front.feed(client, frame_of(b"", api_key=18, api_version=0) + frame)
    world.answer_next()


def behind_a_handshake(world, client, frame):
    world.front.feed(client, frame_of(b"\0\5PLAIN", api_key=17, api_version=1) + frame)
    world.answer_next()


def in_two_pieces(world, client, frame):
    """So it has a frame of its own."""
    world.front.feed(client, frame[:-1])
    world.front.turn()
    world.front.feed(client, frame[-1:])


def byte_by_byte_at_first(world, client, frame):
    for position in range(12):
        world.front.feed(client, frame[position : position + 1])
    world.front.feed(client, frame[12:])


def as_one_of_large_requests(world, client, frame):
    """The kernel receives the rest of it into its frame, whose place may have been chosen."""
    world.front.feed(client, frame_of(bytes(2 * LARGE_BYTES), api_key=17, api_version=1))
    world.answer_next()
    world.front.feed(client, frame[: len(frame) // 2])
    world.front.turn()
    world.front.feed(client, frame[len(frame) // 2 :])


WAYS = (
    all_at_once, behind_api_versions, behind_a_handshake, in_two_pieces, byte_by_byte_at_first,
    as_one_of_large_requests,
)  # fmt: skip


@pytest.fixture
def world(tmp_path, make_node):
    return World(make_node(2))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_stranger_gets_nothing_of_any_api_on_any_way(world, way):
    core = world.front
    for key, frames in sorted(ASKED.items()):
        for frame in frames(key):
            world.prepare(frame)
            client = core.connect()
            closed = []
            core.on_closed = lambda *event, closed=closed: closed.append(event[1])
            try:
                way(world, client, frame)
            except ConnectionError:
                core.until(lambda closed=closed: closed)
            if key in STRANGERS_MAY_ASK:
                core.until(lambda: world.handed_over)
                assert world.handed_over.pop().api_key == key
            else:
                core.until(lambda closed=closed: closed)
                assert closed == [CloseReason.UNAUTHENTICATED], (key, way)
                assert not world.handed_over, (key, way)
            client.close()
            core.until(lambda: core.connections.statistics().connections == 1)
            assert world.done() == world.before, (key, way)
            world.forget(key)
    assert set(world.reached_python) <= STRANGERS_MAY_ASK


LET_IN = {"principal": "User:alice", "host": "127.0.0.1"}


@pytest.mark.parametrize("way", [all_at_once, in_two_pieces, byte_by_byte_at_first], ids=lambda way: way.__name__)
def test_who_was_let_in_gets_all_of_it_on_the_same_ways(world, way):
    """So these ways do lead to what the test above finds untouched."""
    core, opened = world.front, []
    core.connections.on_opened = lambda connection, *_facts: opened.append(connection)
    world.owner.connections.on_opened = lambda connection, *_facts: world.owner.connections.let_in(
        connection, 1, 0, "User:alice", "127.0.0.1"
    )
    client = core.connect()
    core.until(lambda: opened)
    assert core.connections.let_in(opened[0], 1, 0, **LET_IN)
    prepared = next(asks_by_default(int(ApiKey.METADATA)))
    world.prepare(prepared)
    for frame in (produce(HERE), produce(ELSEWHERE), fetch(HERE, 0), fetch(ELSEWHERE, 0), prepared):
        way(world, client, frame)
        assert core.read_frame(client)
    now, before = world.done(), world.before
    assert now["appended"] == [end + 1 for end in before["appended"]]
    assert (now["prepared"], now["streams"]) == (before["prepared"] + 1, 1)
    assert now["forwarded"] == before["forwarded"] + 2
    assert now["requests_hot"] == before["requests_hot"] + 5
    assert not world.reached_python


def test_a_stranger_has_no_place_chosen_for_its_bytes(world, tmp_path):
    """Which would move the places of those that are let in."""
    core, opened = world.front, []
    core.settle()
    window = ffi.new("tpc_in_place_window_params *")
    state = core.plane.state(world.handles[HERE])
    with (tmp_path / "segment").open("wb") as file:
        window.descriptor, window.batch_bytes_min = file.fileno(), 65_536
        window.segment_bytes_max = window.reserved_position = 1 << 30
        window.written_position, window.written_offset = 100, state.log_start_offset
        assert lib.tpc_partition_open_in_place_window(core.plane.pointer, world.handles[HERE], window) == 0

    def taken_for_half_of_a_large_produce(client):
        core.feed(client, frame_of(bytes(2 * LARGE_BYTES), api_key=17, api_version=1))
        world.answer_next()
        assert core.read_frame(client) == b"\0\0\0\1"
        frame, before = produce(HERE, LARGE_BYTES), core.connections.statistics()
        core.feed(client, frame[:1000])
        core.until(lambda: core.connections.statistics().assembling_bytes > before.assembling_bytes)
        return core.connections.statistics().budget_bytes_used - before.budget_bytes_used - len(frame)

    core.connections.on_opened = lambda connection, *_facts: opened.append(connection)
    stranger = core.connect()
    as_it_comes = taken_for_half_of_a_large_produce(stranger)
    known = core.connect()
    core.until(lambda: len(opened) == 2)
    core.connections.let_in(opened[1], 1, 0, **LET_IN)
    placed = taken_for_half_of_a_large_produce(known)
    assert as_it_comes < 4096 <= placed
    lib.tpc_partition_close_in_place_window(core.plane.pointer, world.handles[HERE])


def test_what_is_pipelined_behind_a_login_that_fails_is_not_looked_at(world):
    core = world.front
    client = core.connect()
    half = produce(HERE)
    core.feed(client, frame_of(b"\0\5PLAIN", api_key=SASL_AUTHENTICATE, api_version=1) + half[:20])
    core.until(lambda: world.handed_over)
    request = world.handed_over.pop()
    core.connections.answer(request, b"no")
    assert core.connections.close(request.connection, CloseReason.AUTHENTICATION, lib.TPC_CLOSE_AFTER_ANSWERED)
    core.feed(client, half[20:])
    assert core.read_frame(client) == b"no"
    assert core.read_end(client)
    assert world.done() == world.before
