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
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable, kafka_jars
from tests.support.server_process import Broker


def _new_broker(folder) -> Broker:
    which = os.environ.get("TPC_TEST_BROKER", "tpc")
    if which == "kafka":
        try:
            kafka_jars()
        except PeerUnavailable as reason:
            pytest.skip(str(reason))
        return KafkaPeer(folder)
    assert which == "tpc", f"TPC_TEST_BROKER is {which!r}; allowed are kafka and tpc"
    return TpcBroker(folder, cores_count=int(os.environ.get("TPC_TEST_CORES", "2")))


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[Broker]:
    """A running broker that the tests of a module share; a test may restart it, and leaves it running."""
    peer = _new_broker(module_tmp_path / "broker")
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def topic(request) -> str:
    """Name for a topic of this test; the topic itself is the test's to make."""
    return topic_name(request)
