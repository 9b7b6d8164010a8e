"""`tpc-broker status --watch`: rates between two looks, as a table and as JSON lines."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.broker_process import TpcBroker
from tests.support.waiting import eventually
from tpc_broker.process.main import main
from tpc_broker.telemetry.status_watch import listener_rates, rates, within_ms


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(module_tmp_path, cores_count=1)
    broker.start()
    yield broker
    broker.kill()


def watch(broker: TpcBroker, *arguments: str) -> str:
    arguments = ("status", "--data", str(broker.data_folder), "--watch", "--interval", "0.1", *arguments)
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_each_look_is_a_line_for_programs(broker: TpcBroker) -> None:
    def two_looks() -> list[Any]:
        looks = [json.loads(line) for line in watch(broker, "--count", "2", "--json").splitlines()]
        # A core that was starved of its CPU for a second is shown without its counters.
        assert all("requests_per_s" in row for look in looks for row in (*look["cores"], *look["listeners"]))
        return looks

    looks = eventually(two_looks, "two looks for which the core answered in time")
    assert len(looks) == 2
    for look in looks:
        (core,) = look["cores"]
        assert (core["core"], core["state"]) == (0, "up")
        assert core["requests_per_s"] >= 0
        assert 0 <= core["journal_used"] <= 100
        assert core["tasks"] >= 0
        (listener,) = look["listeners"]
        assert (listener["listener"], listener["mode"]) == ("PLAINTEXT", "per-core-port")
        assert listener["requests_per_s"] >= 0
        assert 0 < look["disk"]["left_bytes"] <= look["disk"]["free_bytes"] < look["disk"]["total_bytes"]


def test_a_core_that_did_not_answer_has_no_rates(broker: TpcBroker) -> None:
    now: Any = broker.status()
    silent = copy.deepcopy(now)
    del silent["cores"][0]["counters"]
    (row,) = rates(silent, now, 2.0)
    assert row["state"] == "up"
    assert "journal_used" in row
    assert "requests_per_s" not in row
    (row,) = rates(now, silent, 2.0)
    assert row == {"core": 0, "state": "silent"}


def test_people_see_a_table(broker: TpcBroker) -> None:
    text = watch(broker, "--count", "1")
    assert "Requests/s" in text
    assert "Commits 99 % ms" in text
    assert "Opened/s" in text
    assert "GiB of it for records" in text


def test_rates_of_a_listener(broker: TpcBroker) -> None:
    before: Any = broker.status()
    now: Any = copy.deepcopy(before)
    now["cores"][0]["counters"]["listeners"][0]["requests"] += 500
    now["cores"][0]["counters"]["listeners"][0]["opened"] += 7
    (row,) = listener_rates(before, now, 2.0)
    assert (row["requests_per_s"], row["opened_per_s"], row["refused_per_s"]) == (250, 3.5, 0)
    now["cores"][0]["pid"] += 1  # it was started again: what it counts began anew
    (row,) = listener_rates(before, now, 2.0)
    assert "requests_per_s" not in row


def test_rates_are_what_came_between_two_looks(broker: TpcBroker) -> None:
    before: Any = broker.status()
    now: Any = copy.deepcopy(before)
    counters = now["cores"][0]["counters"]
    counters["connections"]["requests"] += 500
    counters["connections"]["received_bytes"] += 10 * 1024 * 1024
    spans = counters["latencies"].setdefault("Produce", {"sum_ns": 0, "spans": [0] * 25})["spans"]
    spans[9] += 98
    spans[12] += 2
    counters["latencies"].setdefault("Fetch", {"sum_ns": 0, "spans": [0] * 25})["spans"][19] += 1000
    (row,) = rates(before, now, 2.0)
    assert (row["requests_per_s"], row["received_mib_per_s"], row["sent_mib_per_s"]) == (250, 5.0, 0.0)
    assert row["produced_within_ms"] == row["answered_within_ms"] == 4.096
    now["cores"][0]["pid"] += 1  # it was started again: its counters began anew
    (row,) = rates(before, now, 2.0)
    assert "requests_per_s" not in row
    now["cores"][0] |= {"pid": None, "ready": False}
    del now["cores"][0]["counters"]
    assert rates(before, now, 2.0) == [{"core": 0, "state": "down"}]


def test_where_most_times_lie() -> None:
    assert within_ms([0] * 25) is None
    assert within_ms([0, 99, 0, 1]) == 0.002
    assert within_ms([0, 98, 0, 2]) == 0.008


@pytest.mark.parametrize("arguments", [("--interval", "1"), ("--count", "2")])
def test_what_goes_with_watch_needs_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["status", "--data", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert done.stderr == f"tpc-broker: {arguments[0]} goes with --watch\n"
