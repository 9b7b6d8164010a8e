"""Rules of access: what the APIs 29 to 31 take and tell, and what rules on the cluster then decide about them."""

from __future__ import annotations

from tests.integration.differential.access_dialogue import (
    ALICES_HOST,
    ALL,
    ALLOW,
    ALTER,
    ANY_FILTER,
    CLUSTER,
    CLUSTER_NAME,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    AccessDialogue,
    access_scenario,
    cluster_rules,
    filter_of,
    rule,
)
from tests.integration.differential.dialogue import stable_versions

NAMES_OF_OTHERS = {"Principal": "User:scenario", "Host": "*"}


def of_topic(name: str, operation: int = READ, **more: object) -> dict[str, object]:
    return rule(name, TOPIC, operation, **{**NAMES_OF_OTHERS, **more})


def show(d: AccessDialogue, **more: object) -> None:
    """The rules of these scenarios only."""
    d.anywhere.ask("DescribeAcls", 3, {**ANY_FILTER, "PrincipalFilter": "User:scenario", **more})


def clean(d: AccessDialogue) -> None:
    d.guide("DeleteAcls", 3, {"Filters": [{**ANY_FILTER, "PrincipalFilter": "User:scenario"}]})
    d.settle()


def create(d: AccessDialogue, *rules: dict[str, object], version: int = 3) -> None:
    d.anywhere.ask("CreateAcls", version, {"Creations": list(rules)})
    d.settle()


@access_scenario
def rules_are_made_shown_and_deleted(d: AccessDialogue) -> None:
    for version in stable_versions("CreateAcls"):
        create(d, of_topic("a"), of_topic("a"), of_topic("b", ResourcePatternType=PREFIXED), version=version)
        create(d, of_topic("a"), version=version)
        for wanted in ({}, {"ResourceNameFilter": "a"}, {"PatternTypeFilter": PREFIXED}, {"Operation": ALL}):
            asked = {**ANY_FILTER, "PrincipalFilter": "User:scenario", **wanted}
            d.anywhere.ask("DescribeAcls", version, asked)
        d.anywhere.ask("DeleteAcls", version, {"Filters": [filter_of(of_topic("none")), filter_of(of_topic("a"))]})
        d.settle()
        show(d)
        everything = {**ANY_FILTER, "PrincipalFilter": "User:scenario"}
        d.anywhere.ask("DeleteAcls", version, {"Filters": [everything, everything]})
        d.settle()
        show(d)
        d.anywhere.ask("DeleteAcls", version, {"Filters": []})
        d.anywhere.ask("CreateAcls", version, {"Creations": []})


@access_scenario
def rules_that_cannot_be(d: AccessDialogue) -> None:
    odd = (
        {"ResourceName": ""}, {"ResourceName": "x y/\u00e9"}, {"ResourceName": "*"}, {"ResourceName": "t" * 300},
        {"ResourceType": CLUSTER}, {"ResourceType": CLUSTER, "ResourceName": "kafka-cluste"},
        {"ResourceType": CLUSTER, "ResourceName": "*"}, {"ResourceType": CLUSTER, "ResourceName": CLUSTER_NAME},
        {"ResourceType": CLUSTER, "ResourceName": CLUSTER_NAME, "ResourcePatternType": PREFIXED},
        {"ResourceName": "*", "ResourcePatternType": PREFIXED}, {"ResourceType": 1}, {"ResourceType": 99},
        {"ResourcePatternType": 1}, {"ResourcePatternType": 2}, {"ResourcePatternType": 99}, {"Operation": 1},
        {"Operation": 99}, {"Operation": 16}, {"PermissionType": 1}, {"PermissionType": 99},
        {"Operation": 15}, {"Operation": 14}, {"ResourceType": 6}, {"ResourceType": 7},
        {"Host": ""}, {"Host": "nowhere at all"}, {"Host": "10.0.0.0/8"},
    )  # fmt: skip
    for more in odd:
        create(d, {**of_topic("odd"), **more})
        create(d, of_topic("before"), {**of_topic("odd"), **more}, of_topic("behind"))
        show(d)
        clean(d)
    for principal in ("scenario", "", ":", "User:", ":scenario", "User:a:b", "user:x", "User:*", "Group:g", "x y:z"):
        create(d, of_topic("odd", Principal=principal))
        d.anywhere.ask("DescribeAcls", 3, {**ANY_FILTER, "ResourceNameFilter": "odd"})
        d.guide("DeleteAcls", 3, {"Filters": [{**ANY_FILTER, "ResourceNameFilter": "odd"}]})
        d.settle()


