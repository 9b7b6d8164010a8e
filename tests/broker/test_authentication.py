"""Logins by the real handlers, on cores in memory: what C is told, and when a client hears that it may not."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.broker.test_scram_users import altered, deletion, upsertion
from tests.support.memory_clients import create_topic
from tests.support.memory_node import running_node
from tpc_broker.auth.exchange import Done, Failed, Mechanism, Work
from tpc_broker.auth.principals import NOBODY, USER, Principal, Subject
from tpc_broker.broker import authentication
from tpc_broker.broker.authentication import DERIVATIONS_MAX, RAW_TOKEN
from tpc_broker.client.sasl import sasl_machine
from tpc_broker.client.security import Mechanism as ClientsMechanism
from tpc_broker.client.security import SaslSettings
from tpc_broker.kafka import messages
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import CoreId
from tpc_broker.testing.connections import MemoryRequest

LOGIN = 1
"""The listener's number."""
ALL = ("sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",)
PASSWORD = "pencil"  # as of `upsertion`
ANNA = Subject(Principal(USER, "anna"), "127.0.0.1")
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58


class Client:
    """One connection to the listener where clients log in."""

    def __init__(self, node, connection=7, core=0):
        self.node, self.connection, self.core = node, connection, core

    async def ask(self, message, version=None):
        return await self.node.ask(self.core, message, version, connection=self.connection, listener=LOGIN)

    async def shake_hands(self, mechanism="SCRAM-SHA-256", version=1):
        return await self.ask(messages.SaslHandshakeRequest(mechanism=mechanism), version)

    async def say(self, message, version=2):
        return await self.ask(messages.SaslAuthenticateRequest(auth_bytes=message), version)

    async def log_in(self, password=PASSWORD, user="anna", mechanism="SCRAM-SHA-256"):
        answer = await self.shake_hands(mechanism)
        assert answer.error_code == 0
        machine = sasl_machine(SaslSettings(ClientsMechanism(mechanism), user, password), "a-nonce")
        message = machine.first()
        while message is not None:
            answer = await self.say(message)
            if answer is None or answer.error_code:
                return answer
            message = machine.next(bytes(answer.auth_bytes))
        return answer

    @property
    def connections(self):
        return self.node.lives[CoreId(self.core)].connections

    @property
    def is_closed(self):
        return self.connection in self.connections.closed


async def with_anna(node):
    assert await altered(node, upsertion("anna")) == {"anna": (0, None)}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_c_is_told_who_was_let_in_before_the_client_is(autojump_clock, mechanism):
    async with running_node(1, ALL) as node:
        await with_anna(node)
        client = Client(node)
        await client.shake_hands(mechanism)
        assert node[0].dispatcher.subject_of(client.connection) == NOBODY
        assert client.connections.let == {}
        client = Client(node, 8)
        assert (await client.log_in(mechanism=mechanism)).error_code == 0
        assert client.connections.let == {8: (node[0].access.number_of(ANNA), 0)}
        assert node[0].dispatcher.subject_of(8) == ANNA
        assert (await client.ask(messages.MetadataRequest())).brokers


async def test_a_session_s_end_is_told_to_c_and_moved_by_a_renewal(autojump_clock):
    async with running_node(1, ("connections.max.reauth.ms=60000",)) as node:
        await with_anna(node)
        client = Client(node)
        assert (await client.log_in()).session_lifetime_ms == 60_000
        assert client.connections.let[7][1] == node.clock.monotonic_ns() + 60_000_000_000
        await trio.sleep(30)
        answer = await client.log_in()
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 60_000)
        assert client.connections.let[7][1] == node.clock.monotonic_ns() + 60_000_000_000
        counted = node[0].authentication.statistics()
        assert (counted.succeeded, counted.renewed, counted.failed) == (2, 1, 0)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize("user", ["anna", "nobody"])
async def test_a_failure_is_told_when_the_delay_is_over_and_ends_all(autojump_clock, caplog, mechanism, user):
    async with running_node(1, (*ALL, "connection.failed.authentication.delay.ms=700")) as node:
        await with_anna(node)
        client = Client(node)
        began = trio.current_time()
        answer = await client.log_in("wrong", user, mechanism)
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert trio.current_time() - began == pytest.approx(0.7)
        assert client.is_closed
        assert client.connections.let == {}
        assert node[0].authentication.statistics().failed == 1
    assert "wrong" not in caplog.text.replace("wrong password", "")


