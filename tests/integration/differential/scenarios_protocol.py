"""ApiVersions, versions and keys that do not exist, requests that are not requests."""

from __future__ import annotations

import struct

from tests.integration.differential.dialogue import Dialogue, scenario
from tests.support.definitions import decode_response, encode_request
from tpc_broker.broker.handlers.table import offered_at
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.kafka import api_keys

OURS = sorted(api_keys.api(key).name for key in offered_at(SPOKEN.highest))


def _header(api_key: int, version: int, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 77, -1) + (b"\0" if flexible else b"")


@scenario
def api_versions(d: Dialogue) -> None:
    for version in range(5):
        d.anywhere.ask("ApiVersions", version, {"ClientSoftwareName": "referee", "ClientSoftwareVersion": "1.0"})
    for name in ("", "-leading", "trailing-", "in side", "ä", "a" * 300, "dots.and-dashes"):
        d.anywhere.ask("ApiVersions", 3, {"ClientSoftwareName": name, "ClientSoftwareVersion": "1.0"})
        d.anywhere.ask("ApiVersions", 4, {"ClientSoftwareName": "referee", "ClientSoftwareVersion": name})


@scenario
def api_versions_of_the_future(d: Dialogue) -> None:
    """Answered in the format of version 0 with error 35 and the keys; also when the body is not understood."""
    for version in (6, 99, 32767, -1):
        payload = _header(18, version, flexible=True) + b"\x05future\x07"
        raw = d.line(d.peer.ports[0]).exchange_bytes(f"version {version}", payload)
        if isinstance(raw, bytes):
            _, body = decode_response("ApiVersions", 0, raw)
            d.note("ApiVersions", 0, version, body)


@scenario
def api_versions_twice_and_late(d: Dialogue) -> None:
    line = d.anywhere
    line.ask("Metadata", 1, {"Topics": []})
    line.ask("ApiVersions", 0)
    line.ask("ApiVersions", 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "b"})


@scenario
def api_keys_that_do_not_exist(d: Dialogue) -> None:
    for key in (-1, 4, 5, 6, 7, 95, 500, 999, 32767, -32768):
        d.anywhere.exchange_bytes(f"key {key}", _header(key, 0) + b"\0" * 20)


@scenario
def api_keys_of_the_controller(d: Dialogue) -> None:
    for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82):
        d.anywhere.exchange_bytes(f"key {key}", _header(key, 0, flexible=True) + b"\0" * 40)


@scenario
def versions_that_do_not_exist(d: Dialogue) -> None:
    for name in OURS:
        if name == "ApiVersions":
            continue
        for version in (-1, 99):
            payload = bytearray(encode_request(name, 2 if name == "ListOffsets" else 1, {}, 5))
            payload[2:4] = struct.pack(">h", version)
            d.anywhere.exchange_bytes(f"{name} {version}", bytes(payload))


@scenario
def old_versions_that_are_gone(d: Dialogue) -> None:
    for key, version in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 3), (2, 0), (8, 0), (8, 1), (9, 0), (19, 0), (19, 1),
                         (20, 0), (32, 0), (35, 0), (23, 0), (23, 1)):  # fmt: skip
        d.anywhere.exchange_bytes(f"key {key} version {version}", _header(key, version) + b"\0" * 30)


@scenario
def bytes_that_are_no_request(d: Dialogue) -> None:
    for label, payload in {
        "empty frame": b"",
        "one byte": b"\0",
        "half a header": _header(3, 1)[:6],
        "a header alone": _header(3, 1),
        "client id longer than the frame": struct.pack(">hhih", 3, 1, 1, 500) + b"abc",
        "negative client id length": struct.pack(">hhih", 3, 1, 1, -2),
        "array count beyond the frame": _header(3, 1) + struct.pack(">i", 1000),
        "array count 2^31-1": _header(3, 1) + struct.pack(">i", 2**31 - 1),
        "array count -2": _header(3, 1) + struct.pack(">i", -2),
        "string length beyond the frame": _header(3, 1) + struct.pack(">ih", 1, 999),
        "string length -2": _header(3, 1) + struct.pack(">ih", 1, -2),
        "null string": _header(3, 1) + struct.pack(">ih", 1, -1),
        "compact array of 2^32": _header(3, 9, flexible=True) + b"\xff\xff\xff\xff\x0f" + b"\0" * 8,
        "varint that never ends": _header(3, 9, flexible=True) + b"\xff" * 12,
        "tag count without tags": struct.pack(">hhih", 3, 9, 1, -1) + b"\x05",
        "text that is no UTF-8": _header(3, 1) + struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc",
    }.items():
        d.anywhere.exchange_bytes(label, payload)


