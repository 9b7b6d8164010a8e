"""Clients that push their metrics to whole cores: what they are asked for, and what becomes of what they say."""

from __future__ import annotations

import math
import uuid
from contextlib import contextmanager

import pytest
import trio
import trio.testing
from prometheus_client.core import CounterMetricFamily

from tests.support.memory_node import running_node
from tests.telemetry.test_payload import counter, data_of, gauge
from tpc_broker import limits
from tpc_broker.broker.client_software import UNKNOWN, ClientSoftware
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.compression import Compression, compress
from tpc_broker.limits import MIB, SOFTWARE_TEXT_LENGTH_MAX
from tpc_broker.telemetry.counters import telemetry_counters
from tpc_broker.telemetry.pushed.instances import NO_ID
from tpc_broker.telemetry.pushed.standard import STANDARD
from tpc_broker.telemetry.telemetry_metrics import telemetry_metrics

NONE = ErrorCode.NONE
CLIENT_METRICS = 16
SET, DELETE = 0, 1
INTERVAL_S = 1.0
QUEUED, ASSIGNED, OPENED = (
    f"org.apache.kafka.{told}"
    for told in (
        "producer.record.queue.time.max", "consumer.coordinator.assigned.partitions",
        "producer.connection.creation.total",
    )
)  # fmt: skip


async def subscribe(node, name="s", **values):
    """`match="..."`, `metrics="..."`, `interval_ms="..."`; None: not set any more."""
    kind = messages.IncrementalAlterConfigsRequest
    changes = [
        kind.AlterableConfig(name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value)
        for key, value in values.items()
    ]
    resource = kind.AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
    (found,) = (await node.ask(0, kind(resources=[resource]))).responses
    assert found.error_code == NONE, found.error_message


async def ask(node, core=0, instance_id=NO_ID, **client):
    asked = messages.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id.bytes)
    return await node.ask(core, asked, **client)


async def push(node, given, data=b"", core=0, compression=Compression.NONE, is_terminating=False, **client):
    pushed = messages.PushTelemetryRequest(
        client_instance_id=given.client_instance_id, subscription_id=given.subscription_id,
        terminating=is_terminating, compression_type=int(compression), metrics=compress(compression, data),
    )  # fmt: skip
    with standing_still():
        return ErrorCode((await node.ask(core, pushed, **client)).error_code)


@contextmanager
def standing_still():
    """What is pushed is read in a helper thread, of which the clock that jumps does not know."""
    clock = trio.lowlevel.current_clock()
    before, clock.autojump_threshold = clock.autojump_threshold, math.inf
    try:
        yield
    finally:
        clock.autojump_threshold = before


def told(node, core=0):
    return telemetry_counters(node[core].client_telemetry)


async def test_a_client_without_subscriptions_is_asked_for_nothing(autojump_clock):
    async with running_node(cores=1) as node:
        given = await ask(node)
        assert given.error_code == NONE
        assert uuid.UUID(bytes=bytes(given.client_instance_id)).version == 4
        assert (given.push_interval_ms, given.telemetry_max_bytes, given.delta_temporality) == (300_000, MIB, True)
        assert list(given.accepted_compression_types) == [4, 3, 1, 2], "zstd, lz4, gzip, snappy"
        assert given.requested_metrics == []
        again = await ask(node, instance_id=uuid.UUID(bytes=bytes(given.client_instance_id)))
        assert again == messages.GetTelemetrySubscriptionsResponse(
            error_code=int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        ), "and an error says nothing else"


async def test_a_subscription_reaches_every_core_and_so_does_its_end(autojump_clock):
    async with running_node(cores=3) as node:
        await subscribe(node, metrics="*", interval_ms="1000")
        given = [await ask(node, core, uuid.UUID(int=7)) for core in range(3)]
        assert {one.subscription_id for one in given} == {given[0].subscription_id}
        assert [list(one.requested_metrics) for one in given] == [["*"]] * 3
        assert {one.push_interval_ms for one in given} == {1000}
        await subscribe(node, metrics=None, interval_ms=None)
        for core in range(3):
            assert await push(node, given[core], core=core) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
            assert (await ask(node, core, uuid.UUID(int=7))).requested_metrics == []


@pytest.mark.parametrize("compression", Compression)
async def test_what_is_pushed_is_told_by_fixed_names(autojump_clock, compression):
    async with running_node(cores=1) as node:
        await subscribe(node, metrics="org.apache.kafka", interval_ms="1000")
        data = data_of(gauge(QUEUED, 250.0), counter(OPENED, 3), gauge("my.own", 1.0))
        given = await ask(node, connection=1)
        assert await push(node, given, data, compression=compression, connection=1) is NONE
        other = await ask(node, connection=2)
        assert await push(node, other, data_of(gauge(ASSIGNED, 5)), connection=2) is NONE
        found = told(node)
        assert found["instances"] == {"producer": 1, "consumer": 1, "other": 0, "silent": 0}
        assert found["gauges"] == {
            "producer_record_queue_max_seconds": {"instances": 1, "value": 0.25},
            "consumer_assigned_partitions": {"instances": 1, "value": 5.0},
        }
        assert found["growths"]["producer_connections_opened_total"] == 3.0
        assert (found["counts"]["pushes"], found["counts"]["subscriptions"]) == (2, 1)
        node.lives[0].connections.close(1, "gone")
        assert told(node)["instances"] == {"producer": 0, "consumer": 1, "other": 0, "silent": 0}


