"""Clients that ask for what is not there leave one line an hour in the log, however many they are."""

from __future__ import annotations

import pytest

from tests.support.memory_node import running_node
from tpc_broker import limits
from tpc_broker.broker.dispatch import shortened
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_TRANSACTIONS, Levels
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.model import CoreId
from tpc_broker.testing.connections import MemoryRequest


def test_a_client_id_is_one_short_line_whatever_it_is():
    assert shortened("x\n" * 10_000).startswith("'x\\nx\\nx")
    assert len(shortened("\n" * 10_000)) < 200
    assert shortened("x\n" * 10_000) == shortened("x\n" * 5_000), "only what is shown is told apart"
    assert (shortened("a"), shortened(None)) == ("'a'", "(none)")


REFUSED = "127.0.0.1:1: request refused, connection closed"
WHO = "(client id 'a-client'; once an hour)"


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "tpc_broker.broker.dispatch"]


async def test_what_is_not_offered_is_said_once_an_hour_with_who_asked(autojump_clock, caplog):
    async with running_node(cores=1) as node:
        for connection in range(1, 4):  # each is closed
            asked = messages.StreamsGroupDescribeRequest()
            assert await node.ask(0, asked, 0, connection=connection) is None
        (line,) = lines_of(caplog)
        assert line == f"{REFUSED}: StreamsGroupDescribe is not offered {WHO}"
        (kept,) = node.lives[CoreId(0)].core.log_limiter._lines.values()
        assert (kept.swallowed, kept.period_s) == (2, limits.VAIN_LINE_S)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (((int(ApiKey.HEARTBEAT), 9), (int(ApiKey.HEARTBEAT), 10)), "Heartbeat version 9 is not offered; 0 to 4 are"),
        (((500, 0), (501, 0)), "there is no API with key 500"),
    ],
)
async def test_versions_and_keys_that_there_are_not(autojump_clock, caplog, keys, said):
    async with running_node(cores=1) as node:
        for connection, (key, version) in enumerate(keys, 1):
            request = MemoryRequest(connection, key, version, 1, memoryview(b""), 0)
            node.lives[CoreId(0)].connections.send(request)
            await request.done.wait()
            assert request.answer is None
        (line,) = lines_of(caplog)
        assert line == f"{REFUSED}: {said} {WHO}"


async def test_that_the_connection_is_closed_is_not_said_again(autojump_clock, caplog):
    async with running_node(cores=1) as node:
        connections = node.lives[CoreId(0)].connections
        connections.close = lambda connection, _reason: None  # as over TCP: it is closed after this turn
        for connection in (1, 2):
            request = node.send(0, messages.StreamsGroupDescribeRequest(), 0, connection=connection)
            await request.done.wait()
            connections.dispatcher.on_closed(connection, "its request could not be carried out", "")
        assert len(lines_of(caplog)) == 1
        connections.dispatcher.on_opened(3, "127.0.0.1:3", 0)
        connections.dispatcher.on_closed(3, "its request could not be carried out", "")
        assert lines_of(caplog)[1:] == ["127.0.0.1:3: connection closed: its request could not be carried out"]


async def test_transactions_are_refused_in_the_clearest_words_and_logged(autojump_clock, caplog, monkeypatch):
    monkeypatch.setattr("tpc_broker.metadata.image.SPOKEN", Levels(2, FIRST_WITH_TRANSACTIONS - 1))
    async with running_node(cores=1) as node:
        kind = messages.FindCoordinatorRequest
        text = "This cluster has no transactions below feature level 5: tpc cluster level --raise 5"
        for version in range(1, 7):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if version < 3 else ErrorCode.UNSUPPORTED_VERSION
            asked = kind(key="t", key_type=1) if version < 4 else kind(key_type=1, coordinator_keys=["t"])
            found = await node.ask(0, asked, version)
            (one,) = found.coordinators if version >= 4 else [found]
            assert (one.error_code, one.error_message) == (code, text)
        asked = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        assert (await node.ask(0, asked, 5)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        said = "a producer with a transactional.id is refused: the cluster is at a feature level that has none"
        assert lines_of(caplog) == [f"127.0.0.1:1: {said} {WHO}"]
