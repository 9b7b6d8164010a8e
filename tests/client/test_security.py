"""TLS and SASL of the client: against a server that ends both before a broker, and the vectors of the RFCs."""

import pickle
import re
import ssl

import pytest

from tests.support.ports import free_port_range
from tests.support.tls_proxy import AdvertisingBroker, Proxy, server_context
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.client import requests
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import AuthenticationError, UnreachableError
from tpc_broker.client.producing import Producer, RecordsPart
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.sasl import Plain, Scram
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings, TlsSettings, tls_context
from tpc_broker.kafka import records as codec

USERS = {"al=i,ce": "pass,word=1", "bob": "b"}


UNANSWERED = {"answer_seconds": LOOK_S, "retry_seconds": 0.2}
"""For what the other side does not understand, and may wait for more of."""


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    """It says that it is where the proxies are, one after the other."""
    made = AdvertisingBroker(module_tmp_path, cores_count=1)
    made.advertised = f"127.0.0.1:{free_port_range(1)}"
    made.start()
    yield made
    made.stop()


@pytest.fixture
def before(broker):
    """before(…): the proxy of a test."""
    started = []

    def start(*arguments, **more):
        started.append(Proxy(*arguments, **more, port=int(broker.advertised.rpartition(":")[2])))
        started[0].connect_to(broker.host, broker.ports[0])
        return started[0]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def topic(request):
    return re.sub(r"[^a-zA-Z0-9_-]", "-", request.node.name)


def cluster(proxy, tls=None, sasl=None, *, answer_seconds=PATIENCE_S, retry_seconds=PATIENCE_S):
    settings = ClusterSettings(
        proxy.address, "test", answer_seconds, retry_seconds=retry_seconds, security=SecuritySettings(tls, sasl)
    )
    return Cluster(settings)


def write_and_read(made, topic):
    where = TopicPartition(topic, 0)
    made.create_topic(topic, 1)
    records = [codec.Record(b"v%d" % number, None, 1_700_000_000_000) for number in range(3)]
    data = codec.build_batch(records)[61:]
    Producer(made).send({where: RecordsPart(data, 3, 1_700_000_000_000, 1_700_000_000_000)})
    end = made.list_offsets({where: requests.LATEST})[where]
    chunks = RangeReader(made, where, 0, end, ReadSettings()).chunks()
    return [record.value for chunk in chunks for record in codec.read_records(chunk.records)]


def test_tls_with_every_way_of_being_wrong(certificates, before, topic):
    proxy = before(server_context(certificates))
    trusted = (certificates / "ca.pem").read_text()
    with cluster(proxy, TlsSettings(trusted)) as made:
        assert write_and_read(made, topic) == [b"v0", b"v1", b"v2"]
    for settings, said in (
        (TlsSettings((certificates / "other-ca.pem").read_text()), "certificate verify failed"),
        (TlsSettings(), "certificate verify failed"),
    ):
        with cluster(proxy, settings) as made, pytest.raises(AuthenticationError, match=said):
            made.topic_names()
    with cluster(proxy, **UNANSWERED) as made, pytest.raises(UnreachableError):
        made.topic_names()
    proxy.context = server_context(certificates, "elsewhere")
    with cluster(proxy, TlsSettings(trusted)) as made, pytest.raises(AuthenticationError, match="IP address mismatch"):
        made.topic_names()
    with cluster(proxy, TlsSettings(trusted, checks_host_name=False)) as made:
        assert topic in made.topic_names()
    proxy.context.maximum_version = ssl.TLSVersion.TLSv1_2
    newest = TlsSettings(trusted, version_min="TLSv1.3", checks_host_name=False)
    with cluster(proxy, newest) as made, pytest.raises(AuthenticationError, match="no TLS with"):
        made.topic_names()
    proxy.context = None
    refused = (AuthenticationError, UnreachableError)
    with cluster(proxy, TlsSettings(trusted), **UNANSWERED) as made, pytest.raises(refused):
        made.topic_names()


