"""Each API that is offered has a row, and the row is whole: no list elsewhere has to be kept in step with it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpc_broker.auth.operations import Resource
from tpc_broker.broker.handlers.api_rows import Served, Throttle
from tpc_broker.broker.handlers.forward import AtController
from tpc_broker.broker.handlers.table import FIRST_LEVELS, ROWS, offered_at
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.kafka.api_keys import ApiKey, api

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_apis.py"))
SCHEMA = {
    one["name"]: one
    for one in map(json.loads, (ROOT / "tpc_broker" / "kafka" / "schema.jsonl").read_text().splitlines())
}
GROUP_FIELDS = {"GroupId", "GroupIds", "Groups", "GroupsNames"}
READ_BY_C = {ApiKey.PRODUCE}
"""Whose handler gets no message."""

EACH = pytest.mark.parametrize("key", sorted(ROWS), ids=lambda key: key.name)


def own_fields(name: str) -> set[str]:
    return {field["name"] for field in SCHEMA[name]["fields"]}


def fields(described: list[dict[str, Any]]) -> Iterator[str]:
    for one in described:
        yield one["name"]
        yield from fields(one.get("fields", []))


def test_the_page_is_what_the_tool_makes():
    assert TOOL["TARGET"].read_text(encoding="utf-8") == TOOL["page"](), "run: .venv/bin/python tools/generate_apis.py"


def test_what_is_offered_is_what_has_a_row_and_clients_may_ask_for():
    later = {key for key, level in FIRST_LEVELS.items() if level > SPOKEN.highest}
    assert sorted(ROWS.keys() - later) == list(offered_at(SPOKEN.highest))
    assert [key for key in ROWS if "broker" not in api(key).listeners] == []


@EACH
def test_a_row_needs_something_or_says_why_not(key):
    row = ROWS[key]
    assert bool(row.needs) != bool(row.free_because)
    assert len(set(row.needs)) == len(row.needs)


@EACH
def test_functions_of_a_row_are_those_of_its_api(key):
    """They name the messages that they take and make."""
    row = ROWS[key]
    asked, answer = f"messages.{api(key).request_name}", f"messages.{api(key).response_name}"
    named = row.handler.__annotations__
    if key not in READ_BY_C:
        assert asked in named.values()
        assert answer in named["return"]
    if row.place.served is Served.CONTROLLER:
        assert isinstance(row.place, AtController)
        assert asked in row.place.without.__annotations__.values()
        assert row.place.without.__annotations__["return"] == answer


@EACH
def test_a_request_is_held_back_where_its_answer_can_say_so(key):
    row = ROWS[key]
    assert ("ThrottleTimeMs" in own_fields(api(key).response_name)) == (row.throttle is not Throttle.NONE)
    if row.throttle is Throttle.MUTATION:
        assert row.place.served is Served.CONTROLLER, "the controller counts them"


@EACH
def test_a_request_about_groups_is_their_coordinators_and_a_members_is_prompt(key):
    row, name = ROWS[key], api(key).request_name
    is_about_groups = bool(GROUP_FIELDS & set(fields(SCHEMA[name]["fields"])))
    is_about_transaction = row.place.served is Served.BY_TRANSACTION  # AddOffsetsToTxn only names a group
    assert (is_about_groups and not is_about_transaction) == (row.place.served is Served.BY_GROUP)
    if {"GroupId", "MemberId"} <= own_fields(name):
        assert row.is_prompt


@EACH
def test_a_request_that_says_how_long_it_waits_is_not_slow(key):
    if "MaxWaitMs" in own_fields(api(key).request_name):
        assert ROWS[key].may_wait


@EACH
def test_who_has_something_is_asked_by_who_may_do_something_to_it(key):
    row = ROWS[key]
    resources = {need.resource for need in row.needs}
    wanted = {Served.BY_GROUP: Resource.GROUP, Served.BY_PARTITION: Resource.TOPIC}.get(row.place.served)
    assert wanted is None or wanted in resources
