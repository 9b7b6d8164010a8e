"""The Grafana dashboard and the alert rules: each query parses, and asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tpc_broker.telemetry.metrics import CoreMetrics

PACKAGING = Path(__file__).parent.parent.parent / "packaging"
DASHBOARD = PACKAGING / "grafana" / "tpc-broker.json"
ALERTS = PACKAGING / "prometheus" / "alerts.yml"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
VARIABLES = {"$__rate_interval": "1m", "$instance": "node"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> list[str]:
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*of_panels, *(rule["expr"] for rule in rules())]


def metric_names(folder: Path) -> set[str]:
    return {
        family.name + suffix
        for family in CoreMetrics([], folder).collect()
        for suffix in SUFFIXES.get(family.type, ("",))
    }


@pytest.mark.parametrize("query", queries())
def test_a_query_parses_and_asks_for_what_there_is(query: str, tmp_path: Path) -> None:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    promql_parser.parse(query)
    names = set(re.findall(r"\btpc_\w+", query))
    assert names
    assert names <= metric_names(tmp_path)
    # A histogram of which only buckets are counted has no sum and no count.
    assert not names & {f"tpc_journal_commit_seconds_{end}" for end in ("sum", "count")}


def test_the_dashboard_s_panels_are_apart_and_complete() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }  # fmt: skip
        assert not cells & taken, panel["title"]
        assert max(x for x, _y in cells) < 24
        taken |= cells
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


def test_every_alert_says_what_is_wrong_and_where() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    text = (PACKAGING.parent / "docs" / "operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
