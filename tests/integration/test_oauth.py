"""Logins by token at a real broker, by librdkafka and byte by byte."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.auth.token_maker import ATTACKER, AUDIENCE, ISSUER, ISSUER_OF_TESTS
from tests.support.both_loops import on_both_loops
from tests.support.broker_process import serve_refusing
from tests.support.kafka_peer import run_tool
from tests.support.oauth_brokers import OAuthBroker
from tests.support.own_certificate import make_own_certificate
from tests.support.raw_client import Closed
from tests.support.sasl_brokers import LoginLine
from tests.support.waiting import PATIENCE_S, eventually, patiently
from tpc_broker.client import connect
from tpc_broker.client.errors import AuthenticationError
from tpc_broker.client.security import OAuthSettings

MAKER = ISSUER_OF_TESTS
EARLY_S, LATE_S = 1_700_000_000, 4_000_000_000


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[OAuthBroker]:
    made = OAuthBroker(module_tmp_path / "oauth", 2)
    made.folder.mkdir(parents=True)
    (made.folder / "keys.json").write_bytes(MAKER.key_set())
    made.start()
    yield made
    made.stop()


def token(maker: Any = MAKER, kid: str = "rsa", **changes: Any) -> bytes:
    return maker.token(kid, **{"exp": LATE_S, "iat": EARLY_S, **changes})


def client(kind: Any, broker: OAuthBroker, make: Any = token, **more: Any) -> Any:
    """Of librdkafka, which asks `make` for a token whenever it needs one."""

    def give(_config: str) -> tuple[str, float]:
        return make().decode(), float(LATE_S)

    return kind({
        "bootstrap.servers": broker.sasl_bootstrap, "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER", "oauth_cb": give, "log_level": 0, **more,
    })  # fmt: skip


def said(message: bytes) -> bytes:
    return b"n,,\x01auth=Bearer " + message + b"\x01\x01"


def log_in(line: LoginLine, message: bytes) -> dict[str, Any]:
    assert line.shake_hands("OAUTHBEARER")["ErrorCode"] == 0
    return line.authenticate(said(message))


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
def test_librdkafka_writes_and_reads_with_a_token(broker: OAuthBroker, kid: str) -> None:
    producer = client(Producer, broker, partial(token, kid=kid))
    producer.poll(0)  # it asks for the first token here
    producer.produce(f"oauth-{kid}", b"value")
    assert producer.flush(PATIENCE_S) == 0
    more = {"group.id": f"oauth-{kid}", "auto.offset.reset": "earliest"}
    consumer = client(Consumer, broker, partial(token, kid=kid), **more)
    consumer.subscribe([f"oauth-{kid}"])
    for _ in patiently("the record comes"):
        found = consumer.poll(0.1)
        if found is not None and found.error() is None:
            assert found.value() == b"value"
            break
    consumer.close()


@pytest.mark.clients
@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_own_client_takes_a_token_from_a_file(
    broker: OAuthBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, place = "org.apache.kafka.common.security.oauthbearer", f"file://{tmp_path / 'token'}"
    (tmp_path / "client.properties").write_text("\n".join((
        "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER",
        f"sasl.oauthbearer.token.endpoint.url={place}",
        f"sasl.login.callback.handler.class={module}.OAuthBearerLoginCallbackHandler",
        f"sasl.jaas.config={module}.OAuthBearerLoginModule required;",
    )))  # fmt: skip
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={place}")
    options = ("--bootstrap-server", broker.sasl_bootstrap, "--command-config", str(tmp_path / "client.properties"))
    (tmp_path / "token").write_bytes(token())
    done = run_tool("topics", *options, "--create", "--topic", "oauth-java")
    assert "Created topic oauth-java." in done.stdout, done
    (tmp_path / "token").write_bytes(token(ATTACKER))
    done = run_tool("topics", *options, "--list")
    assert "oauth-java" not in done.stdout
    assert "invalid_token" in done.stderr, done


@on_both_loops
async def test_our_asynchronous_client_has_a_token_or_is_not_let_in(broker: OAuthBroker) -> None:
    async def good() -> str:
        return token().decode()

    async def wrong() -> str:
        return token(ATTACKER).decode()

    async with connect(broker.sasl_bootstrap, auth=OAuthSettings(good)) as made:
        assert await made.fleet.broker_ids() == [0, 1]
    async with connect(broker.sasl_bootstrap, auth=OAuthSettings(wrong)) as made:
        with pytest.raises(AuthenticationError, match=r"does not let the token in|refused the token"):
            await made.fleet.broker_ids()


def test_a_token_of_somebody_else_lets_nobody_in(broker: OAuthBroker) -> None:
    told: list[str] = []
    admin = client(AdminClient, broker, partial(token, ATTACKER), error_cb=lambda error: told.append(error.str()))
    eventually(lambda: (admin.poll(0.1), told)[1], "librdkafka says why")
    assert any("invalid_token" in each or "Authentication failed" in each for each in told), told


def test_what_is_told_of_a_token_that_is_not_believed(broker: OAuthBroker) -> None:
    for bad in (token(ATTACKER), token(exp=EARLY_S), token(aud="x"), token(iss="x"), b"a.b.c"):
        with LoginLine(broker) as line:
            answer = log_in(line, bad)
            assert (answer["ErrorCode"], answer["AuthBytes"]) == (0, b'{"status":"invalid_token"}')
            answer = line.authenticate(b"\x01")
            assert (answer["ErrorCode"], answer["ErrorMessage"]) == (58, '{"status":"invalid_token"}')
            with pytest.raises(Closed):
                line.hello()
    text = broker.log_text()
    assert "authentication failed: a token is not believed: its signature is wrong" in text
    assert token(ATTACKER).split(b".")[0].decode() not in text, "tokens are not logged"


def test_malformed_messages_are_refused_at_once(broker: OAuthBroker) -> None:
    for bad in (b"", b"\x01", b"n,a=admin,\x01auth=Bearer " + token() + b"\x01\x01", said(b"x" * (1 << 20))[: 1 << 18]):
        with LoginLine(broker) as line:
            line.shake_hands("OAUTHBEARER")
            assert line.authenticate(bad)["ErrorCode"] == 58


@pytest.mark.clients  # by the real clock
def test_42_a_token_that_has_ended_serves_nothing_more_on_an_open_connection(broker: OAuthBroker) -> None:
    with LoginLine(broker) as line:
        answer = log_in(line, token(exp=int(time.time()) + 5))
        assert answer["ErrorCode"] == 0
        assert 0 < answer["SessionLifetimeMs"] <= 5000
        asked = {"Topics": [], "AllowAutoTopicCreation": False}
        assert line.raw.ask("Metadata", 12, asked)["ClusterId"]
        with pytest.raises(Closed):
            for _ in patiently("the connection is closed"):
                line.raw.ask("Metadata", 12, asked)
                time.sleep(0.05)


def test_a_session_goes_on_with_a_new_token_of_the_same_user_alone(broker: OAuthBroker) -> None:
    with LoginLine(broker) as line:
        assert log_in(line, token())["ErrorCode"] == 0
        assert log_in(line, token(kid="ec"))["ErrorCode"] == 0
        for _ in patiently("the next renewal may begin"):
            if line.shake_hands("OAUTHBEARER")["ErrorCode"] == 0:
                break
        answer = line.authenticate(said(token(sub="admin")))
        assert answer["ErrorCode"] == 58
        assert "Cannot change principals" in answer["ErrorMessage"]


def test_a_key_that_is_new_is_found(broker: OAuthBroker) -> None:
    (broker.folder / "keys.json").write_bytes(MAKER.key_set()[:-2] + b"," + ATTACKER_KEY + b"]}")

    def is_let_in() -> bool:
        with LoginLine(broker) as line:
            return log_in(line, token_of_a_new_key())["AuthBytes"] == b""

    eventually(is_let_in, "the new key is known", patience_s=PATIENCE_S)


def token_of_a_new_key() -> bytes:
    return ATTACKER.token("ed", header={"kid": "new"}, exp=LATE_S, iat=EARLY_S)


ATTACKER_KEY = ATTACKER.key_set("ed")[len(b'{"keys": [') : -2].replace(b'"kid": "ed"', b'"kid": "new"')


class Keys(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = MAKER.key_set()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def keys_by_https(tmp_path: Path) -> Iterator[int]:
    make_own_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.clients  # it starts and stops a broker several times
def test_keys_come_by_https_from_who_has_the_right_certificate(
    broker: OAuthBroker, keys_by_https: int, tmp_path: Path
) -> None:
    def let_in() -> bytes:
        with LoginLine(broker) as line:
            return log_in(line, token())["AuthBytes"]

    broker.stop()
    broker.url = f"https://localhost:{keys_by_https}/keys"
    try:
        broker.start()
        assert let_in() == b'{"status":"invalid_token"}', "nobody has signed that certificate"
        eventually(lambda: "certificate verify failed" in broker.log_text(), "why it is not taken")
        broker.stop()
        broker.environment = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        broker.start()
        eventually(lambda: let_in() == b"", "the keys are there")
    finally:
        broker.stop()
        broker.environment, broker.url = {}, ""
        broker.start()


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", "OAUTHBEARER is enabled, and needs it"),
        ("sasl.oauthbearer.expected.issuer", "OAUTHBEARER is enabled, and needs it"),
        ("sasl.oauthbearer.expected.audience", "OAUTHBEARER is enabled, and needs it"),
    ],
)
def test_it_does_not_start_without_keys_issuer_and_audience(left_out: str, told: str) -> None:
    given = {
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys", "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE, "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    }  # fmt: skip
    del given[left_out]
    done = serve_refusing(*(f"--override={name}={value}" for name, value in given.items()))
    assert done.returncode == 2
    assert left_out in done.stderr
    assert told in done.stderr


def test_it_does_not_start_without_what_checks_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        "sasl.oauthbearer.jwks.endpoint.url=file:///keys", f"sasl.oauthbearer.expected.issuer={ISSUER}",
        f"sasl.oauthbearer.expected.audience={AUDIENCE}", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
    )  # fmt: skip
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    wanted = [f"--override={each}" for each in (*given, "sasl.enabled.mechanisms=OAUTHBEARER")]
    done = serve_refusing(*wanted, "--cores=1")
    assert (done.returncode, done.stderr) == (
        2, "tpc-broker: OAUTHBEARER needs the extra `oauth`: pip install 'tpc-broker[oauth]'\n",
    )  # fmt: skip
    assert serve_refusing(*[f"--override={each}" for each in given], "--cores=1").returncode == 0, "SCRAM needs none"
