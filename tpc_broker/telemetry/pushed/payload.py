"""What a client has pushed: OpenTelemetry's MetricsData in protobuf, read as far as the metrics of `standard` need it.

No library makes objects of it first: a mebibyte of empty messages would be half a million of them, made in one go, in
which nothing else gets its turn (docs/decisions/2026-11-29-client-telemetry.md). This is a walk over the fields, which
goes into what it looks for, skips all else, and gives up after `TELEMETRY_FIELDS_MAX` of them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.kafka.compression import decompress
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.limits import TELEMETRY_FIELDS_MAX
from tpc_broker.telemetry.pushed.standard import BY_NAME, PREFIX, STANDARD, Kind, Over

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUE_MAX: Final = 1e15
"""What is above it, or below 0, or no number, is nothing that a client has measured."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX: Final = 10
MORE: Final = 0x80
"""Of a byte of a varint: it is not the last one."""
_DELTA: Final = 1
_DOUBLE: Final = struct.Struct("<d")
_INTEGER: Final = struct.Struct("<q")

# Numbers of fields in opentelemetry/proto/metrics/v1/metrics.proto, which is stable.
_RESOURCE_METRICS: Final = 1  # of MetricsData
_SCOPE_METRICS: Final = 2  # of ResourceMetrics
_METRICS: Final = 2  # of ScopeMetrics
_NAME, _GAUGE, _SUM = 1, 5, 7  # of Metric
_POINTS, _TEMPORALITY = 1, 2  # of Gauge and Sum, of Sum
_AS_DOUBLE, _AS_INT = 4, 6  # of NumberDataPoint


class PayloadError(Exception):
    """It cannot be decompressed within the bound, or is no MetricsData, or has too many fields."""


class Pushed(NamedTuple):
    """What one push says. Keys are places in `STANDARD`."""

    kind: Kind
    gauges: dict[int, float]
    growths: dict[int, float]


def read_push(compression: int, data: memoryview, bytes_max: int) -> Pushed:
    """PayloadError. `bytes_max`: of what is decompressed; memory is taken as it grows."""
    try:
        plain = decompress(compression, data, bytes_max)
    except DecodeError as error:
        raise PayloadError(str(error)) from None
    return _Walk(bytes(plain)).pushed()


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields_left = TELEMETRY_FIELDS_MAX
        self._kind = Kind.OTHER
        self._values: dict[int, list[float]] = {}

    def pushed(self) -> Pushed:
        for resource in self._within(0, len(self._data), _RESOURCE_METRICS):
            for scope in self._within(*resource, _SCOPE_METRICS):
                for metric in self._within(*scope, _METRICS):
                    self._take(*metric)
        gauges, growths = {}, {}
        for place, values in self._values.items():
            over = STANDARD[place].over
            if over is Over.GROWTH:
                growths[place] = sum(values)
            elif over is Over.SUM:
                gauges[place] = sum(values)
            else:
                gauges[place] = max(values) if over is Over.MAX else sum(values) / len(values)
        return Pushed(self._kind, gauges, growths)

    def _take(self, start: int, end: int) -> None:
        """A Metric; its name need not be what comes first."""
        name, holders = b"", []
        for number, wire, at, upto in self._fields(start, end):
            if wire != BYTES:
                continue
            if number == _NAME:
                name = self._data[at : min(upto, at + NAME_BYTES_MAX)]
            elif number in (_GAUGE, _SUM):
                holders.append((number, at, upto))
        self._note_kind(name)
        place = BY_NAME.get(name)
        if place is None:
            return
        is_growth = STANDARD[place].over is Over.GROWTH
        for number, at, upto in holders:
            if not is_growth or (number == _SUM and self._is_delta(at, upto)):
                values = [value for point in self._within(at, upto, _POINTS) for value in self._numbers(*point)]
                if values:
                    self._values.setdefault(place, []).extend(values)

    def _note_kind(self, name: bytes) -> None:
        if self._kind is Kind.OTHER and name.startswith(_OF_PRODUCERS):
            self._kind = Kind.PRODUCER
        elif self._kind is Kind.OTHER and name.startswith(_OF_CONSUMERS):
            self._kind = Kind.CONSUMER

    def _is_delta(self, start: int, end: int) -> bool:
        """What a client has counted since its start would be counted with each push."""
        return any(
            number == _TEMPORALITY and wire == VARINT and self._varint(at, upto)[0] == _DELTA
            for number, wire, at, upto in self._fields(start, end)
        )

    def _numbers(self, start: int, end: int) -> Iterator[float]:
        """Of a NumberDataPoint."""
        for number, wire, at, _upto in self._fields(start, end):
            if wire == FIXED64 and number in (_AS_DOUBLE, _AS_INT):
                (value,) = (_DOUBLE if number == _AS_DOUBLE else _INTEGER).unpack_from(self._data, at)
                if 0 <= value <= VALUE_MAX:  # which no NaN is
                    yield float(value)

    # -- protobuf ------------------------------------------------------------------------------------------------------

    def _within(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        """Where the messages are that a message has as one field."""
        for number, wire, at, upto in self._fields(start, end):
            if number == wanted and wire == BYTES:
                yield at, upto

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, wire type, and where the value is, of each field of the message in [start, end)."""
        data, at = self._data, start
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise PayloadError(f"more than {TELEMETRY_FIELDS_MAX} fields")
            tag, at = (data[at], at + 1) if data[at] < MORE else self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if wire == BYTES:
                length, at = (data[at], at + 1) if at < end and data[at] < MORE else self._varint(at, end)
                upto = at + length
            elif wire == VARINT:
                upto = self._varint(at, end)[1]
            elif wire == FIXED64:
                upto = at + 8
            elif wire == FIXED32:
                upto = at + 4
            else:
                raise PayloadError(f"a field of wire type {wire}")
            if upto > end or not number:
                raise PayloadError("a field that reaches beyond its message" if number else "a field without a number")
            yield number, wire, at, upto
            at = upto

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """And where it ends."""
        value = shift = 0
        for place in range(at, min(end, at + VARINT_BYTES_MAX)):
            byte = self._data[place]
            value |= (byte & 0x7F) << shift
            if byte < MORE:
                return value, place + 1
            shift += 7
        raise PayloadError("a number that does not end")


NAME_BYTES_MAX: Final = max(map(len, BY_NAME)) + 1
"""What is longer is none of them."""
_OF_PRODUCERS: Final = PREFIX + b"producer."
_OF_CONSUMERS: Final = PREFIX + b"consumer."
