"""Requests to a listener that all cores share, where one of the cores cannot be asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpc_broker.auth.principals import ANONYMOUS, Subject
from tpc_broker.broker.handlers.table import ROWS
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import CoreDownError, MailboxFullError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey


class LonelyCore:
    """Core 0 of two; the other one is down. Every group is coordinated there."""

    core_id = 0

    def __init__(self, error: Exception) -> None:
        self.forwarded = 0
        topic = SimpleNamespace(partitions_count=1, core_on=lambda _node, _index: 1)
        self.view = SimpleNamespace(
            node=0, is_shared=lambda listener: listener == 1, cores=2, topic=lambda _name: topic,
            listener_name=lambda listener: f"L{listener}",
        )  # fmt: skip
        self.dispatcher = SimpleNamespace(peer_of=lambda _connection: "127.0.0.1:1")
        self.access = SimpleNamespace(subject_of=lambda _request: Subject(ANONYMOUS, "127.0.0.1"))
        self.mailboxes = self
        self.error = error

    async def call(self, *_call, **_how):
        raise self.error

    def note_forwarded(self) -> None:
        self.forwarded += 1


def request(key: ApiKey, version: int, listener: int = 1):
    return SimpleNamespace(api_key=int(key), api_version=version, client_id="c", connection=1, listener=listener)


ERRORS = pytest.mark.parametrize("error", [CoreDownError("down"), MailboxFullError("full")])


@ERRORS
async def test_groups_are_not_listed_twice_and_the_list_is_not_taken_for_whole(error):
    own = messages.ListGroupsResponse.ListedGroup(group_id="own", protocol_type="consumer")
    handle = ROWS[ApiKey.LIST_GROUPS].place.serving(lambda *_asked: messages.ListGroupsResponse(groups=[own]))
    answer = await handle(LonelyCore(error), request(ApiKey.LIST_GROUPS, 4), messages.ListGroupsRequest())
    assert [group.group_id for group in answer.groups] == ["own"]
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@ERRORS
async def test_a_directory_that_is_not_whole_says_so(error):
    kind = messages.DescribeLogDirsResponse
    topic = kind.DescribeLogDirsTopic(name="t", partitions=[kind.DescribeLogDirsPartition(partition_index=3)])
    own = kind(results=[kind.DescribeLogDirsResult(log_dir="/data", topics=[topic])])
    handle = ROWS[ApiKey.DESCRIBE_LOG_DIRS].place.serving(lambda *_asked: own)
    asked = messages.DescribeLogDirsRequest(topics=None)
    (result,) = (await handle(LonelyCore(error), request(ApiKey.DESCRIBE_LOG_DIRS, 4), asked)).results
    assert (result.log_dir, result.error_code) == ("/data", ErrorCode.KAFKA_STORAGE_ERROR)
    assert [one.partition_index for one in result.topics[0].partitions] == [3]


@ERRORS
async def test_a_group_of_a_core_that_is_down_is_refused_as_any_core_refuses_it(error):
    refused = messages.HeartbeatResponse(error_code=int(ErrorCode.NOT_COORDINATOR))
    handle = ROWS[ApiKey.HEARTBEAT].place.serving(lambda *_asked: refused)
    core = LonelyCore(error)
    asked = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert await handle(core, request(ApiKey.HEARTBEAT, 3), asked) is refused
    assert core.forwarded == 1


def test_on_other_listeners_the_handler_alone_answers():
    handle = ROWS[ApiKey.HEARTBEAT].place.serving(lambda *_asked: "its own")
    assert handle(LonelyCore(CoreDownError("")), request(ApiKey.HEARTBEAT, 3, listener=0), None) == "its own"
