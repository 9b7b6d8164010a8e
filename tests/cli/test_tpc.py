"""``tpc`` against a running broker: topics, produce, consume, output for people and programs, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range

OVERRIDES = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
COMMAND = [sys.executable, "-m", "tpc_broker.cli.main"]


def tpc(*arguments: str, stdin: str | bytes = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=60, check=False)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, (arguments, done.returncode, out, err)
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


class Tpc:
    """The command with the address of a broker; every test has topics of its own names."""

    def __init__(self, broker: TpcBroker) -> None:
        self.broker = broker

    def __call__(self, *arguments: str, stdin: str | bytes = "", code: int = 0) -> str:
        return tpc(*arguments, "--bootstrap", self.broker.bootstrap, stdin=stdin, code=code).stdout

    def error(self, *arguments: str, stdin: str | bytes = "", code: int = 1) -> str:
        """The one line of a failure."""
        done = tpc(*arguments, "--bootstrap", self.broker.bootstrap, stdin=stdin, code=code)
        assert "Traceback" not in done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("tpc: ")
        return line

    def values(self, *arguments: str) -> list[str]:
        return self("consume", *arguments).splitlines()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpc]:
    broker = TpcBroker(tmp_path_factory.mktemp("cli"), cores_count=2, overrides=OVERRIDES)
    broker.start()
    yield Tpc(broker)
    broker.stop()


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_from_creation_to_deletion(run: Tpc) -> None:
    made = run("topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=86400000")
    assert made == "Created topic orders.\n"
    assert "orders\t3" in run("topic", "list").splitlines()
    lines = run("topic", "describe", "orders").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "retention.ms"]
    assert lines[3] == "retention.ms\t86400000"
    described = json.loads(run("topic", "describe", "orders", "--json"))
    assert described["configs"] == {"retention.ms": "86400000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert all((row["log_start_offset"], row["high_watermark"]) == (0, 0) for row in described["partitions"])
    assert {row["leader"] for row in described["partitions"]} <= {0, 1}
    assert run("topic", "delete", "orders") == "Deleted topic orders.\n"
    assert "orders" not in run("topic", "list")


def test_topics_for_programs(run: Tpc) -> None:
    assert json.loads(run("topic", "create", "programs", "--json")) == {"topic": "programs", "created": True}
    assert {"topic": "programs", "partitions": 2} in json.loads(run("topic", "list", "--json"))
    assert json.loads(run("topic", "delete", "programs", "--json")) == {"topic": "programs", "deleted": True}


def test_internal_topics_are_listed_on_demand(run: Tpc) -> None:
    run("produce", "watched", stdin="x\n")
    run("consume", "watched", "--from", "earliest", "--count", "1", "--group", "listing")
    assert "__consumer_offsets" not in run("topic", "list")
    assert "__consumer_offsets" in run("topic", "list", "--internal")


def test_relaxed_durability_is_a_topic_s_setting(run: Tpc) -> None:
    run("topic", "create", "loose", "--config", "durability=relaxed", "--partitions", "1")
    assert json.loads(run("topic", "describe", "loose", "--json"))["configs"] == {"durability": "relaxed"}
    run("produce", "loose", stdin="a\nb\n")
    assert run.values("loose", "--from", "earliest", "--count", "2") == ["a", "b"]


def test_what_the_broker_refuses_is_said_in_one_line(run: Tpc) -> None:
    run("topic", "create", "twice")
    assert "twice" in run.error("topic", "create", "twice")
    assert "no.such.setting" in run.error("topic", "create", "wrong", "--config", "no.such.setting=1")
    assert "durability" in run.error("topic", "create", "wrong", "--config", "durability=perhaps")
    assert "artition" in run.error("topic", "create", "wrong", "--partitions", "0")
    assert run.error("topic", "create", "not/allowed")
    assert run.error("topic", "delete", "never-made")
    assert "never-made" in run.error("topic", "describe", "never-made")
    assert "--config x: expected K=V" in run.error("topic", "create", "wrong", "--config", "x", code=2)
    assert "wrong" not in run("topic", "list")


# -- produce ----------------------------------------------------------------------------------------------------------


def test_lines_of_standard_input_and_of_a_file(run: Tpc, tmp_path: Path) -> None:
    run("topic", "create", "lines", "--partitions", "1")
    assert run("produce", "lines", stdin="one\n\nthrée, without a newline") == ""
    file = tmp_path / "lines"
    file.write_bytes(b"four\r\n\xff\xfe\n")
    answer = json.loads(run("produce", "lines", str(file), "--json"))
    assert (answer["topic"], answer["records"]) == ("lines", 2)
    values = [json.loads(line)["value"] for line in run.values("lines", "--from", "earliest", "--count", "5", "--json")]
    assert values == ["one", "", "thrée, without a newline", "four\r", {"base64": "//4="}]


def test_keys_stand_before_the_separator(run: Tpc) -> None:
    run("topic", "create", "keyed", "--partitions", "1")
    run("produce", "keyed", "--key-separator", "::", stdin="k1::v1\nk2::v::2\n::no key\n")
    rows = [json.loads(line) for line in run.values("keyed", "--from", "earliest", "--count", "3", "--json")]
    pairs = [(row["key"], row["value"], row["offset"]) for row in rows]
    assert pairs == [("k1", "v1", 0), ("k2", "v::2", 1), ("", "no key", 2)]
    assert all(abs(row["timestamp_ms"] / 1000 - time.time()) < 600 for row in rows)
    assert rows[0] | {"timestamp_ms": 0, "offset": 0} == {
        "topic": "keyed", "partition": 0, "offset": 0, "timestamp_ms": 0, "key": "k1", "value": "v1", "headers": [],
    }  # fmt: skip


def test_a_line_without_separator_is_named_and_those_before_it_are_written(run: Tpc) -> None:
    run("topic", "create", "halfway", "--partitions", "1")
    line = run.error("produce", "halfway", "--key-separator", ":", stdin="a:1\nb:2\nno separator here\nc:3\n")
    assert "line 3 has no key separator ':'" in line
    assert "no separator here" in line
    assert "2 records before it were acknowledged" in line
    assert run.values("halfway", "--from", "earliest", "--exit-at-end") == ["1", "2"]
    assert "must not be empty" in run.error("produce", "halfway", "--key-separator", "", code=2)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression(run: Tpc, compression: str) -> None:
    topic = f"in-{compression}"
    lines = [f"{number:05d} " + "x" * 50 for number in range(500)]
    run("topic", "create", topic, "--partitions", "1")
    run("produce", topic, "--compression", compression, stdin="\n".join(lines))
    assert run.values(topic, "--from", "earliest", "--count", "500") == lines


def test_records_to_one_partition(run: Tpc) -> None:
    run("topic", "create", "aimed", "--partitions", "3")
    run("produce", "aimed", "--partition", "2", stdin="a\nb\n")
    described = json.loads(run("topic", "describe", "aimed", "--json"))
    assert [row["high_watermark"] for row in described["partitions"]] == [0, 0, 2]
    assert run.error("produce", "aimed", "--partition", "7", stdin="a\n")


def test_a_missing_file_is_refused(run: Tpc) -> None:
    done = tpc("produce", "lines", "/no/such/file", "--bootstrap", run.broker.bootstrap, code=2)
    assert "/no/such/file" in done.stderr


# -- consume ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(run: Tpc) -> str:
    run("topic", "create", "ten", "--partitions", "1")
    run("produce", "ten", stdin="".join(f"{number}\n" for number in range(10)))
    return "ten"


def test_from_an_offset(run: Tpc, ten: str) -> None:
    assert run.values(ten, "--from", "7", "--exit-at-end") == ["7", "8", "9"]
    assert run.values(ten, "--from", "2", "--count", "3") == ["2", "3", "4"]
    assert run.values(ten, "--from", "earliest", "--count", "1") == ["0"]


def test_from_latest_gives_only_what_comes_later(run: Tpc) -> None:
    run("topic", "create", "later", "--partitions", "1")
    run("produce", "later", stdin="before\n")
    assert run.values("later", "--from", "latest", "--exit-at-end") == []
    assert run.values("later", "--exit-at-end") == []


def test_from_a_timestamp(run: Tpc) -> None:
    run("topic", "create", "timed", "--partitions", "1")
    run("produce", "timed", stdin="early\n")
    (early,) = (json.loads(line) for line in run.values("timed", "--from", "earliest", "--count", "1", "--json"))
    while time.time() * 1000 <= early["timestamp_ms"] + 1:
        time.sleep(0.001)
    run("produce", "timed", stdin="late\n")
    after = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((early["timestamp_ms"] + 1) // 1000))
    instant = f"{after}.{(early['timestamp_ms'] + 1) % 1000:03d}Z"
    assert run.values("timed", "--from", instant, "--exit-at-end") == ["late"]
    assert run.values("timed", "--from", "2001-01-01", "--exit-at-end") == ["early", "late"]
    assert run.values("timed", "--from", "2100-01-01T00:00:00Z", "--exit-at-end") == []


def test_all_partitions_are_read(run: Tpc) -> None:
    run("topic", "create", "spread", "--partitions", "4")
    for partition in range(4):
        run("produce", "spread", "--partition", str(partition), stdin=f"{partition}a\n{partition}b\n")
    assert sorted(run.values("spread", "--from", "earliest", "--exit-at-end")) == [
        f"{partition}{letter}" for partition in range(4) for letter in "ab"
    ]


def test_a_group_goes_on_where_it_committed(run: Tpc) -> None:
    run("topic", "create", "shared", "--partitions", "1")
    run("produce", "shared", stdin="1\n2\n3\n4\n5\n")
    assert run.values("shared", "--from", "earliest", "--count", "2", "--group", "readers") == ["1", "2"]
    assert run.values("shared", "--from", "earliest", "--count", "2", "--group", "readers") == ["3", "4"]
    assert run.values("shared", "--from", "earliest", "--count", "3", "--group", "others") == ["1", "2", "3"]
    assert run.values("shared", "--from", "1", "--count", "1", "--group", "readers") == ["2"]


def test_a_group_commits_what_was_printed_and_no_more(run: Tpc) -> None:
    run("topic", "create", "exact", "--partitions", "2")
    for partition in range(2):
        run("produce", "exact", "--partition", str(partition), stdin="".join(f"{partition}{n}\n" for n in range(50)))
    seen: list[str] = []
    for count in (7, 30, 63):
        seen += run.values("exact", "--from", "earliest", "--count", str(count), "--group", "exact")
    assert sorted(seen) == sorted(f"{partition}{n}" for partition in range(2) for n in range(50))


@pytest.mark.parametrize("start", ["yesterday", "-1", "1.5", "2026-13-01"])
def test_a_wrong_start_is_refused(run: Tpc, ten: str, start: str) -> None:
    assert f"--from {start}: expected earliest, latest" in run.error("consume", ten, f"--from={start}", code=2)


def test_a_topic_that_is_not_there(run: Tpc) -> None:
    assert run.error("consume", "nowhere", "--from", "earliest")
    assert "nowhere" not in run("topic", "list")


# -- no broker --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "x"],
        ["topic", "describe", "x"],
        ["topic", "delete", "x"],
        ["produce", "x"],
        ["consume", "x"],
    ],
)
def test_no_broker_is_said_in_one_line(arguments: list[str]) -> None:
    address = f"127.0.0.1:{free_port_range(1)}"
    done = tpc(*arguments, "--bootstrap", address, stdin="line\n", code=1)
    assert done.stdout == ""
    assert done.stderr == f"tpc: no broker answers at {address} ([Errno 111] Connection refused); is it running?\n"


def test_any_address_of_several_will_do(run: Tpc) -> None:
    dead = f"127.0.0.1:{free_port_range(1)}"
    tpc("topic", "list", "--bootstrap", f"{dead},{run.broker.bootstrap}")
    done = tpc("topic", "list", "--bootstrap", "localhost", code=2)
    assert "--bootstrap localhost: expected HOST:PORT" in done.stderr
