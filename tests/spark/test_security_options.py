"""Spark's security options: what they mean, that nothing is passed over in silence, and a read with all of them."""

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from confluent_kafka import Producer
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.tls_proxy import AdvertisingBroker, Proxy, server_context
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings, TlsSettings
from tpc_broker.spark.options import OptionError, read_options, write_options
from tpc_broker.spark.readers import TpcReader
from tpc_broker.spark.rows import Mode, RowPlan
from tpc_broker.spark.values import ValueFormat

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="se cret\\"1";'
PLAIN = "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required password=x username='bob' ;"


def security(**options):
    given = {name.replace("_", "."): value for name, value in options.items()}
    return read_options({"bootstrap": "h:1", "subscribe": "t", **given}, streaming=False).cluster.security


def test_what_the_options_mean(certificates):
    assert security() == security(kafka_security_protocol="plaintext") == SecuritySettings()
    authority, client = ((certificates / name).read_text() for name in ("ca.pem", "client.pem"))
    key = (certificates / "client.key").read_text()
    expected = TlsSettings(authority, client.strip(), key.strip(), "", False, "TLSv1.3", "TLSv1.3")
    assert security(
        kafka_security_protocol="SSL", kafka_ssl_truststore_location=str(certificates / "ca.pem"),
        kafka_ssl_truststore_type="PEM", kafka_ssl_endpoint_identification_algorithm="",
        kafka_ssl_keystore_certificate_chain=client, kafka_ssl_keystore_key=key, kafka_ssl_enabled_protocols="TLSv1.3",
    ) == SecuritySettings(expected)  # fmt: skip
    locked = certificates / "store.pem"
    locked.write_text(client + (certificates / "client-locked.key").read_text())
    found = security(
        kafka_security_protocol="SSL", kafka_ssl_keystore_location=str(locked), kafka_ssl_key_password="key-word",
        kafka_ssl_protocol="TLSv1.2",
    ).tls  # fmt: skip
    assert (found.checks_host_name, found.version_min, found.version_max) == (True, "TLSv1.2", "TLSv1.2")
    for mechanism, config, whose in (
        ("SCRAM-SHA-512", SCRAM, SaslSettings(Mechanism.SCRAM_SHA_512, "alice", 'se cret"1')),
        ("plain", PLAIN, SaslSettings(Mechanism.PLAIN, "bob", "x")),
    ):
        found = security(
            kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism=mechanism, kafka_sasl_jaas_config=config
        )
        assert found == SecuritySettings(TlsSettings(), whose)
    assert write_options({"bootstrap": "h:1", "kafka.security.protocol": "SSL"}).cluster.security.tls == TlsSettings()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"security.protocol": "TLS"}, "kafka.security.protocol is 'tls'; allowed are plaintext, ssl"),
        ({"ssl.truststore.location": "x"}, "truststore.location needs kafka.security.protocol to be SSL or SASL_SSL"),
        ({"ssl.endpoint.identification.algorithm": ""}, "algorithm needs kafka.security.protocol"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "sasl.mechanism needs kafka.security.protocol"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "truststore.type is JKS; only PEM"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/no/such"}, "truststore.location: .*No such file"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/etc/hostname"}, "/etc/hostname is no PEM file"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "x"}, "the certificates or the key for TLS"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "x"}, "needs kafka.ssl.keystore.certificate.chain"),
        ({"security.protocol": "SSL", "ssl.protocol": "TLSv1.1"}, "has 'TLSv1.1'; allowed are TLSv1.2, TLSv1.3"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "no"}, "allowed are https, or empty"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "NULL"}, "unknown option kafka.ssl.cipher.suites"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism is not given; allowed are PLAIN, SCRAM-SHA-256"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is GSSAPI; allowed are PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "jaas.config has to be: org.apache"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": SCRAM},
            "jaas.config has to be: org.apache.kafka.common.security.plain.PlainLoginModule",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(options, said):
    given = {f"kafka.{name}": value for name, value in options.items()}
    with pytest.raises(OptionError, match=said) as caught:
        read_options({"bootstrap": "h:1", "subscribe": "t", **given}, streaming=False)
    assert "se cret" not in str(caught.value)


def test_a_read_with_tls_and_scram(certificates, tmp_path):
    proxy = Proxy(server_context(certificates), {"alice": 'se cret"1'})
    broker = AdvertisingBroker(tmp_path, cores_count=1)
    plain = Proxy()
    broker.advertised = plain.address
    broker.start()
    try:
        for one in (plain, proxy):
            one.connect_to(broker.host, broker.ports[0])
        producer = Producer({"bootstrap.servers": plain.address})
        producer.produce("t", b"hidden")
        assert producer.flush(PATIENCE_S) == 0
        broker.advertised = proxy.address
        broker.restart()
        given = {
            "kafka.bootstrap.servers": proxy.address, "subscribe": "t", "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.location": str(certificates / "ca.pem"), "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": SCRAM,
        }  # fmt: skip
        schema = from_arrow_schema(pa.schema([("value", pa.binary())]))
        plan = RowPlan.of(schema, ValueFormat(), Mode.FAILFAST, "_corrupt_record")
        reader = TpcReader(read_options(given, streaming=False), plan)
        found = [batch.to_pydict() for task in reader.partitions() for batch in reader.read(task)]
        assert found == [{"value": [b"hidden"]}]
    finally:
        broker.stop()
        for one in (plain, proxy):
            one.close()
