"""Changes of rules of access as the controller decides them, their filters, and the settings of an authorizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker import limits
from tpc_broker.auth.acl_filters import AclFilter, Wanted
from tpc_broker.auth.acls import ACLS_MAX, NO_RULES, AclBinding, Pattern, Permission
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_SECURITY
from tpc_broker.metadata import acl_control
from tpc_broker.metadata.acl_control import CHANGES_MAX, create_acls, delete_acls
from tpc_broker.metadata.acl_records import ACL_TEXT_BYTES_MAX, ACLS_PER_RECORD_MAX, AclsChanged
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import NodeAddress, NodeRegistered, decode_record, encode_record
from tpc_broker.metadata.settings import load_settings, validate_dynamic
from tpc_broker.model import MetadataVersion, NodeId

ALICE = Principal("User", "alice")
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def rule(name="t", pattern=Pattern.LITERAL, resource=Resource.TOPIC, operation=Operation.READ, **more):
    values = {"principal": ALICE, "host": "*", "permission": Permission.ALLOW, **more}
    return AclBinding(resource, pattern, name, operation=operation, **values)


def applied(image, records):
    return image.apply([decode_record(encode_record(record)) for record in records], MetadataVersion(9))


def image_of(*rules):
    return replace(ClusterImage(), acls=NO_RULES.changed(rules))


def test_a_rule_is_stored_once():
    records, results = create_acls(ClusterImage(), [rule(), rule(), rule("u")])
    assert (records, results) == ([AclsChanged((rule(), rule("u")), ())], [None] * 3)
    image = applied(ClusterImage(), records)
    assert create_acls(image, [rule()]) == ([], [None])
    assert list(image.acls) == [rule(), rule("u")]


def test_what_filters_find_is_removed_and_told_to_each():
    image = image_of(rule(), rule("u"), rule("u", resource=Resource.GROUP))
    filters = [AclFilter(resource=Resource.TOPIC), AclFilter(name="u"), AclFilter(name="none")]
    records, found = delete_acls(image, filters)
    assert found == [[rule(), rule("u")], [rule("u"), rule("u", resource=Resource.GROUP)], []]
    assert not applied(image, records).acls
    assert delete_acls(image, []) == ([], [])


def test_texts_are_bounded_and_the_others_are_made():
    long = "é" * (ACL_TEXT_BYTES_MAX // 2)
    fits = replace_name(long, ACL_TEXT_BYTES_MAX)
    records, results = create_acls(ClusterImage(), [rule(long), fits, rule(host=long)])
    assert [result is None for result in results] == [False, True, False]
    assert results[0].code == ErrorCode.INVALID_REQUEST
    assert records == [AclsChanged((fits,), ())]


def replace_name(text, size):
    """A rule whose texts have just so many bytes."""
    one = rule(text[: len(text) - 5])
    padding = size - len((one.name + "".join(one.principal) + one.host).encode())
    return one._replace(name=one.name + "x" * padding)


def test_the_number_of_rules_is_bounded(monkeypatch):
    monkeypatch.setattr(acl_control, "ACLS_MAX", 3)
    image = image_of(rule("a"), rule("b"))
    assert create_acls(image, [rule("b"), rule("c")])[1] == [None, None]
    with pytest.raises(Refusal) as refused:
        create_acls(image, [rule("c"), rule("d")])
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert "at most 3" in refused.value.message
    assert ACLS_MAX == 65_536


def test_one_request_changes_so_many_rules_and_what_fits_a_batch():
    many = [rule(f"{index:05}") for index in range(CHANGES_MAX)]
    records, _results = create_acls(ClusterImage(), many)
    assert [len(record.added) for record in records] == [ACLS_PER_RECORD_MAX] * (CHANGES_MAX // ACLS_PER_RECORD_MAX)
    assert sum(len(encode_record(record)) + 64 for record in records) <= limits.OWN_BATCH_BYTES_MAX
    with pytest.raises(Refusal):
        create_acls(ClusterImage(), [*many, rule("one more")])
    with pytest.raises(Refusal, match="INVALID_REQUEST"):
        delete_acls(image_of(*many, rule("one more")), [AclFilter()])
    large = [rule(f"{index:05}" + "x" * 1000) for index in range(CHANGES_MAX)]
    with pytest.raises(Refusal) as refused:
        create_acls(ClusterImage(), large)
    assert "use several requests" in refused.value.message
    assert len(create_acls(ClusterImage(), large[:5000])[0]) == 5


def test_below_the_level_nothing_is_written():
    node = NodeRegistered(NodeId(1), 1, 1, "", "1", NodeAddress("h", 1), ())
    image = replace(image_of(rule()), nodes={NodeId(1): node}, feature_level=FIRST_WITH_SECURITY - 1)
    for decide in (lambda found: create_acls(found, [rule("u")]), lambda found: delete_acls(found, [AclFilter()])):
        with pytest.raises(Refusal) as refused:
            decide(image)
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert "tpc cluster level --raise 6" in refused.value.message
        assert decide(replace(image, feature_level=FIRST_WITH_SECURITY))[0]


def test_a_filter_by_match_finds_what_covers_a_name():
    rules = [rule("test"), rule("te", Pattern.PREFIXED), rule("*"), rule("tes"), rule("testing", Pattern.PREFIXED),
             rule("test", resource=Resource.GROUP), rule("*", Pattern.PREFIXED)]  # fmt: skip
    found = AclFilter(Resource.TOPIC, Wanted.MATCH, "test").found_in(NO_RULES.changed(rules))
    assert set(found) == set(rules[:3])


kinds = st.sampled_from([Resource.TOPIC, Resource.GROUP, Resource.CLUSTER])
names = st.sampled_from(["a", "ab", "*"])
rules = st.builds(
    AclBinding, kinds, st.sampled_from(Pattern), names, st.sampled_from([ALICE, Principal("User", "*")]),
    st.sampled_from(["*", "h"]), st.sampled_from([Operation.ALL, Operation.READ]), st.sampled_from(Permission),
)  # fmt: skip
filters = st.builds(
    AclFilter, st.none() | kinds, st.sampled_from([*Wanted, *Pattern]), st.none() | names,
    st.sampled_from([None, "User:alice", "User:*"]), st.sampled_from([None, "*", "h"]),
    st.sampled_from([None, Operation.ALL, Operation.READ]), st.sampled_from([None, *Permission]),
)  # fmt: skip


def matches(wanted: AclFilter, one: AclBinding) -> bool:
    """One rule by one filter, without an index."""
    parts = (wanted.resource, one.resource), (wanted.principal, str(one.principal)), (wanted.host, one.host)
    more = (wanted.operation, one.operation), (wanted.permission, one.permission)
    if any(asked is not None and asked != found for asked, found in (*parts, *more)):
        return False
    if isinstance(wanted.pattern, Pattern) and wanted.pattern != one.pattern:
        return False
    if wanted.name is None:
        return True
    if wanted.pattern is not Wanted.MATCH:
        return wanted.name == one.name
    return wanted.name.startswith(one.name) if one.pattern == Pattern.PREFIXED else one.name in {wanted.name, "*"}


@settings(max_examples=500)
@given(st.lists(rules, max_size=15), filters)
def test_filters_find_what_looking_at_each_rule_finds(some, wanted):
    found = list(wanted.found_in(NO_RULES.changed(some)))
    assert len(found) == len(set(found))
    assert set(found) == {one for one in some if matches(wanted, one)}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_without_settings_there_is_no_authorizer():
    plain = load_settings().settings
    assert (plain.has_authorizer, plain.super_principals, plain.allow_everyone_if_no_acl_found) == (False, set(), False)


def test_settings_of_an_authorizer():
    users = "super.users=User:a; User:b,CN=x:y ;"
    given = [f"authorizer.class.name={AUTHORIZER}", users, "allow.everyone.if.no.acl.found=true"]
    found = load_settings("", given).settings
    assert found.has_authorizer
    assert found.super_principals == {Principal("User", "a"), Principal("User", "b,CN=x:y")}
    assert found.allow_everyone_if_no_acl_found


@pytest.mark.parametrize(
    "given",
    [
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer", f"authorizer.class.name={AUTHORIZER}2",
        "super.users=alice", "super.users=User:", "super.users=user:alice", "super.users=Group:a",
        "super.users=User:a;b",
        "allow.everyone.if.no.acl.found=yes",
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused_by_name(given):
    with pytest.raises(ConfigError, match=given.partition("=")[0]):
        load_settings("", [given])


@pytest.mark.parametrize("name", ["authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"])
def test_they_are_not_altered_while_the_broker_runs(name):
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
        validate_dynamic(name, "")
