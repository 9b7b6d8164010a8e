"""Rates, as they are written and as they are kept; no clock but our own."""

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
import pyarrow as pa

from tpc_broker.spark.pace import Pace, Rate, _slices, parse_rate
from tpc_broker.spark.pipelines.errors import PipelineError


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5000", Rate(5000.0)), ("5k/s", Rate(5000.0)), ("20MB/s", Rate(bytes_per_second=2e7)),
        ("1.5 mb", Rate(bytes_per_second=1.5e6)),
    ],
)  # fmt: skip
def test_rates_as_people_write_them(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-5", "0", "20 MB/min"])
def test_rates_that_mean_nothing(text):
    with pytest.raises(PipelineError, match="neither records"):
        parse_rate(text)


def test_never_ahead_by_more_than_one_amount():
    clock = Clock()
    pace = Pace(100, clock, clock.sleep)
    for number in range(50):
        pace.wait(10)
        assert clock.now == pytest.approx(100 + number * 0.1)
    clock.now += 1000
    begin = clock.now
    for _ in range(3):
        pace.wait(10)
    assert clock.now == pytest.approx(begin + 0.2), "a pause is not made up for"


@pytest.mark.parametrize("rate", [Rate(1000), Rate(bytes_per_second=8_000)])
def test_a_batch_is_cut_so_that_it_flows(rate):
    clock = Clock()
    pace = Pace(rate.records_per_second or rate.bytes_per_second, clock, clock.sleep)
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    pieces = list(_slices(rate, pace, batch))
    assert [row for piece in pieces for row in piece["n"].to_pylist()] == list(range(1000))
    assert len(pieces) == 10
    assert clock.now - 100 == pytest.approx(0.9)