@scenario
def unknown_tagged_fields(d: Dialogue) -> None:
    """Are skipped, in the header and in the body."""
    d.anywhere.ask("Metadata", 9, {"Topics": [], "_tags": {77: b"future", 1000: b""}})
    d.anywhere.ask("FindCoordinator", 3, {"Key": "", "KeyType": 9, "_tags": {5: b"x" * 300}})
    header = struct.pack(">hhih", 3, 9, 4, -1) + b"\x01\x09\x03abc"
    d.anywhere.exchange_bytes("tag in the header", header + b"\x01\x00\x00\x00\x00")


@scenario
def bytes_after_the_request(d: Dialogue) -> None:
    for api, version, values in (
        ("Metadata", 1, {"Topics": []}),
        ("Metadata", 9, {"Topics": []}),
        ("FindCoordinator", 0, {"Key": "g"}),
        ("ApiVersions", 0, {}),
    ):
        d.anywhere.exchange_bytes(f"{api} {version}", encode_request(api, version, values, 3) + b"more")


@scenario
def null_where_it_is_not_allowed(d: Dialogue) -> None:
    for api, version, values in (
        ("Metadata", 4, {"Topics": [{"Name": None}]}),
        ("Metadata", 9, {"Topics": [{"Name": None}]}),
        ("FindCoordinator", 1, {"Key": None}),
        ("FindCoordinator", 3, {"Key": None}),
        ("FindCoordinator", 4, {"CoordinatorKeys": None}),
        ("Fetch", 11, {"Topics": None}),
        ("Fetch", 12, {"Topics": None}),
        ("Fetch", 11, {"RackId": None}),
        ("Produce", 8, {"Acks": 1, "TopicData": None}),
        ("Produce", 9, {"Acks": 1, "TopicData": None}),
        ("Produce", 9, {"Acks": 1, "TopicData": [{"Name": None}]}),
        ("ListOffsets", 5, {"Topics": None}),
        ("ListOffsets", 6, {"Topics": None}),
        ("CreateTopics", 4, {"Topics": None}),
        ("CreateTopics", 5, {"Topics": None}),
        ("CreateTopics", 5, {"Topics": [{"Name": None}]}),
        ("DeleteTopics", 3, {"TopicNames": None}),
        ("DeleteTopics", 4, {"TopicNames": None}),
        ("JoinGroup", 5, {"GroupId": None}),
        ("JoinGroup", 6, {"GroupId": None}),
        ("Heartbeat", 4, {"MemberId": None}),
        ("SyncGroup", 4, {"Assignments": None}),
        ("OffsetCommit", 8, {"GroupId": "x", "Topics": None}),
        ("OffsetFetch", 5, {"GroupId": None}),
        ("OffsetFetch", 1, {"GroupId": "x", "Topics": None}),
        ("DescribeConfigs", 4, {"Resources": None}),
        ("AlterConfigs", 2, {"Resources": None}),
        ("IncrementalAlterConfigs", 1, {"Resources": None}),
        ("DeleteRecords", 2, {"Topics": None}),
        ("DescribeGroups", 5, {"Groups": None}),
        ("DeleteGroups", 2, {"GroupsNames": None}),
        ("CreatePartitions", 2, {"Topics": None}),
        ("OffsetDelete", 0, {"GroupId": None}),
    ):
        d.anywhere.ask(api, version, values)


@scenario
def describe_cluster(d: Dialogue) -> None:
    for version in range(3):
        d.anywhere.ask("DescribeCluster", version, {})
        d.anywhere.ask("DescribeCluster", version, {"IncludeClusterAuthorizedOperations": True})
    for endpoint in (1, 2, 3, 0, -1):
        d.anywhere.ask("DescribeCluster", 1, {"EndpointType": endpoint})
    d.anywhere.ask("DescribeCluster", 2, {"IncludeFencedBrokers": True})


