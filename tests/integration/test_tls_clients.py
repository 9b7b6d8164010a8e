"""Stock clients and our own do their work over listeners with TLS: with a certificate of their own, without one, and
logging in.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.client.test_security import write_and_read
from tests.support.client_stories import (
    consume,
    make_a_topic_by_tpc,
    write_and_read_by_aiokafka,
    write_and_read_by_java,
    write_and_read_by_kafka_python,
    write_and_read_by_librdkafka,
)
from tests.support.contents import content
from tests.support.sasl_brokers import USERS, make_users
from tests.support.steering_loader import skip_without
from tests.support.tls_brokers import TlsBroker, store_of
from tests.support.tls_clients import make_certificate
from tests.support.waiting import PATIENCE_S, eventually, patiently
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings, TlsSettings
from tpc_broker.ebpf.steering import Select

PASSWORD = USERS["alice"]
WAYS = ("tls", "certificate", "login")


@pytest.fixture(scope="module")
def broker(module_tmp_path, certificates) -> Iterator[TlsBroker]:
    made = TlsBroker(module_tmp_path / "broker", cores_count=2)
    made.certificates = certificates
    made.start()
    make_users(made.bootstrap)
    yield made
    made.stop()


def stock(broker, way, **more):
    found = {
        "bootstrap.servers": broker.safe_bootstrap if way == "login" else broker.tls_bootstrap,
        "security.protocol": "SASL_SSL" if way == "login" else "SSL",
        "ssl.ca.location": str(broker.certificates / "ca.pem"), **more,
    }  # fmt: skip
    if way == "certificate":
        found["ssl.certificate.location"] = str(broker.certificates / "client.pem")
        found["ssl.key.location"] = str(broker.certificates / "client.key")
    if way == "login":
        found |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": PASSWORD}
    return found


def python_stock(broker, way):
    context = ssl.create_default_context(cafile=str(broker.certificates / "ca.pem"))
    if way == "certificate":
        context.load_cert_chain(broker.certificates / "client.pem", broker.certificates / "client.key")
    found = {
        "bootstrap_servers": broker.safe_bootstrap if way == "login" else broker.tls_bootstrap,
        "security_protocol": "SASL_SSL" if way == "login" else "SSL", "ssl_context": context,
    }  # fmt: skip
    if way == "login":
        found |= {"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_librdkafka(broker, topic, way):
    write_and_read_by_librdkafka(stock(broker, way), topic)


@pytest.mark.parametrize("way", WAYS)
def test_kafka_python(broker, topic, way):
    write_and_read_by_kafka_python(python_stock(broker, way), topic)


@pytest.mark.parametrize("way", WAYS)
def test_aiokafka(broker, topic, way):
    write_and_read_by_aiokafka(python_stock(broker, way), topic)


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
@pytest.mark.parametrize("way", WAYS)
def test_java(broker, topic, tmp_path, way):
    """Its own TLS, which is not OpenSSL."""
    lines = [
        f"security.protocol={'SASL_SSL' if way == 'login' else 'SSL'}",
        "ssl.truststore.type=PEM", f"ssl.truststore.location={broker.certificates / 'ca.pem'}",
    ]  # fmt: skip
    if way == "certificate":
        store = tmp_path / "client.pem"
        key = (broker.certificates / "client.key").read_text()
        store.write_text(key + (broker.certificates / "client.pem").read_text())
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={store}"]
    if way == "login":
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines += ["sasl.mechanism=SCRAM-SHA-512"]
        lines += [f'sasl.jaas.config={module} required username="alice" password="{PASSWORD}";']
    file = tmp_path / "client.properties"
    file.write_text("\n".join(lines) + "\n")
    write_and_read_by_java(broker.safe_bootstrap if way == "login" else broker.tls_bootstrap, file, topic)


@pytest.mark.parametrize("way", WAYS)
def test_our_own_client(broker, certificates, topic, way):
    texts = {name: (certificates / name).read_text() for name in ("ca.pem", "client.pem", "client.key")}
    own = {"certificates": texts["client.pem"], "private_key": texts["client.key"]} if way == "certificate" else {}
    sasl = SaslSettings(Mechanism.SCRAM_SHA_512, "alice", PASSWORD) if way == "login" else None
    place = broker.safe_bootstrap if way == "login" else broker.tls_bootstrap
    settings = SecuritySettings(TlsSettings(texts["ca.pem"], **own), sasl)
    with Cluster(ClusterSettings(place, "test", 10, 20, settings)) as made:
        assert write_and_read(made, topic) == [b"v0", b"v1", b"v2"]


@pytest.mark.parametrize("way", WAYS)
def test_tpc(broker, topic, tmp_path, monkeypatch, way):
    make_a_topic_by_tpc(stock(broker, way), topic, tmp_path, monkeypatch)


def test_batches_of_megabytes_go_in_and_come_out_of_memory_and_of_files(broker, topic):
    """Through the frames that are written to the disk as they lie, and, after a restart, out of segments."""
    sizes = {"linger.ms": 50}
    bodies = sorted(content(900_000 + number) for number in range(40))
    producer, failed = Producer(stock(broker, "tls", **sizes)), []
    for body in bodies:
        producer.produce(topic, body, partition=0, on_delivery=lambda error, _message: error and failed.append(error))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed
    digest = [hashlib.sha256(body).digest() for body in bodies]
    plain = {"bootstrap.servers": broker.bootstrap}
    for settings in (plain, stock(broker, "tls")):
        assert [hashlib.sha256(body).digest() for body in consume(settings, topic, 40, 0)] == digest
    broker.restart()
    assert [hashlib.sha256(body).digest() for body in consume(stock(broker, "tls"), topic, 40, 0)] == digest
    after = [core["connections"] for core in broker.counters()]
    assert sum(core["reads_of_files"] for core in after) > 0
    assert sum(core["sends_of_files"] for core in after) == 0


def test_a_client_without_tls_or_without_trust_is_told_so(broker):
    for changes in ({"security.protocol": "PLAINTEXT"}, {"ssl.ca.location": str(broker.certificates / "other-ca.pem")}):
        said = []
        admin = AdminClient({**stock(broker, "tls"), **changes, "error_cb": said.append})
        for _ in patiently("the refusal is told"):
            admin.poll(0.1)
            if {KafkaError._TRANSPORT, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN} & {one.code() for one in said}:
                break
    eventually(lambda: "its TLS could not be taken" in broker.log_text(), "the log tells of it")


def test_a_hangup_has_certificates_read_again_at_once(broker, certificates):
    """What cannot be used changes nothing, and is told; what had not changed is read as well."""
    make_certificate(certificates, "renewed", subject="/CN=renewed")
    store, listeners = store_of(certificates), 2 * broker.cores_count
    before, renewed = store.read_text(), store_of(certificates, "renewed").read_text()
    taken, kept = "gets the certificates that are there now", "the listener goes on with what it had"

    def hang_up(text, said):
        store.write_text(text)
        so_far = broker.log_text().count(said)
        broker.process.send(signal.SIGHUP)
        eventually(lambda: broker.log_text().count(said) >= so_far + listeners, "every core tells of it")
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        context.check_hostname = False
        plain = socket.create_connection((broker.host, broker.first_tls_port))
        with context.wrap_socket(plain) as safe:
            return dict(part[0] for part in safe.getpeercert()["subject"])["commonName"]

    try:
        assert hang_up(renewed, taken) == "renewed"
        assert hang_up("half a file", kept) == "renewed"
    finally:
        assert hang_up(before, taken) == "server"
    assert hang_up(before, taken) == "server"
    eventually(lambda: "SIGHUP: certificates" in broker.log_text(), "the supervisor tells of it")


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(module_tmp_path, certificates) -> Iterator[TlsBroker]:
    """Who comes to it without a certificate may do what `User:ANONYMOUS` may."""
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:the client",
        "listener.name.tls.ssl.principal.mapping.rules": "RULE:CN=(client)/the $1/,DEFAULT",
    }
    made = TlsBroker(module_tmp_path / "guarded", 2, overrides)
    made.certificates = certificates
    made.start()
    yield made
    made.stop()


def test_the_name_in_a_certificate_is_what_rights_go_by(guarded, certificates, topic):
    """With the record in C as well as by Python; and nobody has it without the certificate."""
    admin = AdminClient(stock(guarded, "certificate"))
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE_S)
    make_certificate(certificates, "other", subject="/CN=other")
    other = stock(guarded, "tls") | {
        "ssl.certificate.location": str(certificates / "other.pem"),
        "ssl.key.location": str(certificates / "other.key"),
    }
    wanted = {"certificate": None, "tls": "TOPIC_AUTHORIZATION_FAILED", "other": "TOPIC_AUTHORIZATION_FAILED"}
    for way, error_name in wanted.items():
        told = []
        producer = Producer(other if way == "other" else stock(guarded, way))
        for number in range(50):
            try:
                producer.produce(
                    topic, b"%d" % number, on_delivery=lambda error, _message, told=told: told.append(error)
                )
            except KafkaException as refused:  # librdkafka has heard it already
                told.append(refused.args[0])
        assert producer.flush(PATIENCE_S) == 0
        assert {error and error.name() for error in told} == {error_name}


def test_a_shared_listener_with_tls(module_tmp_path, certificates, topic):
    """What a core is sent that another one owns goes on to that one, which has no TLS to do with it."""
    skip_without("libbpf", Select.LOAD)
    made = TlsBroker(module_tmp_path / "shared", 2, {"listener.tls.mode": "shared", "ebpf.loader": "libbpf"})
    made.certificates = certificates
    made.start()
    try:
        settings = stock(made, "certificate")
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(topic, 4)])[topic].result(PATIENCE_S)
        producer, failed = Producer(settings), []
        sent = {number: sorted(content(50_000 + number + 4 * one) for one in range(20)) for number in range(4)}
        for number, bodies in sent.items():
            for body in bodies:
                producer.produce(
                    topic, body, partition=number, on_delivery=lambda error, _message: error and failed.append(error)
                )
        assert producer.flush(PATIENCE_S) == 0
        assert not failed
        for number, bodies in sent.items():
            assert consume(settings, topic, 20, number) == bodies
    finally:
        made.stop()
