"""Clients log in: stock ones do their work over a SASL listener, and who does not log in as one has to does nothing.

The order of requests and the error codes beside Kafka's own are in `differential/test_sasl.py`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic, UserScramCredentialDeletion
from confluent_kafka.admin import ScramMechanism as StockMechanism
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

from tests.client.test_security import write_and_read
from tests.support.both_loops import on_both_loops
from tests.support.client_stories import (
    make_a_topic_by_tpc,
    write_and_read_by_aiokafka,
    write_and_read_by_java,
    write_and_read_by_kafka_python,
    write_and_read_by_librdkafka,
)
from tests.support.definitions import encode_request
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import Closed, RawConnection
from tests.support.record_batches import Record, batch
from tests.support.sasl_brokers import HELLO, MECHANISMS, USERS, LoginLine, SaslBroker, machine_of, make_users, scram_of
from tests.support.waiting import PATIENCE_S, eventually, let_pass, patiently, stopwatch, takes_at_least
from tpc_broker.client import connect
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import AuthenticationError
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings
from tpc_broker.kafka.api_keys import apis

pytestmark = pytest.mark.usefixtures("kafka_tools")  # Kafka's definitions of its messages come with them

PASSWORD = USERS["alice"]
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58
SAID_BY_SCRAM = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)
REAUTH_MS = 2000


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[SaslBroker]:
    made = SaslBroker(module_tmp_path / "broker", cores_count=2)
    made.start()
    make_users(made.bootstrap)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def brief_broker(module_tmp_path) -> Iterator[SaslBroker]:
    """Its clients have to log in again and again."""
    made = SaslBroker(module_tmp_path / "brief", 1, {"connections.max.reauth.ms": str(REAUTH_MS)})
    made.start()
    make_users(made.bootstrap)
    yield made
    made.stop()


@pytest.fixture
def line(broker) -> Iterator[LoginLine]:
    with LoginLine(broker) as made:
        yield made


def stock(broker, mechanism, user="alice", password=PASSWORD, **more):
    return {
        "bootstrap.servers": broker.sasl_bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password, **more,
    }  # fmt: skip


def python_stock(broker, mechanism, user="alice", password=PASSWORD):
    return {
        "bootstrap_servers": broker.sasl_bootstrap, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password,
    }  # fmt: skip


def is_closed(line: LoginLine) -> bool:
    try:
        return line.raw.wait_closed() == b""
    except TimeoutError:
        return False


def counted(broker: SaslBroker, name: str) -> int:
    return sum(core["authentication"][name] for core in broker.counters())


# -- stock clients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(broker, topic, mechanism):
    write_and_read_by_librdkafka(stock(broker, mechanism), topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_is_told_that_it_may_not(broker, mechanism):
    said = []
    admin = AdminClient(stock(broker, mechanism, password="wrong", error_cb=said.append))
    for _ in patiently("the refusal is told"):
        admin.poll(0.1)
        if KafkaError._AUTHENTICATION in [error.code() for error in said]:
            break


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker, topic, mechanism):
    settings = python_stock(broker, mechanism)
    write_and_read_by_kafka_python(settings, topic)
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**{**settings, "sasl_plain_password": "wrong"}, bootstrap_timeout_ms=2000)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(broker, topic, mechanism):
    write_and_read_by_aiokafka(python_stock(broker, mechanism), topic)


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java(broker, topic, mechanism, tmp_path):
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    file = tmp_path / "client.properties"

    def write(password):
        jaas = f'org.apache.kafka.common.security.{module} required username="alice" password="{password}";'
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
            "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
        )

    write("wrong")
    wrong = run_tool(
        "topics", "--bootstrap-server", broker.sasl_bootstrap, "--command-config", str(file), "--list"
    )
    assert wrong.returncode != 0
    assert "SaslAuthenticationException" in wrong.stdout + wrong.stderr
    write(PASSWORD)
    write_and_read_by_java(broker.sasl_bootstrap, file, topic)


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("user", ["alice", "al=i,ce"])
def test_our_own_client(broker, topic, mechanism, user):
    def cluster(password):
        sasl = SecuritySettings(None, SaslSettings(mechanism, user, password))
        return Cluster(ClusterSettings(broker.sasl_bootstrap, "test", 10, 20, sasl))

    with cluster(USERS[user]) as made:
        assert write_and_read(made, topic) == [b"v0", b"v1", b"v2"]
    with cluster("wrong") as made, pytest.raises(AuthenticationError, match=f"does not let {user} in"):
        made.topic_names()


@pytest.mark.parametrize("mechanism", list(Mechanism))
@on_both_loops
async def test_our_asynchronous_client(broker, mechanism):
    async with connect(broker.sasl_bootstrap, auth=SaslSettings(mechanism, "al=i,ce", USERS["al=i,ce"])) as client:
        assert await client.fleet.broker_ids() == [0, 1]
    async with connect(broker.sasl_bootstrap, auth=SaslSettings(mechanism, "al=i,ce", "wrong")) as client:
        with pytest.raises(AuthenticationError, match="does not let al=i,ce in"):
            await client.fleet.broker_ids()


def test_tpc(broker, topic, tmp_path, monkeypatch):
    make_a_topic_by_tpc(stock(broker, "SCRAM-SHA-512"), topic, tmp_path, monkeypatch)


# -- before a client has logged in -------------------------------------------------------------------------------------

_OF_LOGINS = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
OTHERS = sorted((key, facts.last_version) for key, facts in apis().items() if facts.name not in _OF_LOGINS)


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, 1) + b"x" + b"\0"


@pytest.mark.parametrize("before", ["nothing", "versions", "handshake", "pipelined"])
def test_no_api_is_answered(broker, before):
    """Attempts 1, 2 and 3: each API first, behind ApiVersions, behind SaslHandshake, and in one segment with it."""
    for key, version in [*OTHERS, (-1, 0), (999, 0)]:
        with LoginLine(broker) as line:
            if before == "versions":
                line.hello()
            if before == "handshake":
                line.shake_hands("PLAIN")
            frame = header(key, version) + bytes(64)
            sent = struct.pack(">i", len(frame)) + frame
            if before == "pipelined":
                line.raw.send("SaslHandshake", 1, {"Mechanism": "PLAIN"})
            with contextlib.suppress(Closed):
                line.raw.send_bytes(sent * 2)
            came = line.raw.wait_closed()
            assert came == b"" or before == "pipelined", (key, came)
            assert len(came) < 100, "the answer to the handshake at most"


def produce(topic: str) -> dict:
    records = batch([Record(value=b"x")])
    data = {"Name": topic, "PartitionData": [{"Index": 0, "Records": records}]}
    return {"TransactionalId": None, "Acks": 1, "TimeoutMs": 1000, "TopicData": [data]}


def end_of(broker: SaslBroker, topic: str) -> int:
    wanted = {"Timestamp": -1, "PartitionIndex": 0}
    ends = []
    for port in broker.ports:
        with RawConnection(broker.host, port) as plain:
            asked = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [wanted]}]}
            [found] = plain.ask("ListOffsets", 5, asked)["Topics"][0]["Partitions"]
            ends.append(found["Offset"])
    return max(ends)


@pytest.fixture
def made_topic(broker, topic) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    return topic


def test_a_produce_in_halves_around_a_failed_login(broker, made_topic):
    """Attempt 4."""
    frame = encode_request("Produce", 9, produce(made_topic), 1, "x")
    sent = struct.pack(">i", len(frame)) + frame
    with LoginLine(broker) as line:
        line.shake_hands("PLAIN")
        line.raw.send("SaslAuthenticate", 2, {"AuthBytes": b"\0alice\0wrong"})
        line.raw.send_bytes(sent[:40])
        line.raw.receive_frame()
        with contextlib.suppress(Closed):
            line.raw.send_bytes(sent[40:])
        assert line.raw.wait_closed() == b""
    assert end_of(broker, made_topic) == 0


def test_metadata_that_is_prepared_for_others_is_not_given(broker):
    """Attempt 7: the same bytes from one who is let in, twice, so that C has the answer."""
    with LoginLine(broker) as good:
        good.log_in("alice")
        for _ in range(2):
            assert good.raw.ask("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": True})["Brokers"]
        with LoginLine(broker) as line:
            line.raw.send("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": True})
            assert is_closed(line)


def test_many_silent_connections_keep_nobody_out(broker):
    """Attempt 11, with as many as a test may open."""
    silent = [socket.create_connection((broker.host, broker.sasl_port)) for _ in range(500)]
    try:
        with LoginLine(broker) as line:
            assert line.log_in("alice")["ErrorCode"] == 0
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 100 << 20),
        struct.pack(">i", 524_289),
        struct.pack(">i", -5),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
    ],
    ids=["100 MiB", "over the bound", "negative", "empty", "no header"],
)
def test_lengths_that_no_stranger_may_announce(broker, sent):
    """Attempts 9 and 12."""
    with LoginLine(broker) as line:
        line.raw.send_bytes(sent)
        assert is_closed(line)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">hhih", 36, 2, 1, -1) + b"\0" + b"\xff\xff\xff\xff\x07" + b"x",
        struct.pack(">hhih", 36, 0, 1, -1) + struct.pack(">i", 2**31 - 1) + b"x",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\0" + b"\2a\2b" + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", 32767) + b"PLAIN",
    ],
    ids=["bytes of 2^31", "bytes of 2^31, v0", "tags in the body", "tags in the header", "a long string"],
)
def test_bodies_that_announce_too_much(broker, body):
    """Attempts 13 and 14."""
    with LoginLine(broker) as line:
        if body[:2] == struct.pack(">h", 36):
            line.shake_hands("PLAIN")
        line.raw.send_frame(body)
        assert is_closed(line)


# -- logins that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_is_there_is_not_told(broker, mechanism):
    """Attempt 25: the same text, as late, for a wrong password and for nobody; then it is over (attempt 18)."""
    said = set()
    for user in ("alice", "eve", "al=i,ce", "x" * 200):
        with LoginLine(broker) as line:
            with takes_at_least(0.09):  # the delay
                answer = line.log_in(user, "wrong", mechanism)
            said.add((answer["ErrorCode"], answer["ErrorMessage"], answer["SessionLifetimeMs"]))
            assert is_closed(line)
    assert len(said) == 1
    assert said.pop()[0] == SASL_AUTHENTICATION_FAILED


def test_salts_of_nobody_stay_the_same_over_a_restart_and_on_each_core(broker):
    def first_words(name):
        found = set()
        for port in range(broker.sasl_port, broker.sasl_port + 2):
            with LoginLine(broker) as line:
                line.raw.close()
                line.raw = RawConnection(broker.host, port)
                line.shake_hands("SCRAM-SHA-256")
                answer = line.authenticate(b"n,,n=" + name + b",r=x")["AuthBytes"]
                found.add(answer.partition(b",s=")[2])
        return found

    before = first_words(b"eve")
    assert len(before) == 1
    assert len(before.copy().pop()) == len(first_words(b"alice").pop())
    broker.restart()
    assert first_words(b"eve") == before


def test_a_mechanism_that_is_not_enabled(broker):
    """Attempt 17."""
    for name in ("GSSAPI", "OAUTHBEARER", "plain", "", "SCRAM-SHA-1"):
        for version in (0, 1):
            with LoginLine(broker) as line:
                answer = line.shake_hands(name, version)
                assert answer["ErrorCode"] == UNSUPPORTED_SASL_MECHANISM
                assert sorted(answer["Mechanisms"]) == sorted(MECHANISMS)
                assert is_closed(line)


def test_raw_tokens(broker):
    """Attempt 16, and what is right."""
    for mechanism in MECHANISMS:
        with LoginLine(broker) as line:
            assert line.shake_hands(mechanism, 0)["ErrorCode"] == 0
            machine = machine_of("alice", None, mechanism)
            message = machine.first()
            while message is not None:
                message = machine.next(line.token(message))
            assert line.raw.ask("Metadata", 9, {"Topics": None})["Brokers"]
    with LoginLine(broker) as line:
        line.shake_hands("PLAIN", 0)
        line.raw.send("SaslAuthenticate", 2, {"AuthBytes": b"\0alice\0" + PASSWORD.encode()})
        assert is_closed(line)
    with LoginLine(broker) as line:
        line.shake_hands("PLAIN", 0)
        line.raw.send_frame(b"\0alice\0wrong")
        assert is_closed(line)
    with LoginLine(broker) as line:
        line.shake_hands("PLAIN", 1)
        line.raw.send_frame(b"\0alice\0" + PASSWORD.encode())
        assert is_closed(line)


def test_a_recorded_login_is_good_for_nothing(broker, line):
    """Attempt 19."""
    line.shake_hands("SCRAM-SHA-256")
    machine = scram_of("alice")
    proof = machine.next(line.authenticate(machine.first())["AuthBytes"])
    assert line.authenticate(proof)["ErrorCode"] == 0
    with LoginLine(broker) as again:
        again.shake_hands("SCRAM-SHA-256")
        again.authenticate(machine.first())
        assert again.authenticate(proof)["ErrorCode"] == SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "message",
    [b"p=tls-unique,,n=alice,r=abc", b"n,,n=al=ice,r=abc", b"n,,n=a\0b,r=abc", b"c=biws,r=abc,p=AAAA", b"",
     b"n,,n=" + b"a" * 65_536 + b",r=abc"],
    ids=["p=", "escape", "control byte", "order", "empty", "64 KiB"],
)  # fmt: skip
def test_first_scram_messages_that_are_refused(line, message):
    """Attempts 21, 24 and 28."""
    line.shake_hands("SCRAM-SHA-256")
    answer = line.authenticate(message)
    assert (answer["ErrorCode"], answer["ErrorMessage"]) == (SASL_AUTHENTICATION_FAILED, SAID_BY_SCRAM)
    assert is_closed(line)


def test_nobody_acts_for_another(broker):
    """Attempt 22."""
    for mechanism, message in (
        ("PLAIN", b"bob\0alice\0" + PASSWORD.encode()),
        ("SCRAM-SHA-256", b"n,a=bob,n=alice,r=abc"),
    ):
        with LoginLine(broker) as line:
            line.shake_hands(mechanism)
            answer = line.authenticate(message)
            assert answer["ErrorCode"] == SASL_AUTHENTICATION_FAILED
            assert "authorization id" in answer["ErrorMessage"]
            assert is_closed(line)


def test_a_user_who_is_deleted_is_not_let_in_any_more(broker):
    """Attempt 29: also between the two messages, and with a password that was right a moment ago."""
    make_users(broker.bootstrap, {"carol": "c"})
    for mechanism in MECHANISMS:
        with LoginLine(broker) as line:
            assert line.log_in("carol", "c", mechanism)["ErrorCode"] == 0
    with LoginLine(broker) as line:
        line.shake_hands("SCRAM-SHA-256")
        machine = machine_of("carol", "c")
        proof = machine.next(line.authenticate(machine.first())["AuthBytes"])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for kind in (StockMechanism.SCRAM_SHA_256, StockMechanism.SCRAM_SHA_512):
            for done in admin.alter_user_scram_credentials([UserScramCredentialDeletion("carol", kind)]).values():
                done.result(PATIENCE_S)

        def is_gone_everywhere():
            with LoginLine(broker) as other:
                return other.log_in("carol", "c")["ErrorCode"] == SASL_AUTHENTICATION_FAILED

        eventually(is_gone_everywhere, "the user is gone")
        assert line.authenticate(proof)["ErrorCode"] == SASL_AUTHENTICATION_FAILED
    for mechanism in MECHANISMS:
        with LoginLine(broker) as line:
            assert line.log_in("carol", "c", mechanism)["ErrorCode"] == SASL_AUTHENTICATION_FAILED


def test_no_password_and_no_message_is_in_the_log(broker):
    with LoginLine(broker) as line:
        line.log_in("alice", "a-wrong-password", "PLAIN")
    log = broker.log_text()
    assert "authentication failed" in log
    for secret in (*USERS.values(), "a-wrong-password", "c=biws"):
        assert len(secret) < 6 or secret not in log


def test_logins_are_counted(broker):
    before = {name: counted(broker, name) for name in ("succeeded", "failed")}
    for password in (PASSWORD, "wrong", "wrong"):
        with LoginLine(broker) as line:
            line.log_in("alice", password)
    assert counted(broker, "succeeded") == before["succeeded"] + 1
    assert counted(broker, "failed") == before["failed"] + 2


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_the_plain_listener_knows_no_logins(broker):
    with RawConnection(broker.host, broker.ports[0]) as plain:
        assert plain.ask("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] == ILLEGAL_SASL_STATE
        assert plain.ask("SaslAuthenticate", 2, {"AuthBytes": b"\0a\0b"})["ErrorCode"] == ILLEGAL_SASL_STATE
        assert plain.ask("Metadata", 9, {"Topics": None})["Brokers"]
        told = {each["ApiKey"] for each in plain.ask("ApiVersions", 3, HELLO)["ApiKeys"]}
    assert {17, 36} <= told


def is_served_in_its_session(line: LoginLine) -> bool:
    """Or the machine has paused for as long as a session is."""
    passed_s = stopwatch()
    assert line.log_in("alice")["SessionLifetimeMs"] == REAUTH_MS
    try:
        return bool(line.raw.ask("Metadata", 9, {"Topics": None})["Brokers"])
    except Closed:
        assert passed_s() >= REAUTH_MS / 1000
        return False


def test_a_session_ends_unless_it_is_renewed(brief_broker):
    """Attempt 64, and what renews it, also too late."""

    def is_as_long_as_it_is_renewed() -> bool:
        with LoginLine(brief_broker) as line:
            if not is_served_in_its_session(line):
                return False
            assert line.log_in("alice")["SessionLifetimeMs"] == REAUTH_MS
            let_pass(REAUTH_MS / 1000 + 0.05)
            if not is_served_in_its_session(line):
                return False
            let_pass(REAUTH_MS / 1000 + 0.05)
            line.raw.send("Metadata", 9, {"Topics": None})
            return is_closed(line)

    eventually(is_as_long_as_it_is_renewed, "a session that was renewed, and has ended")
    assert counted(brief_broker, "renewed") >= 2
    assert sum(core["closed"]["session_over"] for core in brief_broker.counters()) >= 1


def test_nobody_becomes_another(brief_broker):
    """Attempts 62 and 63."""
    with LoginLine(brief_broker) as line:
        line.log_in("alice")
        answer = line.log_in("bob")
        assert answer["ErrorCode"] == SASL_AUTHENTICATION_FAILED
        assert is_closed(line)
    with LoginLine(brief_broker) as line:
        line.log_in("alice")
        assert line.shake_hands("PLAIN")["ErrorCode"] == 0
        line.raw.send("SaslAuthenticate", 2, {"AuthBytes": b"\0alice\0" + PASSWORD.encode()})
        assert is_closed(line)


def test_librdkafka_goes_on_over_renewals(brief_broker, topic):
    producer = Producer(stock(brief_broker, "SCRAM-SHA-256", **{"delivery.timeout.ms": int(1000 * PATIENCE_S)}))
    failed = []
    before = counted(brief_broker, "renewed")
    for _ in patiently("its session is renewed"):
        producer.produce(topic, b"x", on_delivery=lambda error, _message: error and failed.append(error))
        producer.poll(0.05)
        if counted(brief_broker, "renewed") >= before + 3:
            break
    assert producer.flush(PATIENCE_S) == 0
    assert not failed


@on_both_loops
async def test_our_asynchronous_client_goes_on_over_renewals(brief_broker):
    """On one connection, unless the machine pauses for as long as a session has left: then on another one."""
    auth = SaslSettings(Mechanism.SCRAM_SHA_256, "alice", PASSWORD)
    async with connect(brief_broker.sasl_bootstrap, auth=auth) as client:
        for _ in patiently("a connection goes on over three renewals"):
            before = counted(brief_broker, "renewed")
            channel = await client.fleet.any_channel()
            while counted(brief_broker, "renewed") < before + 3 and not channel.is_closed:
                await client.fleet.broker_ids()
            if not channel.is_closed:
                break


def test_a_client_that_comes_while_the_broker_starts_is_let_in_or_closed(brief_broker):
    """Attempt 70: never served without a login, from the first moment at which somebody listens."""
    brief_broker.stop()
    brief_broker.launch()
    answers = 0
    for _ in patiently("it lets clients in"):
        with contextlib.suppress(OSError, Closed), LoginLine(brief_broker) as line:
            line.raw.send("Metadata", 9, {"Topics": None})
            assert line.raw.wait_closed() == b""
        with contextlib.suppress(OSError, Closed), LoginLine(brief_broker) as line:
            answer = line.log_in("alice")
            answers += answer["ErrorCode"] == 0
        if answers == 3:
            break
    assert (brief_broker.data_folder / "sasl.secret").stat().st_mode & 0o077 == 0
