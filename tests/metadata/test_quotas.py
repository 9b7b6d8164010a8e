"""Quotas of clients: what is taken and refused, from which level on, and whose counts for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.quota_control import QuotaAlteration, QuotaController, matching
from tpc_broker.metadata.quotas import Found, QuotaIndex
from tpc_broker.metadata.records import (
    ClientQuotaChanged,
    FeatureLevelChanged,
    NodeAddress,
    NodeRegistered,
    decode_record,
    encode_record,
)
from tpc_broker.model import MetadataVersion, NodeId

RATE = "producer_byte_rate"


def altered(image, *alterations, validate_only=False):
    """Replayed through bytes."""
    asked = [QuotaAlteration(entity, ops) for entity, ops in alterations]
    records, results = QuotaController(image).alter(asked, validate_only=validate_only)
    replayed = [decode_record(encode_record(record)) for record in records]
    return image.apply(replayed, MetadataVersion(image.version + len(records))), [
        (result.error_code, result.error_message) for result in results
    ]


def image_of(*quotas):
    image, results = altered(ClusterImage(), *((entity, ((RATE, value),)) for entity, value in quotas))
    assert all(code == ErrorCode.NONE for code, _why in results)
    return image


def test_a_quota_is_kept_until_it_is_removed():
    image, results = altered(ClusterImage(), ({"user": "a"}, ((RATE, 9.0), ("request_percentage", 12.5))))
    assert results == [(0, None)]
    assert image.client_quotas == {(("user", "a"),): {RATE: 9.0, "request_percentage": 12.5}}
    same, _results = altered(image, ({"user": "a"}, ((RATE, 9.0), ("consumer_byte_rate", None))))
    assert same.version == image.version, "nothing changes, so nothing is written"
    looked, _results = altered(image, ({"user": "a"}, ((RATE, None),)), validate_only=True)
    assert looked.client_quotas == image.client_quotas
    gone, _results = altered(image, ({"user": "a"}, ((RATE, None), ("request_percentage", None))))
    assert gone.client_quotas == {}


def test_an_entity_changes_as_a_whole_and_others_with_it():
    image, results = altered(
        ClusterImage(), ({"user": "a"}, ((RATE, 9.0), ("nonsense", 1.0))), ({"user": None}, ((RATE, 7.0),)),
        ({"user": None}, ((RATE, 8.0),)),
    )  # fmt: skip
    assert results == [(42, "Invalid configuration key nonsense"), (42, "Ignoring duplicate entity")]
    assert image.client_quotas == {(("user", None),): {RATE: 7.0}}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), -float("inf")])
def test_a_quota_is_a_number_above_zero(value):
    image, ((code, _why),) = altered(ClusterImage(), ({"user": "a"}, (("request_percentage", value),)))
    assert (code, image.client_quotas) == (42, {})


def test_below_the_level_of_security_none_is_written():
    here = NodeRegistered(NodeId(1), 7, 1, "", "1", NodeAddress("h", 1), ())
    image = ClusterImage().apply([FeatureLevelChanged(5, 1), here], MetadataVersion(2))
    after, results = altered(image, ({"user": "a"}, ((RATE, 9.0),)), ({"user": "b"}, ((RATE, None),)))
    assert (after.client_quotas, [code for code, _why in results]) == ({}, [ErrorCode.UNSUPPORTED_VERSION, 0])
    assert "the level is 5" in results[0][1]
    raised = image.apply([FeatureLevelChanged(6, 2)], MetadataVersion(3))
    assert altered(raised, ({"user": "a"}, ((RATE, 9.0),)))[1] == [(0, None)]


def test_entities_and_their_names_are_bounded(monkeypatch):
    monkeypatch.setattr(limits, "QUOTA_ENTITIES_MAX", 2)
    image, results = altered(
        ClusterImage(), *(({"client-id": name}, ((RATE, 9.0),)) for name in ("a", "b", "c", "x" * 513))
    )
    assert [code for code, _why in results] == [0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_REQUEST]
    assert altered(image, ({"client-id": "a"}, ((RATE, 8.0),)))[1] == [(0, None)]


def test_entities_are_found_by_type_and_name():
    pair, user, nameless = {"user": "a", "client-id": "c"}, {"user": "a"}, {"user": None}
    image = image_of((pair, 1.0), (user, 2.0), (nameless, 3.0))

    def found(wanted, named=(), *, strict=False):
        return [dict(entity) for entity, _quotas in matching(image, wanted, frozenset(named), strict=strict)]

    assert found({}) == [pair, user, nameless]
    assert found({}, strict=True) == []
    assert found({"user": "a"}) == [pair, user]
    assert found({"user": "a"}, strict=True) == [user]
    assert found({"user": None}) == [nameless]
    assert found({}, ["user"], strict=True) == [user, nameless]
    assert found({"user": "a"}, ["client-id"], strict=True) == [pair]
    assert found({"client-id": None}) == []


ORDER = [
    ({"user": "u", "client-id": "c"}, ("u", "c")), ({"user": "u", "client-id": None}, ("u", "c")),
    ({"user": "u"}, ("u", "")),
    ({"user": None, "client-id": "c"}, ("u", "c")), ({"user": None, "client-id": None}, ("u", "c")),
    ({"user": None}, ("u", "")), ({"client-id": "c"}, ("", "c")), ({"client-id": None}, ("", "c")),
]  # fmt: skip
"""Kafka's, with those that share the quota."""


@given(st.sets(st.integers(0, 7)))
def test_the_first_in_kafkas_order_counts(there):
    index = QuotaIndex(image_of(*((ORDER[place][0], place + 1.0) for place in sorted(there))).client_quotas)
    first = min(there, default=None)
    assert index.of_client(RATE, "u", "c") == (None if first is None else Found(first + 1.0, *ORDER[first][1]))
    assert index.of_client("consumer_byte_rate", "u", "c") is None, "each kind on its own"
    of_user = min(there & {2, 5}, default=None)
    assert index.of_client(RATE, "u", "") == (None if of_user is None else Found(of_user + 1.0, "u", ""))


def test_another_client_has_the_quota_of_any():
    index = QuotaIndex(image_of(({"user": "u"}, 1.0), ({"user": None}, 2.0), ({"client-id": "c"}, 3.0)).client_quotas)
    assert index.of_client(RATE, "v", "d") == Found(2.0, "v", "")
    assert index.of_client(RATE, "v", "c") == Found(2.0, "v", ""), "of any user is before a client's"


def test_the_quota_of_an_address_is_before_that_of_any():
    image, _results = altered(
        ClusterImage(), ({"ip": "10.0.0.1"}, (("connection_creation_rate", 5.0),)),
        ({"ip": None}, (("connection_creation_rate", 2.0),)),
    )  # fmt: skip
    index = QuotaIndex(image.client_quotas)
    assert (index.of_address("10.0.0.1"), index.of_address("10.0.0.2")) == (5.0, 2.0)
    assert QuotaIndex({}).of_address("10.0.0.1") is None
    assert index.of_client(RATE, "u", "c") is None
    assert ClientQuotaChanged({"ip": None}, {"connection_creation_rate": 2.0}) in image.quota_records()
