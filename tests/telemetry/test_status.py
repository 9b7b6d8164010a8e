"""`tpc-broker status`: what a running broker counts, and what the command says when there is none."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.broker_process import TpcBroker, run_here
from tests.support.cleaning_jobs import REPORT
from tests.support.shared_servers import SharedBroker, once
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import model
from tpc_broker.storage.upkeep.cleaning_status import CleaningBook
from tpc_broker.telemetry.counters import CoreStatus
from tpc_broker.telemetry.status import (
    SOCKET_NAME,
    BrokerStatus,
    _of_cleaning,
    _within,
    bind_status,
    serve_status,
    socket_address,
    status_report,
)

EXIT_CANNOT_RUN = 2
RECORDS = 40


@pytest.fixture
def used(shared_broker: SharedBroker) -> SharedBroker:
    """Under a path longer than the address of a Unix socket may be."""
    assert len(str(shared_broker.data_folder / SOCKET_NAME)) > 107
    once(shared_broker, use, shared_broker)
    return shared_broker


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[TpcBroker]:
    """For what it does not survive; each test leaves it running."""
    broker = TpcBroker(module_tmp_path, cores_count=1)
    broker.start()
    assert total(status_of(broker), "plane", "produces_taken") == 0
    yield broker
    broker.kill()


def status_of(broker: TpcBroker) -> dict[str, Any]:
    """Asked again until each core has answered in time."""

    def told() -> dict[str, Any] | None:
        done = run_here("status", "--data", str(broker.data_folder), "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found if all("counters" in core for core in found["cores"]) else None

    return eventually(told, "all cores' counters") or {}


def text_of(broker: TpcBroker) -> str:
    """For people. A core that a busy machine keeps waiting for a second has no figures in it."""
    done = run_here("status", "--data", str(broker.data_folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def total(status: dict[str, Any], part: str, name: str) -> int:
    return sum(core["counters"][part][name] for core in status["cores"])


def use(broker: TpcBroker) -> None:
    """Write records one by one, each to one of two cores, and read all of them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("test-status", 2, 1)])["test-status"].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce("test-status", b"value", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "test-status", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("test-status", number, 0) for number in range(2)])
    read = 0
    while read < RECORDS:
        read += len(consumer.consume(RECORDS, timeout=1))
    consumer.close()
    mover = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "test-status"})
    mover.init_transactions(PATIENCE_S)
    mover.begin_transaction()
    mover.produce("test-status", b"moved", partition=0)
    mover.commit_transaction(PATIENCE_S)


def test_the_counters_are_those_of_what_was_done(used: TpcBroker) -> None:
    found = status_of(used)
    assert [core["core"] for core in found["cores"]] == [0, 1]
    assert [core["pid"] for core in found["cores"]] == [used.core_process(core).pid for core in (0, 1)]
    assert found["pid"] == used.process.processes()[0].pid
    assert all(core["ready"] and core["restarts"] == 0 for core in found["cores"])
    assert total(found, "plane", "produces_taken") + total(found, "plane", "produce_fallbacks") >= RECORDS
    assert total(found, "plane", "produces_taken") > 0
    left = sum(sum(core["counters"]["fetch_fallbacks"].values()) for core in found["cores"])
    assert total(found, "fetches", "taken") + left > 0
    eventually(lambda: all(map(are_measured, status_of(used)["cores"])), "each commit is among the times")
    for core in found["cores"]:
        counters = core["counters"]
        assert sum(counters["commit_spans"]) >= counters["journal"]["commits_durable"] > 0
        assert counters["commit_spans"][0] == 0, "no disk writes within a microsecond"
    assert total(found, "connections", "requests") > RECORDS
    assert all(core["counters"]["ring"]["turns"] > 0 for core in found["cores"])
    eventually(lambda: total(status_of(used), "transactions", "committed"), "its transaction is counted", not_yet=())


def are_measured(core: dict[str, Any]) -> bool:
    """Not while one is on the disk whose turn has not come: those in front of it are under way."""
    counters = core["counters"]
    durable: int = counters["journal"]["commits_durable"]
    return sum(counters["commit_spans"]) == durable