async def test_a_renewal_by_a_mechanism_that_is_not_enabled_is_the_end_without_an_answer(autojump_clock):
    """As Kafka 4.3.1; of a first login it is told which there are."""
    async with running_node(1, ("sasl.enabled.mechanisms=SCRAM-SHA-256",)) as node:
        await with_anna(node)
        answer = await Client(node, 8).shake_hands("PLAIN")
        assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256"])
        client = Client(node)
        assert (await client.log_in()).error_code == 0
        assert await client.shake_hands("PLAIN") is None
        assert client.is_closed
        counted = node[0].authentication.statistics()
        assert (counted.renewed, counted.failed) == (0, 2)


async def test_a_derivation_that_takes_long_is_within_the_delay(autojump_clock):
    """Time says nothing: what is computed for one is not added to it."""
    async with running_node(1, (*ALL, "connection.failed.authentication.delay.ms=700")) as node:
        await with_anna(node)

        async def slow(function, *arguments):
            await trio.sleep(0.5)
            return function(*arguments)

        node[0].in_thread = slow
        began = trio.current_time()
        assert (await Client(node).log_in("wrong", mechanism="PLAIN")).error_code == SASL_AUTHENTICATION_FAILED
        assert trio.current_time() - began == pytest.approx(0.7)


async def test_who_goes_while_it_is_decided_is_forgotten(autojump_clock):
    async with running_node(1, (*ALL, "connection.failed.authentication.delay.ms=700")) as node:
        await with_anna(node)
        one, other = Client(node, 7), Client(node, 8)
        for client in (one, other):
            await client.shake_hands("PLAIN")
        asked = [
            node.send(0, messages.SaslAuthenticateRequest(auth_bytes=message), connection=number, listener=LOGIN)
            for number, message in ((7, b"\0anna\0wrong"), (8, b"\0anna\0pencil"))
        ]
        for number in (7, 8):
            one.connections.close(number, "gone")
        for request in asked:
            await request.done.wait()
        assert one.connections.let == {}
        assert node[0].dispatcher.is_idle()
        counted = node[0].authentication.statistics()
        assert (counted.succeeded, counted.failed) == (0, 0)


async def test_derivations_are_few_at_a_time_and_wait_in_a_short_queue(autojump_clock, monkeypatch):
    monkeypatch.setattr(authentication, "DERIVATIONS_WAITING_MAX", 3)
    async with running_node(1, ALL) as node:
        await with_anna(node)
        running, most = 0, 0

        async def slow(function, *arguments):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep(1)
            running -= 1
            return function(*arguments)

        node[0].in_thread = slow
        answers = {}

        async def log_in(number):
            await trio.sleep(number / 1000)
            answers[number] = await Client(node, number).log_in(mechanism="PLAIN")

        async with trio.open_nursery() as nursery:
            for number in range(10, 20):
                nursery.start_soon(log_in, number)
        assert most == DERIVATIONS_MAX
        assert [number for number, answer in answers.items() if answer is None] == list(range(15, 20))
        assert all(Client(node, number).is_closed for number in range(15, 20))


async def test_nothing_is_served_before_the_metadata_are_there(autojump_clock):
    """Attempt 70."""
    async with running_node(1) as node:
        await with_anna(node)
        loaded, node[0].view.image = node[0].view.image, ClusterImage()
        for ask in (
            lambda client: client.ask(messages.ApiVersionsRequest(), 0),
            lambda client: client.shake_hands(),
            lambda client: client.ask(messages.MetadataRequest()),
        ):
            client = Client(node, 100 + len(Client(node).connections.closed))
            assert await ask(client) is None
            assert client.is_closed
        node[0].view.image = loaded
        assert (await Client(node, 9).log_in()).error_code == 0


