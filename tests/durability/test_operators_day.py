"""A day of somebody who runs a broker, with the commands of the manual: lag grows and is seen, a topic is altered,
offsets are reset, data are scrubbed and backed up, the node takes a new configuration, its disk fills and is seen
before it is full, and is given room again.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from tests.durability.conftest import against_kafka, new_broker_on_disk
from tests.durability.loop_device import new_file_system
from tests.durability.workload import client_settings
from tests.support.broker_process import TpcBroker, run_command
from tests.support.ports import free_port_range
from tests.support.waiting import PATIENCE_S, eventually

DISK_BYTES = 256 << 20
VALUE_BYTES = 250_000
FIRST, MORE = 60, 40

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="commands of ours")]


class Day:
    """A broker with an admin port on a small disk, and the operator's hands."""

    def __init__(self, broker: TpcBroker, config: Path) -> None:
        self.broker = broker
        self.admin_port = free_port_range(1)
        broker.more_options = ["--admin", str(self.admin_port), "--config", str(config)]

    def tpc(self, *arguments: str, stdin: str = "") -> str:
        done = self.tried(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def tried(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tpc_broker.cli.main", *arguments, "--bootstrap", self.broker.bootstrap]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)

    def node(self, *arguments: str) -> str:
        """A command of `tpc-broker` beside it."""
        done = run_command(arguments[0], "--data", str(self.broker.data_folder), *arguments[1:])
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, text = self.get("/ready")
        return status, json.loads(text)

    def metric(self, name: str) -> float:
        """The largest of the cores."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.split("{")[0].split(" ")[0] == name]
        return max(float(line.split()[-1]) for line in lines)

    def lag(self) -> int:
        told = json.loads(self.tpc("group", "describe", "readers", "--json"))
        return int(told["total_lag"])

    def produce(self, first: int, count: int) -> None:
        """Half of them to each of two partitions: one without a committed offset has no lag."""
        for partition in range(2):
            numbers = range(first + partition, first + count, 2)
            lines = "".join(f"order {number}\n" for number in numbers)
            self.tpc("produce", "orders", "--partition", str(partition), stdin=lines)

    def read(self, count: int) -> list[str]:
        more = ("--group", "readers", "--from", "earliest", "--count", str(count))
        return self.tpc("consume", "orders", *more).splitlines()


def orders(count: int) -> list[str]:
    return sorted(f"order {number}" for number in range(count))


def morning(day: Day) -> None:
    """Lag grows and is seen; the topic gets more partitions; somebody wants everything once more."""
    day.tpc("topic", "create", "orders", "--partitions", "2")
    day.produce(0, FIRST)
    assert sorted(day.read(FIRST)) == orders(FIRST)
    assert day.lag() == 0
    day.produce(FIRST, MORE)
    assert day.lag() == MORE
    day.tpc("topic", "alter", "orders", "--partitions", "4", "--config", "retention.ms=86400000")
    assert "86400000" in day.tpc("config", "get", "topic", "orders", "retention.ms")
    assert sorted(day.read(MORE)) == sorted(set(orders(FIRST + MORE)) - set(orders(FIRST)))
    shown = day.tpc("group", "reset-offsets", "readers", "--topic", "orders", "--to-earliest")
    assert "orders\t0\t" in shown  # what it would do, and nothing more
    assert day.lag() == 0
    day.tpc("group", "reset-offsets", "readers", "--topic", "orders", "--to-earliest", "--execute")
    assert day.lag() == FIRST + MORE
    assert sorted(day.read(FIRST + MORE)) == orders(FIRST + MORE)


def noon(day: Day, folder: Path, config: Path) -> None:
    """Is everything sound? A backup, and then the new configuration."""
    assert "no damage found" in day.node("scrub", "--rate", "1G")
    day.node("backup", str(folder / "backup"))
    day.node("bundle", "--out", str(folder / "bundle.tar.gz"), "--log", str(day.broker.folder / "broker.log"))
    config.write_text("log.segment.bytes=4194304\nlog.segment.delete.delay.ms=200\nnum.partitions=many\n")
    assert run_command("check-config", "--config", str(config)).returncode == 2
    config.write_text(config.read_text().replace("many", "3"))
    assert run_command("check-config", "--config", str(config)).returncode == 0
    day.broker.process.send(signal.SIGUSR2)
    eventually(lambda: day.broker.log_text().count("is ready: ") == 2, "the node is up again")
    assert day.lag() == 0
    assert "num.partitions" in day.tpc("config", "get", "broker", "0", "num.partitions")
    assert day.ready() == (200, {"ready": True, "reasons": [], "warnings": []})


def fill_until_refused(day: Day) -> list[dict[str, Any]]:
    """What `/ready` said while records were still taken, until they are not."""
    producer = Producer(client_settings(day.broker.bootstrap, acks="all", **{"message.timeout.ms": 5_000}))
    failed: list[KafkaError] = []
    said = []
    for number in range(2 * DISK_BYTES // VALUE_BYTES):
        producer.produce("orders", bytes(VALUE_BYTES), partition=number % 4,
                         on_delivery=lambda error, _message: error and failed.append(error))  # fmt: skip
        producer.flush(PATIENCE_S)
        if failed:
            return said
        if number % 10 == 0:
            said.append({"status": day.ready()[0], **day.ready()[1], "free": day.metric("tpc_disk_free_bytes")})
    raise AssertionError("the disk never ran full")


def afternoon(day: Day) -> None:
    """The disk fills: seen while there is room, told when there is none, and over when room was made."""
    said = fill_until_refused(day)
    seen = [one for one in said if one["warnings"]]
    assert seen, "the disk was full before anybody could see it"
    assert "the disk is nearly full" in seen[0]["warnings"][0]
    assert seen[0]["status"] == 200
    assert said[-1]["free"] < said[0]["free"] / 4
    status, told = day.ready()
    assert status == 503
    assert [reason for reason in told["reasons"] if reason.endswith("refuses records: the disk is full")]
    assert day.metric("tpc_disk_full") == 1
    assert "the disk is full: requests are refused until this is over" in day.broker.log_text()
    trim = ("topic", "trim", "orders", "--before", "latest", "--execute")
    # A partition whose files could not be written is offline until it is mended, and refuses until then.
    eventually(lambda: day.tried(*trim).returncode == 0, "room can be made")
    eventually(lambda: day.ready()[0] == 200, "ready when there is room again")
    assert day.metric("tpc_disk_full") == 0
    day.produce(1000, 4)


def test_a_day(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("log.segment.bytes=4194304\nlog.segment.delete.delay.ms=200\nnum.partitions=2\n")
    with new_file_system(tmp_path / "disk", DISK_BYTES) as disk:
        broker = new_broker_on_disk(tmp_path / "broker", disk, 2)
        assert isinstance(broker, TpcBroker)
        day = Day(broker, config)
        try:
            broker.start()
            morning(day)
            noon(day, tmp_path, config)
            afternoon(day)
            assert "scrub: " in day.node("status")
            broker.stop()
        finally:
            broker.kill()
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    second = Day(TpcBroker(tmp_path / "second", 2), config)
    second.broker.folder.mkdir()
    restored = ["restore", str(tmp_path / "backup"), "--data", str(second.broker.data_folder)]
    assert run_command(*restored).returncode == 0
    try:
        second.broker.start()
        assert second.lag() == 0
        everything = second.tpc("consume", "orders", "--from", "earliest", "--count", str(FIRST + MORE)).splitlines()
        assert sorted(everything) == orders(FIRST + MORE)
    finally:
        second.broker.kill()
