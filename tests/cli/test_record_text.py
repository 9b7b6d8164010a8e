"""Binary records, headers, format strings, partitions and rates of ``tpc produce`` and ``consume``."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Tpc
from tests.support.waiting import takes_at_least
from tpc_broker.cli.record_text import Pace, Shown, parse_format

RECORD = Shown("t", 3, 42, 1700000000000, b"k", b"v\0", [("a", b"1"), ("b", None)])


def test_headers_come_back_in_order(command: Tpc) -> None:
    command("topic", "create", "headed", "--partitions", "1")
    command("produce", "headed", "--header", "a=1", "--header", "b=x=y", "--header", "a=", stdin="v\n")
    (row,) = command.values("headed", "--from", "earliest", "--exit-at-end", "--json")
    assert json.loads(row)["headers"] == [["a", "1"], ["b", "x=y"], ["a", ""]]
    (line,) = command.values("headed", "--from", "earliest", "--exit-at-end", "--format", r"%h|%s\n")
    assert line == "a=1,b=x=y,a=|v"


@pytest.mark.parametrize(("option", "written"), [("--hex", "00ff"), ("--base64", "AP8=")])
def test_bytes_as_text(command: Tpc, option: str, written: str) -> None:
    topic = f"binary{option}"
    command("topic", "create", topic, "--partitions", "1")
    command("produce", topic, option, "--key-separator", ":", stdin=f"{written}:{written}\n")
    read = (topic, "--from", "earliest", "--exit-at-end")
    assert command.values(*read, option) == [written]
    assert command.values(*read, option, "--format", r"%k %K %s\n") == [f"{written} {len(written)} {written}"]
    row = json.loads(command("consume", *read, option, "--json"))
    assert (row["key"], row["value"]) == (written, written)
    assert json.loads(command("consume", *read, "--json"))["value"] == {"base64": "AP8="}
    line = command.error("produce", topic, option, stdin=f"{written}\nnot so!\n")
    assert f"line 2 is no {option.strip('-')}: b'not so!'; 1 records before it were acknowledged" in line


def test_only_the_partitions_that_are_named(command: Tpc) -> None:
    command("topic", "create", "parts", "--partitions", "3")
    for partition in "012":
        command("produce", "parts", "--partition", partition, stdin=f"p{partition}\n")
    read = ("parts", "--from", "earliest", "--exit-at-end", "--partition", "2", "--partition", "0")
    assert sorted(command.values(*read, "--format", "%p=%s\n")) == ["0=p0", "2=p2"]
    assert "parts has no partition 9; it has 0 to 2" in command.error("consume", "parts", "--partition", "9", code=4)


def test_a_rate_holds_producing_back(command: Tpc) -> None:
    command("topic", "create", "slow", "--partitions", "1")
    with takes_at_least(0.25):
        command("produce", "slow", "--rate", "20", stdin="x\n" * 7)
    with takes_at_least(0.25):
        assert len(command.values("slow", "--from", "earliest", "--exit-at-end", "--rate", "20")) == 7


def test_a_pace_is_kept_on_average() -> None:
    now_s = 50.0
    waits: list[float] = []
    pace = Pace(1e6, lambda: now_s)
    for _ in range(1000):
        pace.wait(waits.append)
    assert waits == []  # 1,000 records are due within a millisecond
    Pace(None, lambda: now_s).wait(waits.append)
    pace = Pace(0.001, lambda: now_s)
    pace.wait(waits.append)
    assert waits == []
    now_s += 5
    pace.wait(waits.append)
    assert waits == [pytest.approx(995)]
    now_s += 3000  # what was not used is not lost
    pace.wait(waits.append)
    pace.wait(waits.append)
    assert waits == [pytest.approx(995)]
    pace.wait(waits.append)
    assert waits[1:] == [pytest.approx(995)]


def test_every_token_of_a_format() -> None:
    written = parse_format(r"%t/%p@%o %T %k(%K) %s(%S) %h %% \x41\t\\\n")(RECORD)
    assert written == b"t/3@42 1700000000000 k(1) v\0(2) a=1,b=NULL % A\t\\\n"
    assert parse_format("%k%K%s%S")(RECORD._replace(key=None, value=None)) == b"-1-1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "t", "--format", "%q"], "--format: there is no %q; there are %s %S %k"),
        (["consume", "t", "--format", "100%"], "--format: there is no %; there are"),
        (["consume", "t", "--format", r"\q"], r"--format: there is no \q; there are \n"),
        (["consume", "t", "--format", "%s", "--json"], "--format and --json are two ways to print"),
        (["consume", "t", "--partition", "0", "--group", "g"], "--partition and --group exclude each other"),
        (["consume", "t", "--hex", "--base64"], "--hex and --base64 are two ways to write bytes"),
        (["consume", "t", "--rate", "0"], "0.0 is not in the range x>0"),
        (["produce", "t", "--header", "x"], "--header x: expected NAME=VALUE"),
        (["produce", "t", "--hex", "--base64"], "--hex and --base64"),
        (["produce", "t", "-X", "no.such.property=1"], '-X: No such configuration property: "no.such.property"'),
        (["produce", "t", "-X", "linger.ms=soon"], "-X: Invalid value for configuration property"),
        (["consume", "t", "-X", "x"], "-X x: expected NAME=VALUE"),
    ],
)
def test_bad_input_is_one_line(command: Tpc, arguments: list[str], said: str) -> None:
    assert said in command.error(*arguments, code=2)
