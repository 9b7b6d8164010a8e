"""`tpc-broker backup` and `restore`: a copy of a running node, of one moment, and what they refuse.

The copy is opened by a second broker and held against what clients of the first one were told before the command.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.durability.conftest import against_kafka
from tests.durability.loads import LARGE, MIXED, ONCE, problems_of_log
from tests.durability.loop_device import new_file_system
from tests.durability.readback import compare, read_everything
from tests.durability.workload import Workload, client_settings, create_topics
from tests.support.broker_process import TpcBroker, run_command
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import limits
from tpc_broker.log.journal import REGION_BLOCK_FIRST, Superblock
from tpc_broker.operations.backup import JournalEnd, stretches
from tpc_broker.operations.backup_hold import abstract_name
from tpc_broker.telemetry.status import ask_control

LOADS = {"mixed": MIXED, "large": LARGE, "in place": ONCE}
BACKUPS = 3
VALUE = b"0123456789" * 10_000

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="a command of ours")]


def back_up(broker: TpcBroker, target: Path, *more: str) -> dict[str, Any]:
    done = run_command("backup", str(target), "--data", str(broker.data_folder), "--json", *more)
    assert done.returncode == 0, done.stderr + broker.log_text()[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def restored(source: Path, folder: Path, cores_count: int = 2) -> TpcBroker:
    """A second broker on what a backup holds."""
    broker = TpcBroker(folder, cores_count)
    folder.mkdir()
    done = run_command("restore", str(source), "--data", str(broker.data_folder))
    assert done.returncode == 0, done.stderr
    broker.start()
    return broker


def refusal(*arguments: object) -> str:
    """The one line with which a command refuses."""
    done = run_command(*map(str, arguments))
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert done.stderr.startswith("tpc-broker: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("tpc-broker: ").rstrip("\n")


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_what_was_acknowledged_before_is_in_it_and_nothing_is_damaged(load, tmp_path, seed):
    broker = TpcBroker(tmp_path / "broker", 2, load.settings)
    broker.start()
    workload = Workload(
        broker.bootstrap, load.topics, producers_count=4, records_per_second=load.records_per_second, seed=seed,
        config=load.config, is_rationed=True,
    )  # fmt: skip
    try:
        workload.start()
        for number in range(BACKUPS):
            workload.allow(load.bytes_max // 8)
            workload.run_for(1.5)
            moment = workload.ledger.moment()
            report = back_up(broker, tmp_path / f"backup-{number}")
            assert report["is_running"]
            assert report["stood_still_ms"] < 2 * limits.BACKUP_FREEZE_MS
            copy = restored(tmp_path / f"backup-{number}", tmp_path / f"copy-{number}")
            try:
                problems = compare(copy.bootstrap, workload.ledger, moment, everything=False)
                assert problems + problems_of_log(copy.log_text()) == []
                copy.stop()
                assert run_command("scrub", "--rate", "2G", "--data", str(copy.data_folder)).returncode == 0
                assert not (copy.data_folder / "lost+found").exists()
            finally:
                copy.kill()
            assert not (broker.data_folder / "backup-staging").exists()
        workload.run_for(0.5)
        workload.finish()
        moment = workload.ledger.moment()
        assert compare(broker.bootstrap, workload.ledger, moment, everything=True) == []
        broker.kill()
        broker.start()
        assert compare(broker.bootstrap, workload.ledger, moment, everything=True) == []
        assert problems_of_log(broker.log_text()) == []
    finally:
        workload.abandon()
        broker.kill()


CHAINS = {"up": (0, 1), "down": (1, 0)}


class Chain:
    """A client that writes a number to one partition and, when that is acknowledged, to the other one: so the other one
    never has a number that the first one has not. Each core has one of them, so there are two chains.
    """

    def __init__(self, broker: TpcBroker) -> None:
        self._producer = Producer(client_settings(broker.bootstrap, **{"acks": "all", "linger.ms": 0}))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for topic, partitions in CHAINS.items():
                for partition in partitions:
                    self._producer.produce(topic, str(number).encode(), partition=partition)
                    self._producer.flush()
            number += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)


def test_nothing_is_in_it_without_its_cause_on_another_core(tmp_path):
    broker = TpcBroker(tmp_path / "broker", 2)
    broker.start()
    create_topics(broker.bootstrap, dict.fromkeys(CHAINS, 2))
    chain = Chain(broker)
    try:
        for number in range(4):
            back_up(broker, tmp_path / f"backup-{number}")
            copy = restored(tmp_path / f"backup-{number}", tmp_path / f"copy-{number}")
            try:
                for topic, places in CHAINS.items():
                    stored = read_everything(copy.bootstrap, [(topic, partition) for partition in places])
                    first, then = (one.high_watermark for one in stored.values())
                    assert then <= first <= then + 1
            finally:
                copy.kill()
        assert then > 0
    finally:
        chain.end()
        broker.kill()


@pytest.fixture(scope="module")
def filled(module_tmp_path: Path) -> Iterator[TpcBroker]:
    """Two partitions with some segments each."""
    broker = TpcBroker(module_tmp_path / "filled", 2, {"log.segment.bytes": str(1 << 20)})
    try:
        broker.start()
        create_topics(broker.bootstrap, {"t": 2})
        produce(broker, 60)
        yield broker
    finally:
        broker.kill()


def produce(broker: TpcBroker, count: int) -> None:
    producer = Producer(client_settings(broker.bootstrap, acks="all"))
    for number in range(count):
        producer.produce("t", VALUE, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0


def ends(broker: TpcBroker) -> list[int]:
    stored = read_everything(broker.bootstrap, [("t", 0), ("t", 1)])
    assert all(value == VALUE for one in stored.values() for _offset, value in one.records)
    return [one.high_watermark for one in stored.values()]


def test_segments_that_are_written_no_more_are_shared(filled, tmp_path):
    expected = ends(filled)
    filled.restart()
    linked, copied = back_up(filled, tmp_path / "linked"), back_up(filled, tmp_path / "copied", "--copy")
    assert linked["linked_bytes"] > 2 << 20 > copied["linked_bytes"] == 0
    assert linked["files"].keys() == copied["files"].keys()
    shared = [path for path in (tmp_path / "linked").rglob("*.log") if path.stat().st_nlink > 1]
    assert shared
    assert not [path for path in (tmp_path / "linked").rglob("*") if path.is_file() and path.stat().st_nlink > 1
                and path.suffix != ".log"]  # fmt: skip
    before = {path: path.read_bytes() for path in (tmp_path / "linked").rglob("*") if path.is_file()}
    copy = restored(tmp_path / "linked", tmp_path / "copy", cores_count=1)  # another number of cores
    try:
        assert ends(copy) == expected
        produce(copy, 4)
        produce(filled, 4)
        filled.kill()
        filled.start()
        assert {path: path.read_bytes() for path in before} == before
        assert ends(filled) == ends(copy) == [end + 2 for end in expected]
    finally:
        copy.kill()
    times = [(tmp_path / place / "topics/t-0/00000000000000000000.log").stat().st_mtime_ns
             for place in ("linked", "copied", "copy/data")]  # fmt: skip
    assert len(set(times)) == 1  # retention goes by it


def test_a_stopped_broker_s_directory(filled, tmp_path):
    expected = ends(filled)
    for end in (filled.stop, filled.kill):
        end()
        report = back_up(filled, tmp_path / end.__name__)
        assert not report["is_running"]
        filled.start()
        copy = restored(tmp_path / end.__name__, tmp_path / f"copy-{end.__name__}")
        try:
            assert ends(copy) == expected
        finally:
            copy.kill()


def test_what_is_refused(filled, tmp_path):
    data, target = filled.data_folder, tmp_path / "backup"
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").touch()
    assert refusal("backup", there, "--data", data) == (
        f"the backup's directory {there} is not empty: it has mine; give another one"
    )
    nowhere = tmp_path / "no" / "where"
    assert refusal("backup", nowhere, "--data", data) == (
        f"the backup's directory {nowhere}: there is no directory {nowhere.parent}"
    )
    inside = data / "topics" / "backup"
    assert refusal("backup", inside, "--data", data) == (
        f"the backup's directory {inside} lies in the data directory; give one elsewhere"
    )
    assert refusal("backup", target, "--data", tmp_path) == f"{tmp_path} is no data directory of a broker"
    back_up(filled, target)
    hint = f"{target} is a backup; see: tpc-broker restore {target} --data DIR"
    for command in (("backup", target, "--data", data), ("serve", "--data", target), ("repair", "--data", target)):
        assert refusal(*command) == hint
    assert refusal("restore", target, "--data", data).startswith(f"the data directory {data} is not empty: it has .")
    assert refusal("restore", there, "--data", tmp_path / "new") == f"{there} is no backup: it has no backup.json"
    name = next(iter(json.loads((target / "backup.json").read_text())["files"]))
    size = (target / name).stat().st_size
    with (target / name).open("ab") as file:
        file.write(b"x")
    assert refusal("restore", target, "--data", tmp_path / "new") == (
        f"{target / name} has {size + 1:,} bytes, and {size:,} when it was made; it was changed"
    )
    (target / name).unlink()
    told = refusal("restore", target, "--data", tmp_path / "new")
    assert told == f"{target / name}: No such file or directory; the backup is not whole"
    manifest = json.loads((target / "backup.json").read_text())
    for content, wrong in (
        ({**manifest, "format": 3}, "a backup of format 3; known are 1 and 2"),
        ({**manifest, "files": {"../../etc/passwd": 1}}, "'../../etc/passwd' lies outside of a data directory"),
        ([], "cannot be read"),
    ):
        (target / "backup.json").write_text(json.dumps(content))
        assert wrong in refusal("restore", target, "--data", tmp_path / "new")
    assert not (tmp_path / "new").exists()


ENDING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with SIG_IGN
from pathlib import Path
from tpc_broker.operations.backup import backup, restore
calls = 0
def on_progress(done, total):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.{0})
if sys.argv[1] == "restore":
    restore(Path(sys.argv[2]), Path(sys.argv[3]), on_progress)
else:
    backup(Path(sys.argv[2]), Path(sys.argv[3]), on_progress, with_links=False)
"""