@scenario
def describe_quorum(d: Dialogue) -> None:
    metadata = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
    for version in range(3):
        d.anywhere.ask("DescribeQuorum", version, {"Topics": [metadata]})
        d.anywhere.ask("DescribeQuorum", version, {"Topics": []})
        d.anywhere.ask("DescribeQuorum", version, {"Topics": [metadata, metadata]})
        for partitions in ([], [1], [-1], [0, 1], [0, 0]):
            numbers = [{"PartitionIndex": number} for number in partitions]
            d.anywhere.ask("DescribeQuorum", version, {"Topics": [{**metadata, "Partitions": numbers}]})
        for name in ("", "absent", "__consumer_offsets"):
            d.anywhere.ask("DescribeQuorum", version, {"Topics": [{**metadata, "TopicName": name}]})


@scenario
def unregister_a_broker_that_is_not_there(d: Dialogue) -> None:
    for broker in (99, 2**31 - 1, -1, -1024):
        d.anywhere.ask("UnregisterBroker", 0, {"BrokerId": broker})


@scenario
def update_features_that_are_not_there(d: Dialogue) -> None:
    for version in range(3):
        for feature in ("absent", ""):
            for level in (1, 0, -1):
                update = {"Feature": feature, "MaxVersionLevel": level}
                d.anywhere.ask("UpdateFeatures", version, {"FeatureUpdates": [update]})
        d.anywhere.ask("UpdateFeatures", version, {"FeatureUpdates": []})


@scenario
def update_the_feature_of_consumer_groups(d: Dialogue) -> None:
    """It is at its newest level."""
    for version in range(3):
        for level in (1, 2, -1):
            update = {"Feature": "group.version", "MaxVersionLevel": level}
            d.anywhere.ask("UpdateFeatures", version, {"FeatureUpdates": [update], "timeoutMs": 60_000})


@scenario
def elect_leaders_where_nothing_is_to_be_elected(d: Dialogue) -> None:
    one = d.topic("one", 2)
    for version in range(3):
        for kind in (0, 1, 2, -1):
            asked = [{"Topic": one, "Partitions": [0, 1, 2, -1]}, {"Topic": f"{d.prefix}-absent", "Partitions": [0]}]
            d.anywhere.ask("ElectLeaders", version, {"ElectionType": kind, "TopicPartitions": asked})
            d.anywhere.ask("ElectLeaders", version, {"ElectionType": kind, "TopicPartitions": []})


@scenario
def find_coordinator(d: Dialogue) -> None:
    d.coordinator(f"{d.prefix}-group")
    for version in range(4):
        for key in (f"{d.prefix}-group", "", "ä-ß"):
            d.anywhere.ask("FindCoordinator", version, {"Key": key, "KeyType": 0})
        for kind in (3, -1, 100):
            d.anywhere.ask("FindCoordinator", version, {"Key": "x", "KeyType": kind})
    for version in range(4, 7):
        d.anywhere.ask("FindCoordinator", version, {"KeyType": 0, "CoordinatorKeys": ["one", "two", "three", ""]})
        d.anywhere.ask("FindCoordinator", version, {"KeyType": 0, "CoordinatorKeys": []})
        d.anywhere.ask("FindCoordinator", version, {"KeyType": 0, "CoordinatorKeys": ["same", "same"]})
        d.anywhere.ask("FindCoordinator", version, {"KeyType": 9, "CoordinatorKeys": ["x"]})
        d.anywhere.ask("FindCoordinator", version, {"KeyType": -1, "CoordinatorKeys": []})


@scenario
def init_producer_id(d: Dialogue) -> None:
    for version in range(6):
        for timeout_ms in (60_000, 0, -1, 2**31 - 1):
            d.anywhere.ask("InitProducerId", version, {"TransactionalId": None, "TransactionTimeoutMs": timeout_ms})
        d.anywhere.ask("InitProducerId", version, {"TransactionalId": "", "TransactionTimeoutMs": 1000})
    for version in range(3, 6):
        for pair in ((5, -1), (-1, 5), (5, 5), (2**60, 3), (-2, -2)):
            values = {"TransactionTimeoutMs": 1000, "ProducerId": pair[0], "ProducerEpoch": pair[1]}
            d.anywhere.ask("InitProducerId", version, {"TransactionalId": None, **values})
