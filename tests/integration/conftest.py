"""Brokers for the integration tests.

`TPC_TEST_BROKER=kafka` runs the client matrix against Apache Kafka itself: a test that fails there is
wrong about Kafka. `TPC_TEST_CORES` is the number of cores of ours (default 2).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.matrix import topic_name
from tests.support.broker_process import TpcBroker
from tests.support.group_story import TIMES
from tests.support.kafka_python_sockets import none_left_by_kafka_python
from tests.support.server_process import Broker
from tests.support.shared_servers import is_kafka_asked, new_kafka


@pytest.fixture(autouse=True)
def no_socket_left() -> Iterator[None]:
    with none_left_by_kafka_python():
        yield


@pytest.fixture
def broker(clients_broker: Broker) -> Broker:
    """A running broker that all modules share; a test leaves it as it is."""
    return clients_broker


@pytest.fixture(scope="module")
def own_broker(module_tmp_path) -> Iterator[Broker]:
    """Of one module; a test may restart it, and leaves it running."""
    folder = module_tmp_path / "broker"
    peer = new_kafka(folder) if is_kafka_asked() else TpcBroker(folder, int(os.environ.get("TPC_TEST_CORES", "2")))
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture(scope="module")
def brisk_broker(module_tmp_path) -> Iterator[TpcBroker]:
    """Of one module; members of consumer groups are asked to show themselves often."""
    broker = TpcBroker(module_tmp_path / "brisk", overrides=TIMES)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(request) -> str:
    """Name for a topic of this test; the topic itself is the test's to make."""
    return topic_name(request)