def ended(name: str, *arguments: object) -> None:
    """A command that gets a signal in its midst."""
    done = subprocess.run([sys.executable, "-c", ENDING.format(name), *map(str, arguments)], capture_output=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.returncode != 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_one_that_was_interrupted_is_recognised(name, filled, tmp_path):
    data, target, folder = filled.data_folder, tmp_path / "backup", tmp_path / "restored"
    ended(name, "backup", data, target)
    assert refusal("restore", target, "--data", folder) == f"{target} holds a backup that was not finished; remove it"
    assert refusal("serve", "--data", target) == f"{target} holds a backup that was not finished; remove it"
    assert refusal("backup", target, "--data", data) == f"{target} holds a backup that was not finished; remove it"
    produce(filled, 2)
    back_up(filled, tmp_path / "whole")
    assert not (data / "backup-staging").exists()
    ended(name, "restore", tmp_path / "whole", folder)
    told = f"{folder} holds a restore that was not finished; remove it and restore again"
    assert refusal("serve", "--data", folder) == told
    assert refusal("restore", tmp_path / "whole", "--data", folder) == told


def test_a_start_removes_the_links_that_a_killed_one_left(filled, tmp_path):
    staging = filled.data_folder / "backup-staging"
    ended("SIGKILL", "backup", filled.data_folder, tmp_path / "backup")
    filled.restart()
    eventually(lambda: not staging.exists(), "the links are removed")
    back_up(filled, tmp_path / "whole")


def test_a_disk_that_is_too_small(filled, tmp_path):
    with new_file_system(tmp_path / "disk", 6 << 20) as disk:
        target = disk.mount_point / "backup"
        told = refusal("backup", target, "--data", filled.data_folder)
        assert told.startswith(f"{disk.mount_point} has ")
        assert told.endswith(" are needed")
        assert not target.exists()
    whole = tmp_path / "whole"
    back_up(filled, whole, "--copy")
    with_limit = {"prefix": ["prlimit", "--fsize=100000"]}  # an error in the midst, as of a disk that fills meanwhile
    done = run_command("restore", str(whole), "--data", str(tmp_path / "new"), **with_limit)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"File too large; {tmp_path / 'new'} is not whole, remove it\n")
    assert "not finished" in refusal("serve", "--data", tmp_path / "new")


