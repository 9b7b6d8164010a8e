"""Every administrative request has an answer when no controller has one, in all of its versions."""

from __future__ import annotations

import uuid

import pytest

from tpc_broker.broker.handlers.no_controller import what_is_said
from tpc_broker.broker.handlers.table import ROWS
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import CoreDownError, NotDeliveredError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey, advertised_versions, api
from tpc_broker.kafka.codec import codec

ID = uuid.UUID(int=7).bytes


def named(kind, **fields):
    return kind(name="t", **fields)


REQUESTS = {
    ApiKey.CREATE_TOPICS: lambda _v: messages.CreateTopicsRequest(
        topics=[named(messages.CreateTopicsRequest.CreatableTopic)] * 2
    ),
    ApiKey.DELETE_TOPICS: lambda version: messages.DeleteTopicsRequest(topic_names=["t"]) if version < 6 else
    messages.DeleteTopicsRequest(topics=[messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=ID)]),
    ApiKey.CREATE_PARTITIONS: lambda _v: messages.CreatePartitionsRequest(
        topics=[named(messages.CreatePartitionsRequest.CreatePartitionsTopic, count=2)]
    ),
    ApiKey.ALTER_CONFIGS: lambda _v: messages.AlterConfigsRequest(
        resources=[messages.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda _v: messages.IncrementalAlterConfigsRequest(
        resources=[messages.IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
}  # fmt: skip


ERRORS = pytest.mark.parametrize(
    ("error", "code"),
    [(NotDeliveredError("nobody"), ErrorCode.NOT_CONTROLLER), (CoreDownError("gone"), ErrorCode.REQUEST_TIMED_OUT)],
)


@ERRORS
@pytest.mark.parametrize("key", REQUESTS)
def test_each_item_is_answered_in_every_version(key, error, code):
    first, last = advertised_versions(key)
    for version in range(first, last + 1):
        message = REQUESTS[key](version)
        answer = ROWS[key].place.without(version, message, what_is_said(error))
        body = b"".join(codec(api(key).response_name, version).encode_parts(answer))
        decoded = codec(api(key).response_name, version).decode(memoryview(body))
        field = {ApiKey.CREATE_TOPICS: "topics", ApiKey.CREATE_PARTITIONS: "results"}.get(key, "responses")
        (item,) = getattr(decoded, field)
        assert item.error_code == code
        if hasattr(item, "resource_name"):
            assert (item.resource_type, item.resource_name) == (2, "t")


@ERRORS
@pytest.mark.parametrize("name", ["AlterPartitionReassignments", "ListPartitionReassignments"])
def test_reassignments_have_one_error_for_all(name, error, code):
    key = {"Alter": ApiKey.ALTER_PARTITION_REASSIGNMENTS, "ListP": ApiKey.LIST_PARTITION_REASSIGNMENTS}[name[:5]]
    first, last = advertised_versions(key)
    for version in range(first, last + 1):
        message = getattr(messages, f"{name}Request")()
        answer = ROWS[key].place.without(version, message, what_is_said(error))
        body = b"".join(codec(f"{name}Response", version).encode_parts(answer))
        decoded = codec(f"{name}Response", version).decode(memoryview(body))
        assert (decoded.error_code, decoded.error_message) == (code, str(error))


@ERRORS
def test_each_user_that_was_to_be_changed_is_answered_once(error, code):
    kind = messages.AlterUserScramCredentialsRequest
    asked = kind(
        deletions=[kind.ScramCredentialDeletion(name=name, mechanism=1) for name in "ab"],
        upsertions=[kind.ScramCredentialUpsertion(name=name, mechanism=1) for name in "bc"],
    )
    answer = ROWS[ApiKey.ALTER_USER_SCRAM_CREDENTIALS].place.without(0, asked, what_is_said(error))
    body = b"".join(codec("AlterUserScramCredentialsResponse", 0).encode_parts(answer))
    decoded = codec("AlterUserScramCredentialsResponse", 0).decode(memoryview(body))
    assert [(each.user, each.error_code) for each in decoded.results] == [("a", code), ("b", code), ("c", code)]
