"""Working on the records of topics, with Apache Kafka in the broker's place."""

from __future__ import annotations

import pytest

from tests.client import test_work_streams
from tests.support.shared_servers import new_kafka

pytestmark = pytest.mark.clients

name = test_work_streams.name
globals().update({each: test for each, test in vars(test_work_streams).items() if each.startswith("test_")})


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    peer = new_kafka(tmp_path_factory.mktemp("kafka"))
    peer.start()
    yield peer
    peer.stop()