def test_a_core_that_is_restarted_meanwhile(filled, tmp_path):
    script = ENDING.replace("os.kill(os.getpid(), signal.{0})", "os.kill({0}, signal.SIGKILL)")
    pid = filled.core_process(1).pid
    done = subprocess.run([sys.executable, "-c", script.format(pid), "backup", filled.data_folder, tmp_path / "b"],
                          capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    assert "a core was restarted meanwhile" in done.stderr
    filled.wait_core_replaced(1, pid)
    assert "not finished" in refusal("serve", "--data", tmp_path / "b")


def test_a_backup_that_hangs_holds_nobody_for_long(filled):
    """It has cores hold their checkpoints, freezes them, and says no more."""
    token = secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(abstract_name(token))
        listening.listen()
        listening.settimeout(PATIENCE_S)
        assert ask_control(filled.data_folder, {"command": "backup", "token": token})["cores"].keys() == {"0", "1"}
        cores = [listening.accept()[0] for _core in range(2)]
        for core in cores:
            core.settimeout(PATIENCE_S)
            assert json.loads(core.recv(4096))["kind"] == "held"
            core.send(b'{"kind": "freeze"}')
            assert json.loads(core.recv(4096))["kind"] == "frozen"
            went = json.loads(core.recv(4096))
            assert (went["kind"], went["in_time"]) == ("went", False)
            assert went["stood_still_ms"] >= limits.BACKUP_FREEZE_MS
        before = ends(filled)
        produce(filled, 2)
        assert ends(filled) == [end + 1 for end in before]
        for core in cores:
            assert core.recv(4096) == b""  # let go
            core.close()
    eventually(lambda: filled.log_text().count("it was let go") == 2, "both cores say so")


WRONG_REQUESTS = ["", "{", "[]", "[" * 4000, '{"command": "stop"}', '{"command": "backup"}', "x" * 9000]


@pytest.mark.parametrize("request_line", WRONG_REQUESTS, ids=lambda line: line[:20] or "nothing")
def test_the_control_socket_takes_nothing_else(request_line, filled):
    with socket.socket(socket.AF_UNIX) as connection:
        folder = os.open(filled.data_folder, os.O_RDONLY)
        connection.connect(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
        connection.sendall(request_line.encode() + b"\n")
        connection.shutdown(socket.SHUT_WR)
        assert "error" in json.loads(connection.recv(65536))
    assert ends(filled)[0] > 0


@pytest.mark.parametrize(
    ("replay", "end", "expected"),
    [
        ((10, 5), (10, 5), []),
        ((10, 5), (20, 9), [(10, 20)]),
        ((10, 5), (4, 9), [(10, 102), (2, 4)]),
        ((10, 5), (2, 9), [(10, 102), (2, 2)]),
        ((10, 5), (10, 9), [(10, 102), (2, 10)]),
        ((10, 5), None, [(2, 102)]),
    ],
)
def test_which_blocks_of_a_journal_are_copied(replay, end, expected):
    superblock = Superblock(bytes(16), 1, 200, 100, replay[0], replay[1], 0, 0)
    assert REGION_BLOCK_FIRST == 2
    assert stretches(superblock, None if end is None else JournalEnd(*end)) == expected
