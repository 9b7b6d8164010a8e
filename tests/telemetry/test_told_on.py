"""The page for users says what there is."""

from __future__ import annotations

import re
from pathlib import Path

from tpc_broker.telemetry.pushed.instances import REASONS
from tpc_broker.telemetry.pushed.standard import STANDARD, Kind
from tpc_broker.telemetry.telemetry_metrics import COUNTS, INSTANCES, PREFIX, REFUSED

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def test_each_metric_that_is_told_on_has_its_row():
    rows = re.findall(r"^\| `(tpc_client_\w+)` \| `([\w.]+)` \| ([\w ]+) \|$", PAGE, re.MULTILINE)
    assert rows == [(PREFIX + one.metric, one.told.decode(), one.over.value) for one in STANDARD]


def test_what_is_counted_of_pushes_is_there_with_all_its_labels():
    for name in [*(name for name, _field, _explanation in COUNTS), INSTANCES, f"{REFUSED}_total"]:
        assert f"`{name}{{core" in PAGE
    for label in [*(kind.value for kind in Kind), *REASONS]:
        assert f"`{label}`" in PAGE


def test_no_two_metrics_have_one_name():
    assert len({one.metric for one in STANDARD}) == len({one.told for one in STANDARD}) == len(STANDARD)
