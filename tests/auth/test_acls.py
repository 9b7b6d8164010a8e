"""Decisions of `auth/acls.py`: equal to a naive model's for random rules, and the attempts that must fail, by name."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.auth.acl_model import decides, decides_on_some
from tpc_broker.auth.acls import (
    ACLS_MAX,
    EVERY_BIT,
    NO_RULES,
    AclAuthorizer,
    AclBinding,
    Pattern,
    Permission,
    RefusesAll,
    Rules,
    normal_host,
)
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import ANONYMOUS, Principal, Subject

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
EVERYBODY = Principal("User", "*")
HOST = "10.0.0.1"
AT_HOST = Subject(ALICE, HOST)
NAMES = ["a", "ab", "abc", "abd", "b", "*", "*a", "é", "a\U0001f600"]
ASKED_OPERATIONS = [each for each in Operation if each != Operation.ALL]

OTHER_NAMES = ["abcdef", "z", "", "A"]
ASKING = [ALICE, BOB, Principal("Group", "alice")]
ASKING_FROM = [HOST, "::ffff:a00:1", "::1", "10.0.0.2"]
RULES_FOR = [ALICE, BOB, EVERYBODY, Principal("Group", "alice"), Principal("User", "ALICE")]
RULES_AT = ["*", HOST, "::ffff:10.0.0.1", "::1", "0:0:0:0:0:0:0:1", "somewhere"]
RULES_OF = [
    Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER, Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS, Operation.CREATE,
]  # fmt: skip

bindings = st.builds(
    AclBinding,
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    st.sampled_from(Pattern),
    st.sampled_from(NAMES),
    st.sampled_from(RULES_FOR),
    st.sampled_from(RULES_AT),
    st.sampled_from(RULES_OF),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
subjects = st.builds(Subject, st.sampled_from(ASKING), st.sampled_from(ASKING_FROM))


def rule(
    permission: Permission = Permission.ALLOW,
    operation: Operation = Operation.READ,
    name: str = "test",
    pattern: Pattern = Pattern.LITERAL,
    **others: Any,
) -> AclBinding:
    values: dict[str, Any] = {"resource": Resource.TOPIC, "principal": ALICE, "host": "*", **others}
    return AclBinding(pattern=pattern, name=name, operation=operation, permission=permission, **values)


DENY = Permission.DENY


def may(
    rules: Iterable[AclBinding],
    operation: Operation = Operation.READ,
    name: str = "test",
    *,
    subject: Subject = AT_HOST,
    super_users: Iterable[Principal] = (),
    resource: Resource = Resource.TOPIC,
) -> bool:
    authorizer = AclAuthorizer(NO_RULES.changed(rules), frozenset(super_users), allows_without_rules=False)
    return authorizer.allows(subject, operation, resource, name)


@settings(max_examples=250)  # thousands without its search are below, each for a fifth of the time
@given(st.lists(bindings, max_size=12), subjects, st.sampled_from([*NAMES, *OTHER_NAMES]), st.booleans(),
       st.booleans())  # fmt: skip
@example([rule(name="a", pattern=Pattern.PREFIXED), rule(DENY, name="ab", pattern=Pattern.PREFIXED)],
         AT_HOST, "abcdef", False, False)  # fmt: skip
def test_decisions_are_the_models(
    rules: list[AclBinding], subject: Subject, name: str, without_rules: bool, is_super: bool
) -> None:
    check_decisions(rules, subject, name, without_rules=without_rules, super_users={BOB} if is_super else ())


def test_decisions_of_thousands_of_random_rules_are_the_models(pytestconfig: pytest.Config) -> None:
    random = Random(pytestconfig.option.seed)
    kinds = [Resource.TOPIC, Resource.GROUP]
    for _case in range(5000):
        rules = [
            AclBinding(
                random.choice(kinds), random.choice(list(Pattern)), random.choice(NAMES), random.choice(RULES_FOR),
                random.choice(RULES_AT), random.choice(RULES_OF),
                Permission.DENY if random.random() < 0.3 else Permission.ALLOW,
            )
            for _rule in range(random.randrange(20))
        ]  # fmt: skip
        subject = Subject(random.choice(ASKING), random.choice(ASKING_FROM))
        name = random.choice([*NAMES, *OTHER_NAMES])
        is_super, without_rules = random.random() < 0.2, random.random() < 0.5
        check_decisions(rules, subject, name, without_rules=without_rules, super_users={BOB} if is_super else ())


def check_decisions(
    rules: list[AclBinding], subject: Subject, name: str, *, without_rules: bool, super_users: Iterable[Principal]
) -> None:
    super_users = frozenset(super_users)
    authorizer = AclAuthorizer(NO_RULES.changed(rules), super_users, allows_without_rules=without_rules)
    for operation in ASKED_OPERATIONS:
        for resource in (Resource.TOPIC, Resource.CLUSTER):
            wanted = decides(rules, super_users, (subject, operation, resource, name), without_rules=without_rules)
            found = authorizer.allows(subject, operation, resource, name)
            assert found == wanted, (rules, subject, operation, resource, name)
    for operation in (Operation.WRITE, Operation.DESCRIBE):
        some = decides_on_some(rules, super_users, (subject, operation, Resource.TOPIC), without_rules=without_rules)
        found = authorizer.allows_some(subject, operation, Resource.TOPIC)
        assert found == some, (rules, subject, operation)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.booleans(), bindings), max_size=40))
def test_changes_lead_to_the_same_rules_as_all_at_once(changes: list[tuple[bool, AclBinding]]) -> None:
    there: set[AclBinding] = set()
    rules = NO_RULES
    for is_added, binding in changes:
        before, was = rules, set(rules)
        rules = rules.changed([binding], []) if is_added else rules.changed([], [binding])
        (there.add if is_added else there.discard)(binding)
        assert set(rules) == there
        assert len(rules) == len(there) == len(list(rules))
        assert (binding in rules) == is_added
        assert set(before) == was, "an image that somebody still holds has changed"
    assert rules == NO_RULES.changed(there)
    assert (rules == NO_RULES) == (not there)


@settings(max_examples=400)
@given(st.lists(bindings, max_size=12), st.sampled_from(NAMES))
def test_rules_that_cover_a_name(rules: list[AclBinding], name: str) -> None:
    found = NO_RULES.changed(rules)
    for resource in (Resource.TOPIC, Resource.GROUP):
        wanted = {
            each for each in rules
            if each.resource == resource
            and (name.startswith(each.name) if each.pattern == Pattern.PREFIXED else each.name in {name, "*"})
        }  # fmt: skip
        assert set(found.covering(resource, name)) == wanted


def test_a_literal_denial_wins_under_an_allowed_prefix() -> None:  # attempt 71
    rules = [rule(name="te", pattern=Pattern.PREFIXED), rule(DENY, name="test")]
    assert not may(rules)
    assert may(rules, name="test2")


def test_a_prefixed_denial_wins_over_an_allowed_name() -> None:
    assert not may([rule(name="test"), rule(DENY, name="t", pattern=Pattern.PREFIXED)])


def test_a_denial_of_every_name_wins() -> None:  # attempt 72
    rules = [rule(name="test"), rule(name="t", pattern=Pattern.PREFIXED), rule(DENY, name="*", principal=EVERYBODY)]
    assert not may(rules)


def test_an_empty_prefix_covers_what_it_says_and_an_empty_name_nothing() -> None:  # attempt 73
    assert may([rule(name="", pattern=Pattern.PREFIXED)])
    assert not may([rule(name="")])


def test_a_prefix_of_a_star_is_no_wildcard() -> None:  # attempt 74
    assert not may([rule(name="*", pattern=Pattern.PREFIXED)])
    assert may([rule(name="*", pattern=Pattern.PREFIXED)], name="*a")
    assert may([rule(name="*")], name="*")


def test_rules_of_groups_say_nothing_of_topics() -> None:  # attempt 75
    rules = [rule(name="te", pattern=Pattern.PREFIXED, resource=Resource.GROUP)]
    assert not may(rules)
    assert may(rules, resource=Resource.GROUP)


@pytest.mark.parametrize("written", ["10.0.0.1", "::ffff:10.0.0.1", "::FFFF:0a00:0001"])
@pytest.mark.parametrize("seen", ["10.0.0.1", "::ffff:10.0.0.1", "0:0:0:0:0:ffff:a00:1"])
def test_a_host_is_denied_however_its_address_is_written(written: str, seen: str) -> None:  # attempt 76
    rules = [rule(), rule(DENY, host=written)]
    assert not may(rules, subject=Subject(ALICE, seen))
    assert may(rules, subject=Subject(ALICE, "10.0.0.2"))


def test_hosts_that_are_no_addresses_are_compared_as_texts() -> None:
    assert normal_host("a:b") == "a:b"
    assert not may([rule(host="localhost")], subject=Subject(ALICE, "127.0.0.1"))
    assert not may([rule(host="10.0.0.*")])
    assert not may([rule(host="10.0.0.0/8")])
    assert not may([rule(host="")])


def test_a_super_user_is_one_by_the_exact_name() -> None:  # attempts 77 and 78
    denied = [rule(DENY, Operation.ALL, "*", principal=EVERYBODY)]
    assert may(denied, super_users=[ALICE])
    for other in (Principal("User", "Alice"), Principal("user", "alice"), Principal("Group", "alice"),
                  Principal("User", "alice "), Principal("", "alice"), ANONYMOUS):  # fmt: skip
        assert not may(denied, subject=Subject(other, HOST), super_users=[ALICE])


def test_a_rule_for_another_kind_of_principal_is_nobodys() -> None:  # attempt 78
    assert not may([rule(principal=Principal("Group", "alice"))])
    assert not may([rule(principal=Principal("Group", "*"))])
    assert not may([rule(principal=Principal("*", "*"))])
    assert not may([rule(principal=Principal("User", "al*"))])


def test_what_is_implied_is_for_leave_and_not_for_denials() -> None:
    for granted in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert may([rule(operation=granted)], Operation.DESCRIBE)
        assert may([rule(DENY, granted), rule(operation=Operation.DESCRIBE)], Operation.DESCRIBE)
    for granted in (Operation.CREATE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION):
        assert not may([rule(operation=granted)], Operation.DESCRIBE)
    assert may([rule(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not may([rule(operation=Operation.DESCRIBE)], Operation.READ)


def test_all_is_every_operation_and_no_other_bit() -> None:
    rules = NO_RULES.changed([rule(operation=Operation.ALL)])
    authorizer = AclAuthorizer(rules, frozenset(), allows_without_rules=False)
    assert authorizer.allowed(AT_HOST, Resource.TOPIC, "test") == EVERY_BIT
    assert all(may([rule(operation=Operation.ALL)], operation) for operation in ASKED_OPERATIONS)


def test_without_a_rule_on_the_resource_the_setting_says() -> None:
    open_to_all = AclAuthorizer(NO_RULES.changed([rule(principal=BOB)]), frozenset(), allows_without_rules=True)
    alice = AT_HOST
    assert open_to_all.allows(alice, Operation.READ, Resource.TOPIC, "other")
    assert not open_to_all.allows(alice, Operation.READ, Resource.TOPIC, "test"), "a rule is there"
    assert open_to_all.allows_some(alice, Operation.WRITE, Resource.TOPIC)


def test_a_producer_without_id_by_a_denied_prefix() -> None:  # attempt 85
    write = Operation.WRITE

    def some(*rules: AclBinding) -> bool:
        authorizer = AclAuthorizer(NO_RULES.changed(rules), frozenset(), allows_without_rules=False)
        return authorizer.allows_some(AT_HOST, write, Resource.TOPIC)

    prefix = rule(operation=write, name="te", pattern=Pattern.PREFIXED)
    assert not some()
    assert some(rule(operation=write))
    assert some(prefix)
    assert not some(rule(operation=write), rule(DENY, write, "t", Pattern.PREFIXED))
    assert not some(prefix, rule(DENY, write, "te", Pattern.PREFIXED))
    assert some(prefix, rule(DENY, write, "tes", Pattern.PREFIXED))
    assert some(prefix, rule(DENY, write, "te"))
    assert not some(rule(operation=write), rule(DENY, write, "*"))
    assert some(rule(operation=write, name="*"), rule(DENY, write, "t", Pattern.PREFIXED))


def test_until_rules_are_known_all_is_refused() -> None:  # attempt 70
    nobody_yet = RefusesAll()
    for operation in ASKED_OPERATIONS:
        for resource in Resource:
            assert not nobody_yet.allows(AT_HOST, operation, resource, "test")
            assert not nobody_yet.allows_some(AT_HOST, operation, resource)
    assert not nobody_yet.allowed(AT_HOST, Resource.CLUSTER, "kafka-cluster")


def test_as_many_rules_as_there_may_be_are_looked_up_and_not_walked() -> None:
    many = [rule(name=f"t{index:05}", pattern=Pattern.PREFIXED) for index in range(ACLS_MAX)]
    rules = NO_RULES.changed(many)
    assert len(rules) == ACLS_MAX
    visited: list[str] = []
    table = rules._tables[Resource.TOPIC]
    visited.extend(table.prefixes.of("t40000-and-more"))
    assert visited == ["t40000"]
    assert len(list(table.nodes_on("t40000-and-more"))) == 1
    assert rules.changed(removed=[many[40_000]]) != rules


def test_rules_equal_others_only() -> None:
    assert Rules() == NO_RULES
    assert [rule()] != NO_RULES
    assert NO_RULES.changed([rule()]) != NO_RULES.changed([rule(name="other")])