def test_client_certificates(certificates, before, topic):
    proxy = before(server_context(certificates, asks_client=True))
    trusted, own = (certificates / "ca.pem").read_text(), (certificates / "client.pem").read_text()
    locked = (certificates / "client-locked.key").read_text()
    with cluster(proxy, TlsSettings(trusted, own, (certificates / "client.key").read_text())) as made:
        assert write_and_read(made, topic)
    with cluster(proxy, TlsSettings(trusted, own + locked, key_password="key-word")) as made:
        assert topic in made.topic_names()
    refused = (AuthenticationError, UnreachableError)
    with cluster(proxy, TlsSettings(trusted), **UNANSWERED) as made, pytest.raises(refused):
        made.topic_names()
    for wrong in (TlsSettings(trusted, own, locked, "wrong"), TlsSettings("rubbish"), TlsSettings(trusted, own)):
        with pytest.raises(AuthenticationError, match="cannot be used"):
            tls_context(wrong)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_sasl_over_tls_and_without(certificates, before, mechanism, topic):
    proxy = before(server_context(certificates), USERS)
    tls = TlsSettings((certificates / "ca.pem").read_text())
    settings = SaslSettings(mechanism, "al=i,ce", USERS["al=i,ce"])
    with cluster(proxy, tls, settings) as made:
        assert write_and_read(made, topic) == [b"v0", b"v1", b"v2"]
    proxy.context = None
    with cluster(proxy, None, settings) as made:
        assert topic in made.topic_names()
    for wrong in (SaslSettings(mechanism, "al=i,ce", "x"), SaslSettings(mechanism, "eve", "x")):
        said = f"does not let {wrong.username}"
        with cluster(proxy, None, wrong) as made, pytest.raises(AuthenticationError, match=said):
            made.topic_names()
    with cluster(proxy, **UNANSWERED) as made, pytest.raises(UnreachableError):
        made.topic_names()
    if mechanism != Mechanism.PLAIN:
        proxy.lies = True
        said = "does not know the password"
        with cluster(proxy, None, settings) as made, pytest.raises(AuthenticationError, match=said):
            made.topic_names()


def test_a_session_that_ends_soon_is_made_anew(before, topic):
    proxy = before(None, USERS, lifetime_ms=1)
    with cluster(proxy, None, SaslSettings(Mechanism.PLAIN, "bob", "b")) as made:
        assert write_and_read(made, topic) == [b"v0", b"v1", b"v2"]
        assert proxy.handshakes_count > 2


def test_a_broker_without_sasl_is_not_talked_to(before):
    proxy = before()
    bob = SaslSettings(Mechanism.PLAIN, "bob", "b")
    with cluster(proxy, None, bob) as made, pytest.raises(AuthenticationError, match="knows no SASL"):
        made.topic_names()


def test_scram_against_the_vectors_of_rfc_7677():
    nonce = "rOprNGfwEbeRWgbNEkqO"
    server_first = f"r={nonce}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    settings = SaslSettings(Mechanism.SCRAM_SHA_256, "user", "pencil")
    machine = Scram(settings, nonce)
    assert machine.first() == f"n,,n=user,r={nonce}".encode()
    assert machine.next(server_first) == (
        f"c=biws,r={nonce}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    assert machine.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    for answer, said in (
        (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95H4=", "does not know the password"),
        (b"e=invalid-proof", "refused the SCRAM proof: invalid-proof"),
        (b"", "malformed"),
    ):
        machine = Scram(settings, nonce)
        machine.next(server_first)
        with pytest.raises(AuthenticationError, match=said):
            machine.next(answer)
    for answer, said in (
        (b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "not one for this client"),
        (f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "not one for this client"),
        (f"r={nonce}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1".encode(), "asks for 1 SCRAM iterations"),
        (f"r={nonce}x,i=4096".encode(), "malformed"),
    ):
        with pytest.raises(AuthenticationError, match=said):
            Scram(settings, nonce).next(answer)


def test_plain_and_what_settings_show():
    assert Plain(SaslSettings(Mechanism.PLAIN, "a", "b")).first() == b"\0a\0b"
    with pytest.raises(AuthenticationError):
        Plain(SaslSettings(Mechanism.PLAIN, "a\0", "b"))
    settings = SecuritySettings(TlsSettings(key_password="hush"), SaslSettings(Mechanism.PLAIN, "a", "hush"))
    assert "hush" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