def test_the_text_has_the_same_figures(used: TpcBroker) -> None:
    def of_what_is_told_to_programs() -> str:
        """Looked at twice: another test's client may have sent something in between."""
        taken = [core["counters"]["plane"]["produces_taken"] for core in status_of(used)["cores"]]
        told = text_of(used)
        is_whole = "no answer" not in told and all(f"{count:,} answered in C" in told for count in taken)
        return told if is_whole else ""

    text = eventually(of_what_is_told_to_programs, "the text of two cores that answered in time")
    assert text.count("core ") == 2
    assert all(word in text for word in ("commits, ", "produce", "fetch", "sessions", "journal", "loop"))
    line = r"^  transactions \d+ open of \d+ ids?, \d+ ending with .* questions? to coordinators$"
    assert re.search(line, text, re.MULTILINE)


def test_shares_of_queues_are_shown_and_change_while_it_runs(used: TpcBroker) -> None:
    told = status_of(used)["cores"]
    coordinating = {core["core"] for core in told if core["counters"]["queues"]["coordinators"]["selections"]}
    assert coordinating
    for core in told:
        queues = core["counters"]["queues"]
        assert list(queues) == ["clients", "replication", "coordinators", "maintenance", "background"]
        assert [queue["shares"] for queue in queues.values()] == [1000, 1000, 1000, 500, 50]
        for name in ("clients", "coordinators", "maintenance"):
            if name != "coordinators" or core["core"] in coordinating:
                assert queues[name]["runtime_ns"] > 0
                assert queues[name]["selections"] > 0
                assert 0 < queues[name]["slice_ns_max"] <= queues[name]["runtime_ns"] or name == "clients"
    try:
        alter_shares(used, AlterConfigOpType.SET, 7)
        eventually(lambda: "background, 7 shares: " in text_of(used), "people are told so")
    finally:
        alter_shares(used, AlterConfigOpType.DELETE, 50)