async def test_a_request_that_may_not_come_yet_is_not_even_decoded(autojump_clock, caplog):
    caplog.set_level(logging.WARNING)
    async with running_node(1) as node:
        client = Client(node)
        await client.ask(messages.ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        assert await client.ask(messages.MetadataRequest()) is None
        assert client.is_closed
        client = Client(node, 8)
        request = MemoryRequest(8, 3, 9, 1, memoryview(b"\xff" * 9), node.clock.monotonic_ns(), LOGIN)
        client.connections.send(request)
        await request.done.wait()
        assert request.answer is None
    assert "does not come here in a login" in caplog.text


@pytest.mark.parametrize("stands_in_line", [False, True])
async def test_produces_are_not_taken_before_a_login(autojump_clock, stands_in_line):
    async with running_node(1) as node:
        taken = []
        if stands_in_line:
            node[0].dispatcher._has_share = lambda: False
        node[0].produce_now = lambda request: taken.append(request) or False
        request = MemoryRequest(7, 0, 9, 1, memoryview(b""), node.clock.monotonic_ns(), LOGIN)
        Client(node).connections.send(request)
        await request.done.wait()
        assert not taken
        assert Client(node).is_closed


async def test_a_produce_behind_a_login_that_fails_is_not_taken(autojump_clock):
    """Attempt 8 among them: it waits in the queue of its connection meanwhile."""
    async with running_node(1, ALL) as node:
        await with_anna(node)
        taken = []
        node[0].produce_now = lambda request: taken.append(request) or False
        client = Client(node)
        await client.shake_hands("PLAIN")
        node.send(0, messages.SaslAuthenticateRequest(auth_bytes=b"\0anna\0wrong"), connection=7, listener=LOGIN)
        produce = MemoryRequest(7, 0, 9, 1, memoryview(b""), node.clock.monotonic_ns(), LOGIN)
        client.connections.send(produce)
        await trio.sleep(5)
        assert client.is_closed
        client = Client(node, 8)
        node.send(0, messages.SaslHandshakeRequest(mechanism="PLAIN"), connection=8, listener=LOGIN)
        client.connections.send(MemoryRequest(8, 0, 9, 1, memoryview(b""), node.clock.monotonic_ns(), LOGIN))
        await trio.sleep(5)
        assert client.is_closed
        assert not taken


async def test_what_comes_out_of_its_order_is_answered_late_and_is_the_end(autojump_clock):
    async with running_node(1, (*ALL, "connection.failed.authentication.delay.ms=700")) as node:
        client = Client(node)
        await client.shake_hands("PLAIN")
        began = trio.current_time()
        assert (await client.shake_hands("PLAIN")).error_code == ILLEGAL_SASL_STATE
        assert trio.current_time() - began == pytest.approx(0.7)
        assert client.is_closed
        client = Client(node, 8)
        await client.shake_hands("PLAIN")
        assert (await client.ask(messages.ApiVersionsRequest(), 0)).error_code == ILLEGAL_SASL_STATE
        assert client.is_closed


async def test_a_login_behind_a_login_changes_nothing(autojump_clock):
    async with running_node(1, ALL) as node:
        await with_anna(node)
        client = Client(node)
        await client.log_in()
        assert (await client.say(b"\0anna\0pencil")).error_code == ILLEGAL_SASL_STATE
        assert (await client.ask(messages.MetadataRequest())).brokers


async def test_a_message_above_the_bound_is_refused(autojump_clock):
    async with running_node(1, (*ALL, "sasl.server.max.receive.size=11")) as node:
        await with_anna(node)
        client = Client(node)
        await client.shake_hands("PLAIN")
        assert (await client.say(b"\0anna\0pencil")).error_code == SASL_AUTHENTICATION_FAILED


async def test_raw_tokens_are_answered_as_they_are(autojump_clock):
    async with running_node(1, ALL) as node:
        await with_anna(node)

        async def token(client, message):
            request = MemoryRequest(
                client.connection, RAW_TOKEN, 0, 0, memoryview(message), node.clock.monotonic_ns(), LOGIN
            )
            client.connections.send(request)
            await request.done.wait()
            return request.answer

        for message, answer in ((b"\0anna\0pencil", b""), (b"\0anna\0wrong", None)):
            client = Client(node, len(message))
            await client.shake_hands("PLAIN", 0)
            assert client.connection in client.connections.tokens
            assert await token(client, message) == answer
            assert client.is_closed == (answer is None)
        client = Client(node, 9)
        await client.shake_hands("PLAIN", 1)
        assert 9 not in client.connections.tokens
        assert await token(client, b"\0anna\0pencil") is None


async def test_a_user_is_gone_everywhere_at_once(autojump_clock):
    async with running_node(2, ALL) as node:
        await with_anna(node)
        for core in (0, 1):
            for mechanism in ("SCRAM-SHA-256", "PLAIN"):
                assert (await Client(node, f"{core} {mechanism}", core).log_in(mechanism=mechanism)).error_code == 0
        assert await altered(node, without=[deletion("anna")]) == {"anna": (0, None)}
        for core in (0, 1):
            for mechanism in ("SCRAM-SHA-256", "PLAIN"):
                answer = await Client(node, f"{core} {mechanism} again", core).log_in(mechanism=mechanism)
                assert answer.error_code == SASL_AUTHENTICATION_FAILED


async def test_an_unknown_user_has_the_same_salt_on_each_core_and_after_a_restart(autojump_clock):
    async with running_node(2) as node:
        await with_anna(node)

        async def salt(core, user):
            client = Client(node, f"{core} {user} {node.chance.random()}", core)
            await client.shake_hands()
            first = bytes((await client.say(f"n,,n={user},r=x".encode())).auth_bytes)
            return first.partition(b",s=")[2]

        found = {await salt(core, "nobody") for core in (0, 1)}
        await node.restart(1)
        found.add(await salt(1, "nobody"))
        assert len(found) == 1
        assert found != {await salt(0, "somebody")}
        assert len(found.pop()) == len(await salt(0, "anna"))


async def test_users_are_counted_again_only_where_one_has_changed(autojump_clock, monkeypatch):
    counted = []
    count = authentication.usual_shape
    monkeypatch.setattr(authentication, "usual_shape", lambda users: counted.append(1) or count(users))
    async with running_node(2, ALL) as node:
        await with_anna(node)
        for core in (0, 1):
            assert (await Client(node, f"first {core}", core).log_in()).error_code == 0
        assert len(counted) == 2
        await create_topic(node, 0, "t", 1)
        for core in (0, 1):
            assert (await Client(node, f"again {core}", core).log_in()).error_code == 0
        assert len(counted) == 2, "a topic is no user"
        assert await altered(node, upsertion("bea")) == {"bea": (0, None)}
        for core in (0, 1):
            assert (await Client(node, f"at last {core}", core).log_in()).error_code == 0
        assert len(counted) == 4


async def test_where_nobody_logs_in_the_requests_are_illegal_and_change_nothing(autojump_clock):
    async with running_node(1) as node:
        shaken = await node.ask(0, messages.SaslHandshakeRequest(mechanism="PLAIN"))
        assert (shaken.error_code, list(shaken.mechanisms)) == (ILLEGAL_SASL_STATE, [])
        said = await node.ask(0, messages.SaslAuthenticateRequest(auth_bytes=b"\0anna\0pencil"))
        assert said.error_code == ILLEGAL_SASL_STATE
        assert (await node.ask(0, messages.MetadataRequest())).brokers


async def test_a_mechanism_may_wait_and_say_when_its_proof_ends(autojump_clock):
    """As one that asks for a key (OAUTHBEARER)."""

    class Waits:
        def __init__(self, clock, is_right):
            self.clock, self.is_right = clock, is_right

        def step(self, _message):
            async def fetch():
                await trio.sleep(0.25)
                return self.is_right

            return Work(fetch, self.judge, is_async=True)

        def judge(self, is_right):
            if not is_right:
                return Failed("no such key", "told to the client")
            return Done(Principal(USER, "anna"), expires_ms=self.clock.wall_ms() + 5000)

    async with running_node(1, ALL) as node:
        node[0].authentication.makers[Mechanism.PLAIN] = lambda: Waits(node.clock, is_right=True)
        client = Client(node)
        await client.shake_hands("PLAIN")
        answer = await client.say(b"a token")
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 5000)
        node[0].authentication.makers[Mechanism.PLAIN] = lambda: Waits(node.clock, is_right=False)
        client = Client(node, 8)
        await client.shake_hands("PLAIN")
        answer = await client.say(b"a token")
        assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, "told to the client")
