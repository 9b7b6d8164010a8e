"""What is read of a push: the same as OpenTelemetry's own library reads, within bounds, whatever the bytes are."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from tpc_broker.kafka.compression import Compression, compress
from tpc_broker.limits import MIB, TELEMETRY_FIELDS_MAX
from tpc_broker.telemetry.pushed import payload
from tpc_broker.telemetry.pushed.payload import PayloadError, Pushed, read_push
from tpc_broker.telemetry.pushed.standard import BY_NAME, PREFIX, STANDARD, Kind, Over

PLACES = {one.metric: place for place, one in enumerate(STANDARD)}
MAX, AVERAGE = PLACES["producer_record_queue_max_seconds"], PLACES["producer_node_request_avg_seconds"]
SUM, GROWTH = PLACES["consumer_assigned_partitions"], PLACES["producer_connections_opened_total"]
DELTA, CUMULATIVE = pb.AGGREGATION_TEMPORALITY_DELTA, pb.AGGREGATION_TEMPORALITY_CUMULATIVE


def name_of(place):
    return (PREFIX + STANDARD[place].told).decode()


def gauge(name, *values):
    return pb.Metric(name=name, gauge=pb.Gauge(data_points=map(point, values)))


def counter(name, *values, temporality=DELTA):
    points = map(point, values)
    return pb.Metric(name=name, sum=pb.Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True))


def point(value):
    return pb.NumberDataPoint(**{"as_double" if isinstance(value, float) else "as_int": value})


def data_of(*metrics):
    scope = pb.ScopeMetrics(metrics=metrics)
    return pb.MetricsData(resource_metrics=[pb.ResourceMetrics(scope_metrics=[scope])]).SerializeToString()


def read(data, compression=Compression.NONE, bytes_max=MIB):
    return read_push(compression, memoryview(data), bytes_max)


def test_the_standard_metrics_are_read_and_all_others_are_passed():
    pushed = read(data_of(
        gauge(name_of(MAX), 3, 7.5, 5),
        gauge(name_of(AVERAGE), 2, 4),
        gauge(name_of(SUM), 6, 7),
        counter(name_of(GROWTH), 2, 3),
        gauge("org.apache.kafka.producer.of.my.own", 99),
        gauge("com.example." + name_of(MAX), 99),
        pb.Metric(name=name_of(MAX), description="without data"),
    ))  # fmt: skip
    assert pushed == Pushed(Kind.PRODUCER, {MAX: 7.5, AVERAGE: 3.0, SUM: 13.0}, {GROWTH: 5.0})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.apache.kafka.producer.x", Kind.PRODUCER),
        ("org.apache.kafka.consumer.share.x", Kind.CONSUMER),
        ("org.apache.kafka.admin.client.x", Kind.OTHER),
        ("", Kind.OTHER),
    ],
)
def test_a_client_is_what_its_metrics_are_called(name, kind):
    assert read(data_of(gauge(name, 1))).kind is kind


def test_nothing_is_pushed_by_nothing():
    assert read(b"") == read(data_of()) == Pushed(Kind.OTHER, {}, {})


def test_what_a_counter_has_come_to_since_its_start_is_not_what_it_grew_by():
    for temporality in (CUMULATIVE, pb.AGGREGATION_TEMPORALITY_UNSPECIFIED):
        assert read(data_of(counter(name_of(GROWTH), 5, temporality=temporality))).growths == {}
    assert read(data_of(gauge(name_of(GROWTH), 5))).growths == {}
    assert read(data_of(counter(name_of(SUM), 5, temporality=CUMULATIVE))).gauges == {SUM: 5.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -0.5, 1e16, 2**62])
def test_what_nobody_can_have_measured_is_passed(value):
    pushed = read(data_of(gauge(name_of(SUM), value), counter(name_of(GROWTH), value), gauge(name_of(MAX), value, 1)))
    assert pushed == Pushed(Kind.CONSUMER, {MAX: 1.0}, {})


# -- compared with the library -----------------------------------------------------------------------------------------

NAMES = st.sampled_from([*(name.decode() for name in BY_NAME), "", "another", "org.apache.kafka.producer", "ü" * 40])
VALUES = st.lists(st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000)), max_size=3)
POINTS = st.builds(
    lambda value, flags, time: pb.NumberDataPoint(
        **{"as_double" if isinstance(value, float) else "as_int": value}, flags=flags, time_unix_nano=time,
        attributes=[{"key": "client_id", "value": {"string_value": "\0ab"}}],
    ),
    st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1)), st.integers(0, 3), st.integers(0, 2**60),
)  # fmt: skip
METRICS = st.one_of(
    st.builds(gauge, NAMES),
    st.builds(lambda name, points: pb.Metric(name=name, gauge=pb.Gauge(data_points=points)), NAMES, st.lists(POINTS)),
    st.builds(lambda name, values: gauge(name, *values), NAMES, VALUES),
    st.builds(lambda name, values, how: counter(name, *values, temporality=how), NAMES, VALUES,
              st.sampled_from([DELTA, CUMULATIVE, 0])),
    st.builds(lambda name: pb.Metric(name=name, unit="ms", histogram=pb.Histogram(data_points=[
        pb.HistogramDataPoint(count=3, sum=1.0, bucket_counts=[1, 2], explicit_bounds=[0.5])])), NAMES),
)  # fmt: skip
WHOLE = st.builds(
    lambda scopes: pb.MetricsData(resource_metrics=[
        pb.ResourceMetrics(
            resource={"attributes": [{"key": "a", "value": {"int_value": -1}}]},
            scope_metrics=[pb.ScopeMetrics(scope={"name": "s"}, metrics=metrics)], schema_url="u",
        )
        for metrics in scopes
    ]),
    st.lists(st.lists(METRICS, max_size=6), max_size=3),
)  # fmt: skip


def by_the_library(data):
    gauges, growths = {}, {}
    found = pb.MetricsData.FromString(data)
    metrics = [metric for resource in found.resource_metrics for scope in resource.scope_metrics
               for metric in scope.metrics]  # fmt: skip
    kinds = [kind for metric in metrics for kind in (Kind.PRODUCER, Kind.CONSUMER)
             if metric.name.startswith(f"org.apache.kafka.{kind.value}.")]  # fmt: skip
    for place, one in enumerate(STANDARD):
        values = []
        for metric in metrics:
            if metric.name == name_of(place):
                told = metric.sum if metric.WhichOneof("data") == "sum" else metric.gauge
                is_delta = metric.sum.aggregation_temporality == DELTA
                numbers = [getattr(point, point.WhichOneof("value")) for point in told.data_points]
                if one.over is not Over.GROWTH or is_delta:
                    values += [float(number) for number in numbers if 0 <= number <= payload.VALUE_MAX]
        if values:
            into = growths if one.over is Over.GROWTH else gauges
            into[place] = {Over.MAX: max(values), Over.AVERAGE: sum(values) / len(values)}.get(one.over, sum(values))
    return Pushed(kinds[0] if kinds else Kind.OTHER, gauges, growths)


@given(WHOLE, st.sampled_from(Compression))
def test_it_reads_what_the_library_reads(whole, compression):
    data = whole.SerializeToString()
    assert read(compress(compression, data), compression) == by_the_library(data)


def test_the_order_of_fields_does_not_matter():
    """A data point before its metric's name, and a counter's temporality behind or in front of its points."""
    name = b"\x0a" + bytes([len(name_of(GROWTH))]) + name_of(GROWTH).encode()
    point = b"\x0a\x09\x31" + (5).to_bytes(8, "little")
    temporality = b"\x10\x01"
    for inner in (point + temporality, temporality + point):
        data = b"\x3a" + bytes([len(inner)]) + inner
        for metric in (name + data, data + name):
            scope = b"\x12" + bytes([len(metric)]) + metric
            whole = b"\x12" + bytes([len(scope)]) + scope
            assert read(b"\x0a" + bytes([len(whole)]) + whole) == Pushed(Kind.PRODUCER, {}, {GROWTH: 5.0})


# -- hostile bytes -----------------------------------------------------------------------------------------------------

GOOD = data_of(gauge(name_of(MAX), 3, 7.5), counter(name_of(GROWTH), 2), gauge("another", 1))


def test_whatever_is_cut_off_is_noticed():
    for length in range(1, len(GOOD)):
        with pytest.raises(PayloadError):
            read(GOOD[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\x0a",
        b"\x0a\x02\x00",
        b"\x08" + b"\xff" * 9,
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x09" + bytes(7),
        b"\x0d" + bytes(3),
        b"\x0a" + b"\xff" * 9 + b"\x01",
        b"\x0a\x04\x12\x7f\x00\x00",
    ],
    ids=bytes.hex,
)
def test_what_is_no_protobuf_is_refused(data):
    with pytest.raises(PayloadError):
        read(data)


def read_or_refuse(data, compression):
    """Any other error is a defect, and so is a number that nobody can have measured."""
    with suppress(PayloadError):
        pushed = read(data, compression, 10_000)
        values = [*pushed.gauges.values(), *pushed.growths.values()]
        assert all(0 <= value <= 10 * payload.VALUE_MAX for value in values)


@given(st.integers(0, 2**32), st.sampled_from(Compression))
def test_bytes_that_are_changed_are_read_or_refused(seed, compression):
    chance, data = random.Random(seed), bytearray(compress(compression, GOOD))
    for _change in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    read_or_refuse(data, compression)


@given(st.binary(max_size=200), st.sampled_from(Compression))
def test_any_bytes_are_read_or_refused(data, compression):
    read_or_refuse(data, compression)


def test_a_compression_that_is_none_is_refused():
    with pytest.raises(PayloadError):
        read(GOOD, 9)


@pytest.mark.parametrize("compression", list(Compression)[1:], ids=lambda one: one.name)
def test_what_becomes_larger_than_the_bound_is_refused(compression):
    with pytest.raises(PayloadError):
        read(compress(compression, bytes(64 * MIB)), compression)
    data = compress(compression, GOOD)
    assert read(data, compression, len(GOOD)).kind is Kind.PRODUCER
    with pytest.raises(PayloadError):
        read(data, compression, len(GOOD) - 1)


def test_a_snappy_block_that_claims_a_gibibyte_is_refused():
    with pytest.raises(PayloadError):
        read(b"\x80\x80\x80\x80\x04" + bytes(100), Compression.SNAPPY)


def nothing_but(path):
    """As many empty messages as go into a push, in the field that the last number of `path` is, within the others."""
    data = bytes([path[-1] << 3 | payload.BYTES, 0]) * (MIB // 2 - 16)
    for number in reversed(path[:-1]):
        data = bytes([number << 3 | payload.BYTES]) + varint(len(data)) + data
    return data


def varint(number):
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


@pytest.mark.parametrize("path", [(1,), (9,), (1, 2), (1, 2, 2), (1, 2, 2, 5)], ids=str)
def test_what_is_nothing_but_fields_is_given_up(path):
    data = nothing_but(path)
    assert pb.MetricsData.FromString(data)
    with pytest.raises(PayloadError, match="fields"):
        read(data)


def test_so_many_fields_are_read_as_are_allowed():
    read(b"\x0a\x00" * (TELEMETRY_FIELDS_MAX))
    with pytest.raises(PayloadError, match="fields"):
        read(b"\x0a\x00" * (TELEMETRY_FIELDS_MAX + 1))


def test_streams_behind_one_another_are_bounded_together():
    many = bytes(cramjam.gzip.compress(bytes(MIB // 2))) * 4
    with pytest.raises(PayloadError):
        read(many, Compression.GZIP, MIB)
