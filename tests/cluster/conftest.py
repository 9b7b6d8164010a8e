"""Fixtures for tests of nodes."""

from __future__ import annotations

import pytest

from tests.support.kafka_peer import PeerUnavailable, kafka_jars


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's command-line tools are there; otherwise the test is skipped."""
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
