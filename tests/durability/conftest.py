"""What the crash tests share: the broker under test.

`TPC_TEST_BROKER=kafka` runs those that can against Apache Kafka: a check that fails there is wrong about Kafka.
"""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable, kafka_jars
from tpc_broker.engine.ring import BACKEND_VARIABLE


@pytest.fixture
def kafka_tools() -> None:
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def backend(request, monkeypatch) -> None:
    """Of the brokers of a test that runs on both: `pytest.mark.parametrize("backend", BACKENDS, indirect=True)`."""
    monkeypatch.setenv(BACKEND_VARIABLE, request.param)


def against_kafka() -> bool:
    return os.environ.get("TPC_TEST_BROKER", "tpc") == "kafka"


def new_broker(folder, cores_count: int, overrides: dict[str, str] | None = None) -> TpcBroker | KafkaPeer:
    """A broker under `folder`, not started. Overrides are our broker's."""
    folder.mkdir(parents=True, exist_ok=True)
    if against_kafka():
        return KafkaPeer(folder)
    return TpcBroker(folder, cores_count, overrides)


def new_broker_on_disk(
    folder, disk, cores_count: int, overrides: dict[str, str] | None = None
) -> TpcBroker | KafkaPeer:
    """The same with only its data on the mounted disk; what it says goes to a file elsewhere."""
    data = disk.mount_point / "data"
    data.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").symlink_to(data)
    return new_broker(folder, cores_count, overrides)
