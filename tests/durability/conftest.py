"""What the crash tests share: a seed that is shown when something fails, and the broker under test.

`TPC_TEST_BROKER=kafka` runs those that can against Apache Kafka: a check that fails there is wrong about Kafka.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable, kafka_jars


@pytest.fixture
def seed(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> int:
    """Printed with the command that repeats the run; what is sent follows from it, the moments of a crash nearly."""
    given = request.config.getoption("--crash-seed")
    chosen = random.randrange(1 << 31) if given is None else given
    print(f"to repeat: python -m pytest '{request.node.nodeid}' --crash-seed {chosen}")
    return chosen


@pytest.fixture
def kafka_tools() -> None:
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


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
