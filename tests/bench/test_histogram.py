"""Buckets and percentiles, against the sorted values themselves; C and Python against each other."""

import random
import subprocess

import pytest

from tpc_broker.bench.compiled import program
from tpc_broker.bench.histogram import Histogram, bucket_of, highest_in


def values_of_all_sizes(seed: int, count: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.getrandbits(chooser.randint(1, 62)) for _ in range(count)]


@pytest.mark.parametrize("value", [0, 1, 2047, 2048, 2049, 4095, 4096, 2**40 - 1, 2**40, 2**64 - 1])
def test_a_value_lies_in_its_bucket_and_not_in_the_one_before(value: int) -> None:
    bucket = bucket_of(value)
    assert value <= highest_in(bucket)
    assert bucket == 0 or value > highest_in(bucket - 1)


def test_buckets_are_narrow() -> None:
    for value in values_of_all_sizes(1, 2000):
        assert highest_in(bucket_of(value)) - value <= value / 1024


def test_the_generator_in_c_has_the_same_buckets() -> None:
    values = [0, 2047, 2048, 2**63, 2**64 - 1, *values_of_all_sizes(2, 2000)]
    printed = subprocess.run(
        [program("load"), "--buckets"], input="\n".join(map(str, values)), capture_output=True, text=True, check=True
    ).stdout
    assert list(map(int, printed.split())) == [bucket_of(value) for value in values]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 5000])
def test_percentiles_are_those_of_the_sorted_values(count: int) -> None:
    values = values_of_all_sizes(count, count)
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for percent in (0.1, 50, 90, 99, 99.9, 99.99, 100):
        rank = max(1, -int(-percent * count // 100))
        assert histogram.percentile(percent) == highest_in(bucket_of(ordered[rank - 1]))


def test_merging_is_the_same_as_recording_together() -> None:
    together, left, right = Histogram(), Histogram(), Histogram()
    for index, value in enumerate(values_of_all_sizes(3, 1000)):
        together.add(value)
        (left if index % 3 else right).add(value)
    left.merge(right)
    assert left.buckets() == together.buckets()
    assert left.count == 1000


def test_nothing_recorded_is_zero() -> None:
    assert Histogram().percentile(99) == 0
