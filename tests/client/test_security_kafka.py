"""TLS and SASL of the client against Apache Kafka itself, which has both."""

import anyio
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.client.test_security import write_and_read
from tests.support.both_loops import on_both_loops
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable
from tests.support.ports import free_port_range
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import connect
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import AuthenticationError, ClientError
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings, TlsSettings
from tpc_broker.kafka import ApiKey, messages

pytestmark = pytest.mark.kafka
MODULE = "org.apache.kafka.common.security"
PASSWORD = "pass,word=1"


class SecureKafka(KafkaPeer):
    """With a listener for SASL over TLS and one for TLS with client certificates beside the plain one."""

    certificates = None
    first_secure_port = 0

    def _properties(self):
        found = super()._properties()
        sasl, tls = (f"{self.host}:{self.first_secure_port + number}" for number in range(2))
        store = self.certificates / "server-store.pem"
        store.write_text("".join((self.certificates / f"server.{part}").read_text() for part in ("key", "pem")))
        more = f",SASL_SSL://{sasl},SSL://{tls}"
        found["listeners"] += more
        found["advertised.listeners"] += more
        found["listener.security.protocol.map"] += ",SASL_SSL:SASL_SSL,SSL:SSL"
        scram = f"{MODULE}.scram.ScramLoginModule required;"
        return found | {
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificates / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(Mechanism), "connections.max.reauth.ms": "3000",
            "listener.name.sasl_ssl.plain.sasl.jaas.config":
                f'{MODULE}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        }  # fmt: skip


@pytest.fixture(scope="module")
def kafka(module_tmp_path, certificates):
    peer = SecureKafka(module_tmp_path / "kafka")
    peer.certificates, peer.first_secure_port = certificates, free_port_range(2)
    try:
        peer.start()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        update = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([update]).values():
            future.result(PATIENCE_S)
    yield peer
    peer.stop()


def cluster(kafka, port, tls, sasl=None):
    return Cluster(ClusterSettings(f"{kafka.host}:{port}", "test", 10, 20, SecuritySettings(tls, sasl)))


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_kafka_lets_the_right_user_in_and_no_other(kafka, certificates, mechanism):
    tls, port = TlsSettings((certificates / "ca.pem").read_text()), kafka.first_secure_port
    with cluster(kafka, port, tls, SaslSettings(mechanism, "alice", PASSWORD)) as made:
        assert write_and_read(made, f"for-{mechanism.lower()}") == [b"v0", b"v1", b"v2"]
    for name, password in (("alice", "wrong"), ("eve", PASSWORD)):
        said, sasl = f"does not let {name} in", SaslSettings(mechanism, name, password)
        with cluster(kafka, port, tls, sasl) as made, pytest.raises(AuthenticationError, match=said):
            made.topic_names()


def test_kafka_takes_the_clients_certificate(kafka, certificates):
    own, key = ((certificates / name).read_text() for name in ("client.pem", "client.key"))
    tls = TlsSettings((certificates / "ca.pem").read_text(), own, key)
    with cluster(kafka, kafka.first_secure_port + 1, tls) as made:
        assert write_and_read(made, "with-a-certificate") == [b"v0", b"v1", b"v2"]


RENEWED = 3


@pytest.mark.parametrize("mechanism", list(Mechanism))
@on_both_loops
async def test_sessions_are_renewed_while_requests_are_in_flight(kafka, certificates, mechanism):
    """Kafka ends a connection with the first request after the session: none is seen to end."""
    tls, auth = TlsSettings((certificates / "ca.pem").read_text()), SaslSettings(mechanism, "alice", PASSWORD)
    async with connect(f"{kafka.host}:{kafka.first_secure_port}", tls=tls, auth=auth) as client:
        await client.fleet.broker_ids()
        channel = await client.fleet.channel((await client.fleet.broker_ids())[0])
        renewals, begins = [], channel._carry_out

        async def carried_out(machine):
            renewals.append(channel.in_flight_count)
            return await begins(machine)

        channel._carry_out = carried_out
        request = messages.MetadataRequest(topics=[])

        async def ask_again_and_again():
            while len(renewals) <= RENEWED:
                await channel.call(ApiKey.METADATA, lambda _version: request)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask_again_and_again)
        assert not channel.is_closed


@on_both_loops
async def test_kafka_takes_the_clients_certificate_and_no_client_without(kafka, certificates):
    trusted, own, key = ((certificates / name).read_text() for name in ("ca.pem", "client.pem", "client.key"))
    address = f"{kafka.host}:{kafka.first_secure_port + 1}"
    async with connect(address, tls=TlsSettings(trusted, own, key)) as client:
        assert len(await client.fleet.broker_ids()) == 1
    async with connect(address, tls=TlsSettings(trusted)) as client:
        with pytest.raises(ClientError, match=r"CERTIFICATE_REQUIRED|BAD_CERTIFICATE|closed it|reset"):
            await client.fleet.any_channel()
