"""A data folder with one partition, written by hand, at the time of these tests."""

from tests.spark.conftest import NOW_MS
from tests.support import segment_log

PRODUCER = segment_log.PRODUCER


class Log(segment_log.Log):
    """With times that Spark's readers look for."""

    now_ms = NOW_MS
