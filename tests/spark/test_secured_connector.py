"""Spark's own Kafka source and sink log in by SCRAM over TLS, batch and streaming."""

from __future__ import annotations

import pytest

from tests.support.sasl_brokers import USERS, make_users
from tests.support.tls_brokers import TlsBroker
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.spark

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'


@pytest.fixture
def secured(tmp_path, certificates):
    """Options for a broker's listener with logins over TLS."""
    broker = TlsBroker(tmp_path / "broker", cores_count=2)
    broker.certificates = certificates
    broker.start()
    try:
        make_users(broker.bootstrap)
        given = {
            "bootstrap.servers": broker.safe_bootstrap, "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": certificates / "ca.pem",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS.format(USERS["alice"]),
        }  # fmt: skip
        yield {f"kafka.{name}": str(value) for name, value in given.items()}
    finally:
        broker.stop()


def test_what_is_written_is_read_and_copied_by_a_stream(spark, connector, secured, tmp_path):
    numbers = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 7 AS STRING) AS value")
    numbers.write.format(connector).options(topic="secured", **secured).save()
    stream = spark.readStream.format(connector).options(subscribe="secured", startingOffsets="earliest", **secured)
    copy = stream.load().writeStream.format(connector).options(topic="copied", **secured)
    query = copy.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    for topic in ("secured", "copied"):
        rows = spark.read.format(connector).options(subscribe=topic, **secured).load().collect()
        found = {(int(row.key), int(row.value)) for row in rows}
        assert found == {(number, 7 * number) for number in range(500)}, topic
        assert len(rows) == 500