async def test_the_first_push_comes_at_once_and_the_next_after_the_interval(autojump_clock):
    async with running_node(cores=1) as node:
        await subscribe(node, metrics="*", interval_ms=str(round(INTERVAL_S * 1000)))
        given = await ask(node)
        await trio.sleep(0.001)
        assert [await push(node, given) for _ in range(2)] == [NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        await trio.sleep(INTERVAL_S)
        assert await push(node, given) is NONE
        assert await push(node, given, is_terminating=True) is NONE
        assert await push(node, given) is ErrorCode.INVALID_REQUEST
        assert told(node)["refused"] == {
            "early": 1, "subscription": 0, "compression": 0, "large": 0, "invalid": 1, "unreadable": 0, "busy": 0
        }  # fmt: skip


async def test_what_cannot_be_read_is_refused_and_nobody_else_waits(autojump_clock):
    async with running_node(cores=1) as node:
        await subscribe(node, metrics="*", interval_ms="1000")
        bomb, good = bytes(32 * MIB), data_of(gauge(QUEUED, 1.0))
        for number, (data, compression) in enumerate(
            [(b"\x0a", Compression.NONE), (good[:-1], Compression.LZ4), (bomb, Compression.ZSTD),
             (b"\x0a\x00" * (MIB // 2), Compression.GZIP)]
        ):  # fmt: skip
            given = await ask(node, connection=number)
            assert await push(node, given, data, compression=compression, connection=number) is ErrorCode.INVALID_RECORD
        given = await ask(node)
        assert await push(node, given, bytes(MIB + 1)) is ErrorCode.TELEMETRY_TOO_LARGE
        other = await ask(node, connection=9)
        assert await push(node, other, good, connection=9) is NONE
        assert told(node)["refused"]["unreadable"] == 4
        assert told(node)["gauges"] == {"producer_record_queue_max_seconds": {"instances": 1, "value": 0.001}}


async def test_of_those_who_wait_to_be_read_a_bounded_number_and_none_that_is_gone(autojump_clock, monkeypatch):
    monkeypatch.setattr(limits, "TELEMETRY_PUSHES_WAITING_MAX", 2)
    async with running_node(cores=1) as node, trio.open_nursery() as nursery:
        await subscribe(node, metrics="*", interval_ms="1000")
        may_read, read, answers = trio.Event(), [], {}

        async def held(function, *arguments):
            read.append(bytes(arguments[1]))
            await may_read.wait()
            return function(*arguments)

        node[0].in_thread = held
        given = {number: await ask(node, connection=number) for number in range(1, 5)}
        data = {number: data_of(gauge(QUEUED, float(number))) for number in given}

        async def pushes(number):
            answers[number] = await push(node, given[number], data[number], connection=number)

        for number in (1, 2, 3):
            nursery.start_soon(pushes, number)
            await trio.testing.wait_all_tasks_blocked()
        assert read == [data[1]]
        await pushes(4)
        assert answers == {4: ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        node.lives[0].connections.close(2, "gone")
        may_read.set()
        await trio.testing.wait_all_tasks_blocked()
        assert read == [data[1], data[3]]
        assert (answers[1], answers[3]) == (NONE, NONE)
        assert await push(node, given[4], data[4], connection=4) is NONE, "and it may come at once"
        assert told(node)["refused"]["busy"] == 1
        nursery.cancel_scope.cancel()


async def test_the_bound_of_a_push_is_the_brokers_setting(autojump_clock):
    async with running_node(cores=1, settings=("telemetry.max.bytes=2000",)) as node:
        await subscribe(node, metrics="*", interval_ms="1000")
        given = await ask(node)
        assert given.telemetry_max_bytes == 2_000
        assert await push(node, given, bytes(2_001)) is ErrorCode.TELEMETRY_TOO_LARGE
        fits, large = (data_of(gauge("a" * size, 1.0)) for size in (1_000, 3_000))
        for data, error in ((fits, NONE), (large, ErrorCode.INVALID_RECORD)):
            await trio.sleep(INTERVAL_S)
            assert await push(node, given, data, compression=Compression.ZSTD) is error


async def test_a_subscription_is_for_whom_it_matches(autojump_clock):
    async with running_node(cores=1) as node:
        await subscribe(node, metrics="a", match="client_id=app-.*")
        await subscribe(node, "by-software", metrics="b", match="client_software_name=librdkafka")
        await subscribe(node, "by-place", metrics="c", match="client_source_address=127.*,client_source_port=3")
        for name, version in (("librdkafka", "2.16"), ("another", "1")):
            kind = messages.ApiVersionsRequest(client_software_name=name, client_software_version=version)
            await node.ask(0, kind, connection=len(name))
        found = {
            what: list((await ask(node, connection=connection, client_id=client_id)).requested_metrics)
            for what, connection, client_id in [
                ("id", 1, "app-1"), ("other id", 2, "another"), ("no id", 20, None), ("place", 3, ""),
                ("software", len("librdkafka"), "app-2"), ("other software", len("another"), "x"),
            ]
        }  # fmt: skip
        assert found == {"id": ["a"], "other id": [], "no id": [], "place": ["c"], "software": ["a", "b"],
                         "other software": []}  # fmt: skip


async def test_software_is_known_of_a_connection_that_c_has_answered(autojump_clock):
    async with running_node(cores=1) as node:
        await subscribe(node, metrics="b", match="client_software_name=librdkafka,client_software_version=2\\..*")
        plane, connections = node.lives[0].plane, node.lives[0].connections
        kind = messages.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16")
        await node.ask(0, kind, connection=1)
        (mark,) = [mark for (key, *_asked), mark in plane.marks.items() if key == ApiKey.API_VERSIONS]
        connections.marks[2] = mark
        asked_of = [list((await ask(node, connection=number)).requested_metrics) for number in (1, 2, 3)]
        assert asked_of == [["b"], ["b"], []]


async def test_of_two_names_of_a_connection_the_last_one_holds_whoever_answered(autojump_clock):
    async with running_node(cores=1) as node:
        plane, connections = node.lives[0].plane, node.lives[0].connections
        software = node[0].client_telemetry.software
        for name in ("a", "b"):
            kind = messages.ApiVersionsRequest(client_software_name=name, client_software_version="1")
            await node.ask(0, kind, connection=1)
            assert software.of(1) == (name, "1"), "Python has answered it"
        marks = [mark for (key, *_asked), mark in plane.marks.items() if key == ApiKey.API_VERSIONS and mark]
        for mark, name in zip(marks, ("a", "b"), strict=True):
            connections.marks[1] = mark
            assert software.of(1) == (name, "1"), "C has"


class Plane:
    """What it is told by, and what it has been told, as the plane has it."""

    def __init__(self, **bounds):
        self.marks, self.prepared = {}, {}
        self.software = ClientSoftware(self, self.prepared.clear, **bounds)

    def mark_of(self, connection):
        return self.marks.get(connection, 0)

    def ask(self, connection, software):
        if software not in self.prepared:
            self.prepared[software] = self.software.mark(software)
        self.marks[connection] = self.prepared[software]
        return self.software.of(connection)


def test_made_up_names_are_let_go_and_who_asks_has_its_own():
    plane = Plane(kinds_max=4)
    real = ("librdkafka", "2.16")
    for number in range(100):
        made_up = (f"x{number}", "1")
        assert plane.ask(number, made_up) == made_up
        assert plane.ask(1000, real) == real
        assert plane.ask(1001, real) == real
        assert len(plane.prepared) <= 4
    named = [connection for connection in range(100) if plane.software.of(connection) != UNKNOWN]
    assert all(plane.software.of(connection) == (f"x{connection}", "1") for connection in named)
    assert 0 < len(named) < 4
    assert plane.software.of(12345) == UNKNOWN


def test_a_name_that_is_too_long_is_not_kept():
    plane = Plane(kinds_max=2)
    most, long = (("a" * (SOFTWARE_TEXT_LENGTH_MAX + more), "1") for more in (0, 1))
    assert [plane.ask(1, software) for software in (most, long, most)] == [most, UNKNOWN, most]


async def test_metrics_have_fixed_names_and_no_label_of_a_client(autojump_clock):
    async with running_node(cores=2) as node:
        await subscribe(node, metrics="*", interval_ms="1000")
        for core, values in enumerate(([1000.0, 3000.0], [5000.0])):
            for number, value in enumerate(values):
                given = await ask(node, core, connection=number, client_id=f"secret-{core}-{number}")
                name = "org.apache.kafka.producer.record.queue.time.avg"
                data = data_of(gauge(name, value), counter(OPENED, 2), gauge(f"secret.{value}", 1.0))
                assert await push(node, given, data, core=core, connection=number) is NONE
        families = list(telemetry_metrics([(str(core), told(node, core)) for core in range(2)]))
    named = {f"tpc_client_{one.metric.removesuffix('_total')}" for one in STANDARD}
    assert {family.name for family in families if family.name.startswith("tpc_client_")} == named
    samples = [sample for family in families for sample in family.samples]
    assert {label for sample in samples for label in sample.labels} == {"core", "kind", "reason"}
    assert not any("secret" in text for sample in samples for text in [sample.name, *sample.labels.values()])
    values = {(sample.name, sample.labels["core"]): sample.value for sample in samples}
    average = "tpc_client_producer_record_queue_avg_seconds"
    assert (values[average, "0"], values[average, "1"]) == (2.0, 5.0)
    assert values["tpc_client_producer_connections_opened_total", "0"] == 4.0
    assert ("tpc_client_consumer_assigned_partitions", "0") not in values, "nobody says so"
    counters = {family.name for family in families if isinstance(family, CounterMetricFamily)}
    assert {"tpc_telemetry_pushes", "tpc_telemetry_refused", "tpc_client_producer_connections_opened"} <= counters
