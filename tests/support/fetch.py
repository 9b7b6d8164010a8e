"""Fetches beforehand, and says so, what tests would else fetch in fixtures: ``python -m tests.support.fetch gate``.

For the gate Apache Kafka's jars and those of Spark's Kafka connector; for the long tier (``long``) also those of the
Kafka that the schema is made from, the checker of histories, which Go builds, Confluent's client in Rust, librdkafka's
own tests, Quix Streams, and another PySpark. What cannot be had is said, with exit code 1: without it tests are
skipped, and a run that is to skip nothing fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.environments import (
    NotInstalledError,
    other_pyspark,
    other_pyspark_version,
    quix_streams,
    quix_streams_version,
)
from tests.support.histories import CheckerUnavailable, build_checker
from tests.support.librdkafka_suite import VERSION as LIBRDKAFKA_VERSION
from tests.support.librdkafka_suite import LibrdkafkaUnavailableError, build_suite
from tests.support.rust_client import RustUnavailableError, build_client
from tools import extract_schema
from tpc_broker.bench.kafka_jars import (
    CONNECTOR_VERSION,
    FLINK_VERSION,
    KAFKA_VERSION,
    connector_jars,
    flink_jars,
    framework_jars,
    kafka_jars,
)
from tpc_broker.bench.server import PeerUnavailable


def _checker() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build_checker(Path(folder))


GATE: dict[str, Callable[[], object]] = {
    f"Apache Kafka {KAFKA_VERSION}, by Maven": kafka_jars,
    f"Spark's Kafka connector {CONNECTOR_VERSION}, by Maven": connector_jars,
}
LONG = {
    **GATE,
    f"Apache Kafka {extract_schema.KAFKA_VERSION}, by Maven": partial(kafka_jars, extract_schema.KAFKA_VERSION),
    f"Kafka Streams and Connect {KAFKA_VERSION}, by Maven": framework_jars,
    f"Apache Flink {FLINK_VERSION} and its Kafka connector, by Maven": flink_jars,
    "Porcupine, the checker of histories, by Go": _checker,
    "Confluent's client in Rust, and a program with it, by Cargo": build_client,
    f"librdkafka {LIBRDKAFKA_VERSION} and its own tests, by npm": build_suite,
    f"Quix Streams {quix_streams_version()}": quix_streams,
    f"PySpark {other_pyspark_version()}, beside the one that most tests run with": other_pyspark,
}
UNAVAILABLE = (
    PeerUnavailable, CheckerUnavailable, NotInstalledError, RustUnavailableError, LibrdkafkaUnavailableError,
)  # fmt: skip


def main(wanted: dict[str, Callable[[], object]]) -> int:
    failed = 0
    for what, fetch in wanted.items():
        print(f"Fetching {what}", flush=True)
        try:
            fetch()
        except UNAVAILABLE as reason:
            failed += 1
            print(f"Not fetched, so its tests are skipped: {what}: {reason}", file=sys.stderr)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(LONG if sys.argv[1:] == ["long"] else GATE))