@access_scenario
def rules_of_unknown_kinds(d: AccessDialogue) -> None:
    for key in ("ResourceType", "ResourcePatternType", "Operation", "PermissionType"):
        create(d, of_topic("good"), {**of_topic("odd"), key: 0})
    for key in ("ResourceTypeFilter", "PatternTypeFilter", "Operation", "PermissionType"):
        for value in (0, 99, -1):
            asked = {**ANY_FILTER, "PrincipalFilter": "User:scenario", key: value}
            d.anywhere.ask("DescribeAcls", 3, asked)
            d.anywhere.ask("DeleteAcls", 3, {"Filters": [asked, {**asked, "ResourceNameFilter": "x", key: 1}]})
    show(d)


@access_scenario
def rules_by_filters(d: AccessDialogue) -> None:
    several = [
        of_topic(name, operation, ResourcePatternType=pattern)
        for name in ("te", "test", "*", "other")
        for pattern in (LITERAL, PREFIXED)
        for operation in (READ, ALL)
    ]
    more = {"ResourceType": GROUP}, {"Host": "h"}, {"PermissionType": DENY}
    create(d, *several, *(of_topic("test", **each) for each in more))
    for pattern in (1, 2, LITERAL, PREFIXED):
        for name in ("test", "te", "t", "", "*", "test2", None):
            show(d, PatternTypeFilter=pattern, ResourceNameFilter=name)
            show(d, PatternTypeFilter=pattern, ResourceNameFilter=name, ResourceTypeFilter=TOPIC, Operation=READ)
    parts = (
        {"HostFilter": "h"}, {"HostFilter": "*"}, {"HostFilter": ""}, {"PermissionType": DENY},
        {"PermissionType": ALLOW, "Operation": ALL}, {"PrincipalFilter": "User:*"}, {"PrincipalFilter": "scenario"},
        {"PrincipalFilter": ""}, {"PrincipalFilter": "User:Scenario"},
    )  # fmt: skip
    for more in parts:
        show(d, **more)
    d.anywhere.ask("DeleteAcls", 3, {"Filters": [
        {**ANY_FILTER, "PrincipalFilter": "User:scenario", "PatternTypeFilter": 2, "ResourceNameFilter": "tes"},
        {**ANY_FILTER, "PrincipalFilter": "User:scenario", "ResourceNameFilter": "te"},
        {**ANY_FILTER, "PrincipalFilter": "User:scenario", "ResourceTypeFilter": GROUP},
    ]})  # fmt: skip
    d.settle()
    show(d)
    clean(d)


@access_scenario
def rules_on_the_cluster_decide_about_rules(d: AccessDialogue) -> None:
    """Operation by permission by host by principal (attempts 76, 78 and 109): alice may see rules by DESCRIBE, which
    ALTER implies, and change them by ALTER.
    """
    nothing = {"Filters": [filter_of(of_topic("no such rule"))]}
    for label, rules in cluster_rules():
        d.make(*rules)
        line = d.other()
        asked = {**ANY_FILTER, "PrincipalFilter": "User:no such user"}
        line.ask("DescribeAcls", 3, asked)
        line.ask("DeleteAcls", 3, nothing)
        line.ask("CreateAcls", 3, {"Creations": []})
        d.note(label, 0, rules, {})
        d.drop(*rules)


@access_scenario
def who_has_no_rights_sees_and_changes_nothing(d: AccessDialogue) -> None:
    for version in stable_versions("DescribeAcls"):
        line = d.other()
        line.ask("DescribeAcls", version, ANY_FILTER)
        line.ask("DeleteAcls", version, {"Filters": [ANY_FILTER, ANY_FILTER]})
        line.ask("CreateAcls", version, {"Creations": [of_topic("a"), of_topic("")]})
        line.ask("CreateAcls", version, {"Creations": [of_topic("a", Operation=1)]})
    show(d)
    d.make(rule(operation=ALTER))
    line = d.other()
    line.ask("CreateAcls", 3, {"Creations": [of_topic("mine")]})
    d.settle()
    show(d)
    d.drop(rule(operation=ALTER))
    d.other().ask("DeleteAcls", 3, {"Filters": [filter_of(of_topic("mine"))]})
    show(d)
    clean(d)


@access_scenario
def a_right_that_is_taken_away_is_gone_on_an_open_connection(d: AccessDialogue) -> None:
    line = d.other()
    asked = {**ANY_FILTER, "PrincipalFilter": "User:no such user"}
    for _round in range(2):
        line.ask("DescribeAcls", 3, asked)
        d.make(rule(operation=DESCRIBE))
        line.ask("DescribeAcls", 3, asked)
        d.make(rule(operation=DESCRIBE, PermissionType=DENY, Principal="User:*", Host=ALICES_HOST))
        line.ask("DescribeAcls", 3, asked)
        d.drop(rule(operation=DESCRIBE, PermissionType=DENY, Principal="User:*", Host=ALICES_HOST))
        d.drop(rule(operation=DESCRIBE))