def alter_shares(broker: TpcBroker, how: AlterConfigOpType, then: int) -> None:
    """Until all cores have them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for core in (0, 1):
        entry = ConfigEntry("cpu.shares.background", str(then), incremental_operation=how)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(core), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    def have_heard() -> bool:
        return all(core["counters"]["queues"]["background"]["shares"] == then for core in status_of(broker)["cores"])

    eventually(have_heard, "both cores have heard of it")


def test_a_core_that_was_started_again_counts_from_0(broker: TpcBroker) -> None:
    use(broker)
    assert total(status_of(broker), "connections", "requests") > RECORDS
    victim = broker.core_process(0)
    victim.send_signal(signal.SIGKILL)
    broker.wait_core_replaced(0, victim.pid)
    core = eventually(lambda: (core := status_of(broker)["cores"][0])["ready"] and core, "the core is ready")
    assert core["restarts"] == 1
    assert core["pid"] != victim.pid
    assert core["counters"]["connections"]["requests"] < RECORDS
    assert core["counters"]["plane"]["produces_taken"] == 0


def test_a_core_that_hangs_is_shown_without_counters(used: TpcBroker) -> None:
    hanging = used.core_process(0)

    def the_other_one_answers() -> str:
        hanging.send_signal(signal.SIGSTOP)
        try:
            told = text_of(used)
        finally:
            hanging.send_signal(signal.SIGCONT)
        first, second = (line for line in told.splitlines() if line.startswith("core "))
        return "" if "no answer" in second else first

    first = eventually(the_other_one_answers, "the core that does not hang answers in time")
    assert "no answer" in first
    assert all("counters" in core for core in status_of(used)["cores"]), "it goes on as if nothing had been"


def test_who_does_not_read_holds_up_nobody(used: TpcBroker) -> None:
    """Connections that are closed at once, and one that stays and reads nothing."""
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
    for one in silent:
        with socket_address(used.data_folder) as address:
            one.connect(address)
    silent.pop().close()
    assert len(status_of(used)["cores"]) == 2
    for one in silent:
        one.close()


def test_only_the_broker_s_user_may_ask(used: TpcBroker) -> None:
    assert stat.S_IMODE((used.data_folder / SOCKET_NAME).stat().st_mode) == 0o600


def test_without_a_broker_it_is_one_line_and_exit_code_2(broker: TpcBroker, tmp_path: Path) -> None:
    broker.stop()
    assert not (broker.data_folder / SOCKET_NAME).exists()
    for folder in (broker.data_folder, tmp_path / "never"):
        done = run_here("status", "--data", str(folder))
        assert done.returncode == EXIT_CANNOT_RUN
        assert done.stderr.startswith("tpc-broker: no broker answers for the data directory")
        assert done.stderr.count("\n") == 1
    broker.start()


def test_a_socket_that_a_killed_broker_left_is_replaced(broker: TpcBroker) -> None:
    broker.kill()
    assert (broker.data_folder / SOCKET_NAME).exists()
    assert run_here("status", "--data", str(broker.data_folder)).returncode == EXIT_CANNOT_RUN
    broker.start()
    assert len(status_of(broker)["cores"]) == 1


def test_where_no_socket_can_be_made_the_broker_runs_without(tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).mkdir()
    assert bind_status(tmp_path) is None


def test_without_descriptors_it_goes_on_when_there_are_some(tmp_path: Path) -> None:
    async def look() -> list[CoreStatus]:
        return []

    async def serve_ask_and_end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_status, tmp_path, look)
            await trio.testing.wait_all_tasks_blocked()
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                with socket_address(tmp_path) as address:
                    client.connect(address)
                resource.setrlimit(resource.RLIMIT_NOFILE, (1, limit[1]))
                try:
                    await trio.sleep(0.02)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
                answer = await trio.to_thread.run_sync(client.recv, 1000)
            assert json.loads(answer)["cores"] == []
            nursery.cancel_scope.cancel()

    trio.run(serve_ask_and_end)
    assert not (tmp_path / SOCKET_NAME).exists()


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([0] * 16, ""),
        ([0, 0, 99, 1] + 12 * [0], ", 99 % within 4 us"),
        ([0, 0, 98, 2] + 12 * [0], ", 99 % within 8 us"),
        (15 * [1] + [100], ", over 1 % longer than 16,384 us"),
    ],
)
def test_spans_are_told_as_the_time_that_99_percent_keep(spans: list[int], text: str) -> None:
    assert _within(spans) == text


def test_cores_that_are_down_or_starting_are_named() -> None:
    status: BrokerStatus = {
        "pid": 1,
        "cores": [
            {"core": 0, "pid": None, "ready": False, "restarts": 2, "up_ms": 0},
            {"core": 1, "pid": 7, "ready": False, "restarts": 1, "up_ms": 0},
        ],
    }
    assert status_report(status, as_json=False).splitlines() == [
        "core 0: down, 2 restarts",
        "core 1: pid 7, starting, 1 restart",
    ]
    assert json.loads(status_report(status, as_json=True)) == status


def test_compaction_is_told_where_there_is_any() -> None:
    book = CleaningBook()
    counters: dict[str, Any] = {"cleaning": book.counters(), "uncleanable": {}, "cleanings_under_way": {}}
    assert _of_cleaning(counters) == []
    key = model.TopicPartition(model.TopicId(UUID(int=7)), model.PartitionIndex(0))
    book.measured(key, "prices-0", dirty_bytes=3 << 20, clean_bytes=1 << 20, first_dirty_offset=4)
    book.cleaned(key, "prices-0", REPORT, 5)
    book.given_up(key, "prices-0", "its log is damaged", 6)
    counters |= {"cleaning": book.counters(), "uncleanable": book.uncleanable(), "cleanings_under_way": {"a-1": 2048}}
    text = (
        "1 compacted partition, 3 MiB dirty and 1 MiB clean, 75% dirty at most; 1 cleaning, 0 failed, 2 KiB "
        "read, 500 B written, 1 KiB saved; 1 batch cannot be read and stay; now a-1 (2 KiB so far)"
    )
    assert _of_cleaning(counters) == [("compaction", text), ("uncleanable", "prices-0: its log is damaged")]
    counters["no_cleaner"] = "a cleaner could not be started"
    assert _of_cleaning(counters)[1] == ("no cleaner", "a cleaner could not be started")
