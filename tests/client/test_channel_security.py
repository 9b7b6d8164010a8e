"""Logins and TLS of the asynchronous client against scripted brokers, on both loops."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.scripted_broker import as_usual, scripted_brokers, scripted_client
from tests.support.scripted_logins import Logins
from tests.support.tls_proxy import server_context
from tpc_broker.client import connect
from tpc_broker.client.errors import AuthenticationError, UnreachableError
from tpc_broker.client.handle import opened
from tpc_broker.client.net import channel as channels
from tpc_broker.client.net.settings import fleet_settings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.security import Mechanism, OAuthSettings, SaslSettings, TlsSettings
from tpc_broker.kafka import ApiKey, messages

USERS = {"al=i,ce": "pass,word=1", "good.to-ken": "", "bad.token": '{"status":"expired"}'}
ALICE = ("al=i,ce", USERS["al=i,ce"])
LONG = b"long" * 300_000


async def echo(asked):
    """Bytes come back."""
    if asked.key == ApiKey.PRODUCE:
        kind = messages.ProduceResponse
        return kind(responses=[kind.TopicProduceResponse(name=asked.message.transactional_id)])
    return None


async def ask(channel, text="x"):
    request = messages.ProduceRequest(transactional_id=text)
    return (await channel.call(ApiKey.PRODUCE, lambda _version: request)).responses[0].name


def tokens(*given):
    """Settings whose function gives these one after the other, then the last again and again."""
    left = list(given)

    async def token():
        await anyio.lowlevel.checkpoint()
        return left.pop(0) if len(left) > 1 else left[0]

    return OAuthSettings(token, {"who": "test"})


def settings_of(mechanism):
    return tokens("good.to-ken") if mechanism == "OAUTHBEARER" else SaslSettings(Mechanism(mechanism), *ALICE)


@asynccontextmanager
async def secured(script, context=None, **settings):
    """Brokers on sockets and a client of them."""
    async with (
        scripted_brokers(script, sockets=True, tls=context) as brokers,
        opened(fleet_settings(brokers.bootstrap, **settings)) as client,
    ):
        yield client, brokers


@pytest.fixture(autouse=True)
def _renewals_at_any_time(monkeypatch):
    monkeypatch.setattr(channels, "RENEWAL_SECONDS_MIN", 0.0)


MECHANISMS = pytest.mark.parametrize("mechanism", [*Mechanism, "OAUTHBEARER"])


@MECHANISMS
@on_both_loops
async def test_who_is_let_in_and_who_is_not(mechanism):
    logins = Logins(USERS)
    async with scripted_client(logins.script(echo), auth=settings_of(mechanism)) as (client, _brokers):
        assert await ask(await client.fleet.any_channel()) == "x"
        assert logins.done == [(0, str(mechanism))]
    wrong = [tokens("bad.token"), tokens("un.known")] if mechanism == "OAUTHBEARER" else [
        SaslSettings(Mechanism(mechanism), ALICE[0], "wrong"), SaslSettings(Mechanism(mechanism), "eve", ALICE[1]),
    ]  # fmt: skip
    for auth in wrong:
        async with scripted_client(logins.script(echo), auth=auth) as (client, brokers):
            with pytest.raises(AuthenticationError, match=r"scripted:9092 does not let .* in: wrong name or password"):
                await client.fleet.topic("t")
            assert len(brokers.lines) == 1
            assert brokers.lines[0].is_closed
    logins = Logins(USERS, ("GSSAPI",))
    async with scripted_client(logins.script(echo), auth=settings_of(mechanism)) as (client, _brokers):
        with pytest.raises(AuthenticationError, match=f"scripted:9092 knows no SASL {mechanism}; it has GSSAPI"):
            await client.fleet.any_channel()


@on_both_loops
async def test_a_broker_that_does_not_know_the_password_is_not_believed():
    logins = Logins(USERS)
    logins.lies = True
    auth = SaslSettings(Mechanism.SCRAM_SHA_256, *ALICE)
    async with scripted_client(logins.script(echo), auth=auth) as (client, _brokers):
        with pytest.raises(AuthenticationError, match="does not know the password"):
            await client.fleet.any_channel()


@pytest.mark.parametrize(
    "versions",
    [{ApiKey.SASL_HANDSHAKE: None}, {ApiKey.SASL_AUTHENTICATE: None}, {ApiKey.SASL_HANDSHAKE: (0, 0)}],
)
@on_both_loops
async def test_a_broker_without_logins_gets_no_password(versions):
    auth = SaslSettings(Mechanism.PLAIN, *ALICE)
    async with scripted_client(as_usual, auth=auth, versions=versions) as (client, brokers):
        with pytest.raises(AuthenticationError, match=r"knows no SASL|is too old for SASL"):
            await client.fleet.any_channel()
        assert {asked.key for asked in brokers.asked} == {ApiKey.API_VERSIONS}


@on_both_loops
async def test_a_token_function_that_fails_is_named():
    async def token():
        raise KeyError("no credentials")

    async with scripted_client(auth=OAuthSettings(token)) as (client, _brokers):
        with pytest.raises(AuthenticationError, match=r"there is no token: KeyError\(.*credentials.*\) \(auth.token\)"):
            await client.fleet.any_channel()
    async with scripted_client(auth=tokens("line\nbreak")) as (client, _brokers):
        with pytest.raises(AuthenticationError, match="the token is none of RFC 6750"):
            await client.fleet.any_channel()


@MECHANISMS
@on_both_loops
async def test_a_session_is_renewed_on_its_connection_and_nobody_notices(mechanism):
    logins = Logins(USERS)
    logins.lifetime_ms = 20
    async with scripted_client(logins.script(echo), auth=settings_of(mechanism)) as (client, brokers):
        channel = await client.fleet.any_channel()
        count = 0
        got = []
        while len(logins.done) < 4:
            count += 1
            channel.start(ApiKey.PRODUCE, 9, messages.ProduceRequest(transactional_id=f"s{count}"), got.append)
            assert await ask(channel, f"a{count}") == f"a{count}"
            await anyio.sleep(0.001)
        assert [answer.responses[0].name for answer in got] == [f"s{number}" for number in range(1, count + 1)]
        assert len(brokers.lines) == 1
        assert not channel.is_closed


@on_both_loops
async def test_requests_wait_while_a_session_is_renewed(monkeypatch):
    monkeypatch.setattr(channels, "RENEWAL_SHARES", (0.0, 0.0))
    logins = Logins(USERS)
    logins.lifetime_ms = 1_000_000
    goes_on, waits = anyio.Event(), anyio.Event()

    async def before_answer(asked):
        if asked.key == ApiKey.SASL_AUTHENTICATE and len(logins.done) == 1:
            waits.set()
            await goes_on.wait()

    logins.before_answer = before_answer
    auth = SaslSettings(Mechanism.PLAIN, *ALICE)
    async with scripted_client(logins.script(echo), auth=auth) as (client, brokers):
        channel = await client.fleet.any_channel()
        await waits.wait()
        monkeypatch.setattr(channels, "RENEWAL_SHARES", (0.5, 0.5))
        got = []
        channel.start(ApiKey.PRODUCE, 9, messages.ProduceRequest(transactional_id="held"), got.append)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, channel, "cancelled")
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert not brokers.asked_of(ApiKey.PRODUCE)
        goes_on.set()
        assert await ask(channel, "last") == "last"
        assert got[0].responses[0].name == "held"
        assert len(logins.done) == 2


@on_both_loops
async def test_a_token_that_is_not_there_yet_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(channels, "RENEWAL_SHARES", (0.0, 0.0))
    monkeypatch.setattr(channels, "LOGIN_PAUSE_SECONDS", 0.001)
    logins = Logins(USERS)
    logins.lifetime_ms = 1_000_000
    calls = 0

    async def token():
        nonlocal calls
        calls += 1
        if 2 <= calls <= 4:
            raise OSError("away")
        if calls == 5:
            monkeypatch.setattr(channels, "RENEWAL_SHARES", (0.5, 0.5))
        return "good.to-ken"

    async with scripted_client(logins.script(echo), auth=OAuthSettings(token)) as (client, _brokers):
        channel = await client.fleet.any_channel()
        while len(logins.done) < 2:
            assert await ask(channel) == "x"
        assert calls == 5


@on_both_loops
async def test_who_is_not_let_in_again_hears_why():
    logins = Logins(USERS)
    logins.lifetime_ms = 20
    async with scripted_client(logins.script(echo), auth=tokens("good.to-ken", "bad.token")) as (client, _brokers):
        channel = await client.fleet.any_channel()
        with pytest.raises(AuthenticationError, match="does not let the token in"):
            while True:
                await ask(channel)
                await anyio.sleep(0.001)
        assert channel.is_closed


@on_both_loops
async def test_tls_and_every_way_of_being_wrong(certificates):
    trusted = (certificates / "ca.pem").read_text()
    context = server_context(certificates)
    async with scripted_brokers(echo, tls=context, topics={"t": 1}) as brokers:
        for tls in (TlsSettings(trusted), TlsSettings(trusted, version_max="TLSv1.2")):
            async with connect(brokers.bootstrap, tls=tls) as client:
                channel = await client.fleet.leader(TopicPartition("t", 0))
                assert await ask(channel) == "x"
        for wrong in (TlsSettings((certificates / "other-ca.pem").read_text()), True):
            async with connect(brokers.bootstrap, tls=wrong) as client:
                with pytest.raises(AuthenticationError, match=r"no TLS with 127.0.0.1:.* certificate verify failed"):
                    await client.fleet.any_channel()
        async with connect(brokers.bootstrap, request_seconds=5, retry_seconds=0.2) as client:
            with pytest.raises(UnreachableError):
                await client.fleet.topic("t")
    async with scripted_brokers(echo, tls=server_context(certificates, "elsewhere")) as brokers:
        async with connect(brokers.bootstrap, tls=TlsSettings(trusted)) as client:
            with pytest.raises(AuthenticationError, match="IP address mismatch"):
                await client.fleet.any_channel()
        async with connect(brokers.bootstrap, tls=TlsSettings(trusted, checks_host_name=False)) as client:
            assert await ask(await client.fleet.any_channel()) == "x"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(echo, context, tls=TlsSettings(trusted, version_min="TLSv1.3")) as (client, _brokers):
        with pytest.raises((AuthenticationError, UnreachableError), match=r"no TLS with|during the TLS handshake"):
            await client.fleet.any_channel()


@on_both_loops
async def test_tls_with_a_broker_without(certificates):
    tls = TlsSettings((certificates / "ca.pem").read_text())
    async with secured(echo, tls=tls, connect_seconds=0.1) as (client, _brokers):
        with pytest.raises(UnreachableError, match=r"within 0\.1 s \(connect_seconds\)"):
            await client.fleet.any_channel()


@on_both_loops
async def test_client_certificates(certificates):
    trusted, own = (certificates / "ca.pem").read_text(), (certificates / "client.pem").read_text()
    async with scripted_brokers(echo, tls=server_context(certificates, asks_client=True)) as brokers:
        with_key = TlsSettings(trusted, own, (certificates / "client.key").read_text())
        async with connect(brokers.bootstrap, tls=with_key) as client:
            assert await ask(await client.fleet.any_channel()) == "x"
        async with connect(brokers.bootstrap, tls=TlsSettings(trusted)) as client:
            with pytest.raises((AuthenticationError, UnreachableError), match=r"CERTIFICATE_REQUIRED|closed it|reset"):
                await client.fleet.any_channel()


@on_both_loops
async def test_much_goes_through_tls_in_both_directions(certificates):
    async def script(asked):
        if asked.key != ApiKey.SASL_AUTHENTICATE:
            return None
        return messages.SaslAuthenticateResponse(auth_bytes=bytes(asked.message.auth_bytes))

    tls = TlsSettings((certificates / "ca.pem").read_text())
    got = []
    async with secured(script, server_context(certificates), tls=tls) as (client, _brokers):
        channel = await client.fleet.any_channel()
        request = messages.SaslAuthenticateRequest(auth_bytes=LONG)
        for _ in range(5):
            channel.start(ApiKey.SASL_AUTHENTICATE, 2, request, got.append)
        answer = await channel.call(ApiKey.SASL_AUTHENTICATE, lambda _version: request)
        assert {bytes(one.auth_bytes) for one in [*got, answer]} == {LONG}
        assert len(got) == 5


@on_both_loops
async def test_a_connection_with_tls_and_login_cancelled_at_each_await(certificates):
    tls = TlsSettings((certificates / "ca.pem").read_text())
    auth = SaslSettings(Mechanism.SCRAM_SHA_256, *ALICE)
    script, context = Logins(USERS).script(echo), server_context(certificates)
    async with secured(script, context, tls=tls, auth=auth) as (client, brokers):
        await client.fleet.any_channel()
        async for cancelled in at_each_await(lambda: client.fleet.own_channel(0)):
            if cancelled.result is not None:
                assert await ask(cancelled.result) == "x"
                cancelled.result.close()
        assert await ask(await client.fleet.any_channel()) == "x"
        while len([line for line in brokers.lines if not line.is_closed]) > 1:
            await anyio.sleep(0.001)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bootstrap": ""}, r"bootstrap='': expected host:port, several with commas"),
        ({"bootstrap": "here"}, r"bootstrap='here': no host:port: 'here'"),
        ({"bootstrap": "a:9092,b:0"}, r"no host:port: 'b:0'"),
        ({"connect_seconds": 0}, "connect_seconds=0: expected a number of seconds above 0"),
        ({"request_seconds": "30"}, "request_seconds='30': expected a number of seconds above 0"),
        ({"retry_seconds": float("nan")}, "retry_seconds=nan: expected"),
        ({"client_id": None}, "client_id=None: expected a text"),
        ({"client_id": "x" * 40_000}, "client_id: 40000 bytes; at most 32767"),
        ({"tls": "yes"}, "tls='yes': expected None, True or TlsSettings"),
        ({"tls": TlsSettings(version_min="TLSv1.1")}, "tls: version_min='TLSv1.1': expected one of TLSv1.2, TLSv1.3"),
        ({"tls": TlsSettings(version_min="TLSv1.3", version_max="TLSv1.2")}, "is above version_max"),
        ({"tls": TlsSettings(private_key="k")}, "a private_key without certificates"),
        ({"auth": ("alice", "secret")}, "auth: expected None, SaslSettings or OAuthSettings"),
        ({"auth": SaslSettings("GSSAPI", "a", "b")}, "auth: mechanism='GSSAPI': expected one of PLAIN, SCRAM-SHA-256"),
        ({"auth": SaslSettings(Mechanism.PLAIN, "", "b")}, "auth: username: expected a text that is not empty"),
        ({"auth": SaslSettings(Mechanism.PLAIN, "a", "b\0")}, "auth: password: PLAIN cannot send NUL"),
        ({"auth": OAuthSettings("a.token")}, "auth: token: expected an async function"),
    ],
)  # fmt: skip
@on_both_loops
async def test_settings_that_are_wrong_are_named(given, said):
    with pytest.raises(ValueError, match=said) as caught:
        async with connect(**{"bootstrap": "127.0.0.1:9092", **given}):
            pass
    assert "secret" not in str(caught.value)
