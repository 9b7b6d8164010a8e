"""``tpc`` against a running broker: topics, produce, consume, output for people and programs, errors in one line."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from tests.cli.conftest import OURS_ONLY, Tpc
from tests.support.ports import free_port_range
from tests.support.today import now_ms
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.cli.connection import leave_interrupts_alone
from tpc_broker.cli.main import main

COMMAND = [sys.executable, "-m", "tpc_broker.cli.main"]
WAITS_AN_HOUR = """
from tpc_broker.cli import connection
connection.REQUEST_TIMEOUT_S = 3600.0
from tpc_broker.cli.main import main
main()
"""


def tpc(*arguments: str, stdin: str | bytes = "", code: int = 0) -> Result:
    """The command without the address of a broker."""
    leave_interrupts_alone()
    done = CliRunner().invoke(main, arguments, input=stdin, catch_exceptions=False)
    assert done.exit_code == code, (arguments, done.exit_code, done.stdout, done.stderr)
    return done


@pytest.fixture
def run(command: Tpc) -> Tpc:
    return command


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_from_creation_to_deletion(run: Tpc) -> None:
    made = run("topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=86400000")
    assert made == "Created topic orders.\n"
    assert "orders\t3" in run("topic", "list").splitlines()
    lines = run("topic", "describe", "orders").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["Partition", "0", "1", "2", "Setting", "retention.ms"]
    assert lines[5] == "retention.ms\t86400000"
    described = json.loads(run("topic", "describe", "orders", "--json"))
    assert described["configs"] == {"retention.ms": "86400000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert all((row["log_start_offset"], row["high_watermark"]) == (0, 0) for row in described["partitions"])
    assert {row["leader"] for row in described["partitions"]} <= {0, 1}
    listed = json.loads(run("partition", "list", "orders", "--json"))
    assert [(row["topic"], row["partition"]) for row in listed] == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert all(row["replicas"] == row["in_sync"] == [row["leader"]] and row["offline"] == [] for row in listed)
    assert [row["replicas"] for row in listed] == [row["replicas"] for row in described["partitions"]]
    assert [line.split("\t")[0] for line in run("partition", "list", "orders").splitlines()] == [
        "Partition", "orders-0", "orders-1", "orders-2",
    ]  # fmt: skip
    for option in ("--under-replicated", "--leaderless"):
        assert run("partition", "list", "orders", option) == ""
    leader = str(listed[0]["leader"])
    on_it = [row["partition"] for row in listed if str(row["leader"]) == leader]
    found = json.loads(run("partition", "list", "orders", "--broker", leader, "--json"))
    assert [row["partition"] for row in found] == on_it
    assert run("topic", "delete", "orders") == "Deleted topic orders.\n"
    assert "orders" not in run("topic", "list")


def test_topics_for_programs(run: Tpc) -> None:
    made = run("topic", "create", "programs", "--partitions", "2", "--json")
    assert json.loads(made) == {"topic": "programs", "created": True}
    assert {"topic": "programs", "partitions": 2} in json.loads(run("topic", "list", "--json"))
    assert json.loads(run("topic", "delete", "programs", "--json")) == {"topic": "programs", "deleted": True}


def test_internal_topics_are_listed_on_demand(run: Tpc) -> None:
    run("produce", "watched", stdin="x\n")
    run("consume", "watched", "--from", "earliest", "--count", "1", "--group", "listing")
    assert "__consumer_offsets" not in run("topic", "list")
    assert "__consumer_offsets" in run("topic", "list", "--internal")


@OURS_ONLY
def test_relaxed_durability_is_a_topic_s_setting(run: Tpc) -> None:
    run("topic", "create", "loose", "--config", "durability=relaxed", "--partitions", "1")
    assert json.loads(run("topic", "describe", "loose", "--json"))["configs"] == {"durability": "relaxed"}
    run("produce", "loose", stdin="a\nb\n")
    assert run.values("loose", "--from", "earliest", "--count", "2") == ["a", "b"]


def test_what_the_broker_refuses_is_said_in_one_line(run: Tpc) -> None:
    run("topic", "create", "twice")
    assert "twice" in run.error("topic", "create", "twice", code=5)
    assert "no.such.setting" in run.error("topic", "create", "wrong", "--config", "no.such.setting=1")
    assert "durability" in run.error("topic", "create", "wrong", "--config", "durability=perhaps")
    assert run.error("topic", "create", "not/allowed")
    assert run.error("topic", "delete", "never-made", code=4)
    assert "never-made" in run.error("topic", "describe", "never-made", code=4)
    assert "--config x: expected NAME=VALUE" in run.error("topic", "create", "wrong", "--config", "x", code=2)
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
    assert all(abs(row["timestamp_ms"] - now_ms()) < 600_000 for row in rows)
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
    assert run.error("produce", "aimed", "--partition", "7", stdin="a\n", code=4)


def test_a_missing_file_is_refused(run: Tpc) -> None:
    done = tpc("produce", "lines", "/no/such/file", "--bootstrap", run.broker.bootstrap, code=2)
    assert "/no/such/file" in done.stderr


# -- consume ----------------------------------------------------------------------------------------------------------


def make_ten(command: Tpc) -> str:
    command("topic", "create", "ten", "--partitions", "1")
    command("produce", "ten", stdin="".join(f"{number}\n" for number in range(10)))
    return "ten"


@pytest.fixture
def ten(command: Tpc) -> str:
    return command.once(make_ten)


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
    eventually(lambda: now_ms() > early["timestamp_ms"] + 1, "another time stamp")
    run("produce", "timed", stdin="late\n")
    after = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((early["timestamp_ms"] + 1) // 1000))
    instant = f"{after}.{(early['timestamp_ms'] + 1) % 1000:03d}Z"
    assert run.values("timed", "--from", instant, "--exit-at-end") == ["late"]
    assert run.values("timed", "--from", "2001-01-01", "--exit-at-end") == ["early", "late"]
    assert run.values("timed", "--from", "2100-01-01T00:00:00Z", "--exit-at-end") == []
    assert run("topic", "offsets", "timed") == "Partition\tLog start\tHigh watermark\n0\t0\t2\n"
    assert run("topic", "offsets", "timed", "--at", instant) == "Partition\tOffset\n0\t1\n"
    found = json.loads(run("topic", "offsets", "timed", "--at", "2100-01-01T00:00:00Z", "--json"))
    assert found == {"topic": "timed", "partitions": [{"partition": 0, "offset": None}]}


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


def test_a_replication_factor_is_asked_for_and_refused_in_one_line(run: Tpc) -> None:
    assert run("topic", "create", "alone", "--replication-factor", "1") == "Created topic alone.\n"
    said = run.error("topic", "create", "three", "--replication-factor", "3", code=1)
    assert "target replication factor of 3 cannot be reached" in said
    assert said.count("\n") <= 1


def test_a_topic_that_is_not_there(run: Tpc) -> None:
    assert run.error("consume", "nowhere", "--from", "earliest", code=4)
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
    done = tpc(*arguments, "--bootstrap", address, stdin="line\n", code=3)
    assert done.stdout == ""
    assert done.stderr == f"tpc: no broker answers at {address} ([Errno 111] Connection refused); is it running?\n"


def test_any_address_of_several_will_do(run: Tpc) -> None:
    dead = f"127.0.0.1:{free_port_range(1)}"
    tpc("topic", "list", "--bootstrap", f"{dead},{run.broker.bootstrap}")
    done = tpc("topic", "list", "--bootstrap", "localhost", code=2)
    assert "--bootstrap localhost: expected HOST:PORT" in done.stderr


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_number_of_partitions_out_of_range_is_refused_by_name(run: Tpc) -> None:
    for partitions in ("200000", "0", "-1"):
        said = tpc("topic", "create", "many", "--partitions", partitions, code=2).stderr
        assert "Traceback" not in said
        assert f"{partitions} is not in the range 1<=x<=100000" in said


@pytest.mark.parametrize("address", [":99999", "127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:²", f"h:{'9' * 5000}"])
def test_an_address_that_cannot_be_one_is_refused_by_name(address: str) -> None:
    said = tpc("topic", "list", "--bootstrap", address, code=2).stderr
    assert said.startswith(f"tpc: --bootstrap {address}: ")
    assert "1 to 65535" in said or "expected HOST:PORT" in said


@pytest.mark.parametrize("name", ["a..b", "b" * 64, ".b"])
@pytest.mark.parametrize("arguments", [("topic", "list"), ("cluster",)])
def test_a_name_that_no_host_can_have_is_refused_by_name(run: Tpc, arguments: tuple[str, ...], name: str) -> None:
    refused = f"tpc: --bootstrap {name}:9092: no host has such a name: between dots there are 1 to 63 characters"
    for address in (f"{name}:9092", f"{run.broker.bootstrap},{name}:9092"):
        assert tpc(*arguments, "--bootstrap", address, code=2).stderr.startswith(refused)


def test_a_line_that_is_too_long_is_named_and_those_before_it_are_written(run: Tpc) -> None:
    run("topic", "create", "long", "--partitions", "1")
    line = run.error("produce", "long", stdin="first\n" + "x" * 2_000_000 + "\nlast\n")
    assert "line 2 is a record of 2000000 bytes; the largest that is sent has 1000000" in line
    assert "1 records before it were acknowledged" in line
    assert run.values("long", "--from", "earliest", "--exit-at-end") == ["first"]


def test_a_record_that_the_topic_refuses_is_named_by_its_line(run: Tpc) -> None:
    run("topic", "create", "small", "--partitions", "1", "--config", "max.message.bytes=1000")
    line = run.error("produce", "small", stdin="y" * 5_000 + "\n")
    assert "1 records were not acknowledged, the first is line 1 (5000 bytes): " in line


def test_an_offset_that_no_partition_has_is_an_error(run: Tpc) -> None:
    run("topic", "create", "brief", "--partitions", "1")
    run("produce", "brief", stdin="a\nb\n")
    line = run.error("consume", "brief", "--from", "99999999", "--exit-at-end")
    assert "--from 99999999: no partition has this offset: brief-0 has [0, 2)" in line
    assert run.values("brief", "--from", "1", "--exit-at-end") == ["b"]
    assert run.values("brief", "--from", "2", "--exit-at-end") == []


def test_output_to_a_full_device_is_one_line(run: Tpc) -> None:
    run("topic", "create", "full", "--partitions", "1")
    run("produce", "full", stdin="a\n")
    address = ("--bootstrap", run.broker.bootstrap)
    for arguments in (("topic", "list"), ("consume", "full", "--from", "earliest", "--exit-at-end")):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*COMMAND, *arguments, *address], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False
            )
        assert done.stderr.decode().splitlines() == ["tpc: No space left on device"]
        assert done.returncode == 1


def is_connected(process: psutil.Process) -> bool:
    """The command's own look whether anybody listens is closed at once: what stays is librdkafka's."""
    return any(one.status == "ESTABLISHED" for one in process.net_connections())


def interrupted(arguments: tuple[str, ...], command: list[str], has_begun: Callable[[psutil.Process], bool]) -> str:
    """What the command says on standard error when Ctrl-C has ended it."""
    # Where the tests run in a background job, SIGINT is ignored, and a child would inherit that: not so on a terminal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        eventually(lambda: process.poll() is not None or has_begun(psutil.Process(process.pid)), "it has begun")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        _out, err = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    return err.decode()


@pytest.mark.parametrize("name", ["consume", "produce"])
def test_every_command_ends_alike_after_ctrl_c(run: Tpc, name: str) -> None:
    run("topic", "create", f"cut-{name}", "--partitions", "1")
    arguments = (name, f"cut-{name}", "--bootstrap", run.broker.bootstrap)
    assert "interrupted" in interrupted(arguments, COMMAND, is_connected)


@pytest.mark.parametrize("arguments", [("topic", "list"), ("consume", "t")])
def test_ctrl_c_is_heard_while_librdkafka_waits(arguments: tuple[str, ...]) -> None:
    """Somebody listens and never answers, and librdkafka would wait an hour for that."""
    switches: list[int] = []

    def waits(process: psutil.Process) -> bool:
        switches.append(process.num_ctx_switches().voluntary)  # of the main thread
        return switches[-2:-1] == switches[-1:] and process.status() == "sleeping" and is_connected(process)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        interrupted(
            (*arguments, "--bootstrap", f"127.0.0.1:{silent.getsockname()[1]}"),
            [sys.executable, "-c", WAITS_AN_HOUR],
            waits,
        )


def test_what_is_not_there_is_named(command: Tpc) -> None:
    """A topic by all commands in the same words."""
    missing = "tpc: there is no topic 'nowhere'; `tpc topic list` shows those that are"
    for line in (
        "topic describe nowhere", "topic delete nowhere", "topic alter nowhere --partitions 3", "topic offsets nowhere",
        "topic alter nowhere --config retention.ms=1", "topic trim nowhere --before latest", "partition list nowhere",
        "consume nowhere --exit-at-end", "config get topic nowhere", "config set topic nowhere retention.ms=1",
    ):  # fmt: skip
        assert command.error(*line.split(), code=4) == missing, line
    done = CliRunner().invoke(main, ["topic", "list", "--bootstrap", ""])
    assert (done.exit_code, done.stderr) == (2, "tpc: --bootstrap : expected HOST:PORT, for example 127.0.0.1:9092\n")


COUNTS_LATE = """
import time
from tpc_broker.cli.consume import Commits
from tpc_broker.cli.main import main
count = Commits.printed
Commits.printed = lambda *arguments: (time.sleep(0.3), count(*arguments))
main()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("options", "printed"),
    [([], ["1", "2", "3"]), (["--json"], ["1", "2", "3"]), (["--rate", "0.002"], ["1"])],
    ids=["values", "json", "held back"],
)
def test_a_member_that_is_ended_has_committed_what_it_printed(
    run: Tpc, options: list[str], printed: list[str], unbuffered: str
) -> None:
    topic = f"ended-{len(printed)}-{len(options)}-{unbuffered}"
    run("topic", "create", topic, "--partitions", "1")
    run("produce", topic, stdin="1\n2\n3\n")
    arguments = ["consume", topic, "--from", "earliest", "--group", topic, *options, "--bootstrap"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would have it ignored
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", COUNTS_LATE, *arguments, run.broker.bootstrap],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], PATIENCE_S)[0], "nothing printed"
            lines = [process.stdout.readline().decode() for _ in printed]
            assert [json.loads(line)["value"] if "--json" in options else line[:-1] for line in lines] == printed
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
    run("produce", topic, stdin="4\n")
    following = str(len(printed) + 1)
    assert run.values(topic, "--from", "earliest", "--count", "1", "--group", topic) == [following]


def test_a_group_that_is_put_to_an_offset_that_no_partition_has_is_told(run: Tpc) -> None:
    run("topic", "create", "few", "--partitions", "1")
    run("produce", "few", stdin="1\n")
    said = run.error("consume", "few", "--from", "5000", "--group", "few", code=1)
    assert said == "tpc: --from 5000: no partition has this offset: few-0 has [0, 1)"
