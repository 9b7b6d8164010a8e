"""Findings of the doctor for hosts of many kinds, and the command on this host."""

import errno
import json
import resource
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from tpc_broker import limits
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.engine.ring import HIDE_VARIABLE, Backend, Feature
from tpc_broker.log.journal import JournalMode
from tpc_broker.metadata.listener_settings import plan_listeners
from tpc_broker.metadata.sasl_settings import check_logins
from tpc_broker.metadata.settings import load_settings
from tpc_broker.operations import doctor
from tpc_broker.operations.doctor import Severity
from tpc_broker.options import ChosenBackend
from tpc_broker.process import main
from tpc_broker.telemetry.counters import CoreStatus
from tpc_broker.telemetry.status import serve_status

OK, WARNING, FAILURE = Severity


@pytest.mark.parametrize(
    ("release", "severity"),
    [("5.4.0-100-generic", WARNING), ("5.8.0", OK), ("4.18.0-553.el8", WARNING), ("6.18.44-fc", OK), ("odd", WARNING)],
)
def test_a_kernel_before_5_8_is_too_old_for_io_uring(release: str, severity: Severity) -> None:
    assert doctor.judge_kernel(release).severity is severity


def test_missing_ring_features_are_named_with_their_kernel() -> None:
    assert doctor.judge_ring(frozenset(Feature), "6.1.0").severity is OK
    finding = doctor.judge_ring(frozenset(Feature) - {Feature.FTRUNCATE, Feature.BUFFER_RING}, "6.1.0")
    assert finding.severity is WARNING
    assert "ftruncate (6.9)" in finding.text
    assert "buffer_ring (5.19)" in finding.text
    assert finding.mend is not None
    assert "6.9" in finding.mend


def test_a_feature_that_the_kernel_has_is_hidden_by_a_filter() -> None:
    """systemd 252's @system-service does not know cachestat."""
    finding = doctor.judge_ring(frozenset(Feature) - {Feature.CACHESTAT}, "6.12.1")
    assert finding.severity is WARNING
    assert finding.mend is not None
    assert "SystemCallFilter=) must allow cachestat" in finding.mend


def test_without_io_uring_the_broker_runs_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ChosenBackend(Backend.PLAIN, "a seccomp filter refuses io_uring", "another filter")
    monkeypatch.setattr(doctor, "choose_backend", lambda: chosen)
    finding = doctor.examine_ring()
    assert (finding.severity, finding.mend) == (WARNING, "another filter")
    assert "a seccomp filter refuses io_uring; the plain backend is taken" in finding.text


def test_one_loader_of_ebpf_is_enough_and_none_is_no_failure() -> None:
    """What needs eBPF is refused where it is asked for."""
    without = {
        "bcc": LoaderUnavailableError("bcc is not installed", "apt-get install bcc"),
        "libbpf": LoaderUnavailableError("libbpf has no object", "apt-get install clang"),
    }
    assert doctor.judge_ebpf({}).text == "programs are loaded by bcc, or by libbpf"
    one = doctor.judge_ebpf({"bcc": without["bcc"]})
    assert (one.severity, one.text) == (OK, "programs are loaded by libbpf (bcc is not installed)")
    none = doctor.judge_ebpf(without)
    assert none.severity is WARNING
    assert "bcc is not installed; libbpf has no object" in none.text
    assert none.mend == "apt-get install bcc or apt-get install clang"


def test_a_wrong_feature_switch_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPC_HIDE_FEATURES", "nothing_of_the_kind")
    finding = doctor.examine_ring()
    assert finding.severity is FAILURE
    assert "nothing_of_the_kind" in finding.text


@pytest.mark.parametrize(
    ("limit", "release", "is_root", "severity"),
    [
        (64 * 1024, "5.10.0", False, WARNING),
        (64 * 1024, "5.10.0", True, OK),
        (64 * 1024, "5.12.0", False, OK),
        (doctor.MEMLOCK_BYTES_MIN, "5.10.0", False, OK),
        (resource.RLIM_INFINITY, "5.10.0", False, OK),
    ],
)
def test_locked_memory_matters_before_5_12(limit: int, release: str, is_root: bool, severity: Severity) -> None:
    assert doctor.judge_memlock(limit, release, is_root=is_root).severity is severity


@pytest.mark.parametrize(
    ("limit", "severity"), [(1024, WARNING), (65_535, WARNING), (65_536, OK), (resource.RLIM_INFINITY, OK)]
)
def test_few_descriptors_are_warned_of(limit: int, severity: Severity) -> None:
    assert doctor.judge_descriptors(limit).severity is severity


@pytest.mark.parametrize(
    ("usable", "quota", "severity", "part"),
    [
        (4, None, OK, "4 of 8 CPUs"),
        (4, 2.0, OK, "2 core processes, not pinned"),
        (4, 1.5, WARNING, "2 core processes, not pinned; a fraction"),
        (4, 0.25, WARNING, "1 core process, not pinned"),
        (2, 6.0, OK, "2 core processes"),
    ],
)
def test_cpus_and_quota(usable: int, quota: float | None, severity: Severity, part: str) -> None:
    finding = doctor.judge_cpus(usable, 8, quota)
    assert finding.severity is severity
    assert part in finding.text


def test_a_slow_disk_is_warned_of_with_its_figure() -> None:
    folder = Path("/data")
    fast = doctor.judge_durable_writes({JournalMode.DIRECT_DSYNC: [0.0002], JournalMode.BUFFERED_DSYNC: [0.3]}, folder)
    slow = doctor.judge_durable_writes({JournalMode.BUFFERED_FDATASYNC: [0.0251]}, folder)
    assert (fast.severity, slow.severity) == (OK, WARNING)
    assert "0.20 ms (direct_dsync)" in fast.text
    assert "25.10 ms (buffered_fdatasync)" in slow.text


def test_a_data_directory_that_everybody_may_read_is_warned_of() -> None:
    folder = Path("/data")
    assert [doctor.judge_mode(mode, folder).severity for mode in (0o700, 0o750)] == [OK, OK]
    assert [doctor.judge_mode(mode, folder).severity for mode in (0o755, 0o701)] == [WARNING, WARNING]


def test_free_space() -> None:
    folder = Path("/data")
    whole = 1024 * limits.MIB * 1024
    assert doctor.judge_free_space(whole // 2, whole, folder).severity is OK
    assert doctor.judge_free_space(whole // 20, whole, folder).severity is WARNING
    assert doctor.judge_free_space(doctor.FREE_BYTES_MIN - 1, whole, folder).severity is FAILURE
    assert doctor.judge_free_space(doctor.FREE_BYTES_MIN, doctor.FREE_BYTES_MIN * 2, folder).severity is OK


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(doctor, "measure_journal_modes", refuse)
    (finding,) = doctor.examine_disk(tmp_path / "new" / "data")
    assert finding.severity is FAILURE
    assert f"{tmp_path} cannot be written: Read-only file system" in finding.text


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    findings = doctor.examine_disk(tmp_path / "new" / "data")
    assert [finding.subject for finding in findings] == ["disk", "space"]
    assert list(tmp_path.iterdir()) == []


def test_clocks() -> None:
    now_s = doctor.EARLIEST_SANE_TIME_S + 1
    assert doctor.judge_clock(now_s, is_synchronised=True).severity is OK
    assert doctor.judge_clock(now_s, is_synchronised=None).severity is OK
    assert doctor.judge_clock(now_s, is_synchronised=False).severity is WARNING
    assert doctor.judge_clock(1000.0, is_synchronised=True).severity is FAILURE
    assert doctor.judge_clock_source("tsc").severity is OK
    assert doctor.judge_clock_source("hpet").severity is WARNING


@pytest.mark.parametrize("has_open_listener", [True, False])
def test_open_listeners_of_the_broker_that_runs_there_are_named(tmp_path: Path, has_open_listener: bool) -> None:
    """As its start has told."""
    listeners = plan_listeners(["10.0.0.5:9092" if has_open_listener else "127.0.0.1:9092"], (), {}, 1)
    warnings = check_logins(listeners, load_settings("", ()).settings)
    assert bool(warnings) == has_open_listener

    async def look() -> list[CoreStatus]:
        return []

    async def examined() -> list[doctor.Finding]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_status, tmp_path, look, open_doors=warnings))
            await trio.testing.wait_all_tasks_blocked()
            found = await trio.to_thread.run_sync(doctor.examine_listeners, tmp_path)
            nursery.cancel_scope.cancel()
        return found

    assert doctor.examine_listeners(tmp_path) == [], "there is none"
    (finding,) = trio.run(examined)
    assert (finding.subject, finding.severity) == ("listeners", WARNING if has_open_listener else OK)
    if has_open_listener:
        assert "PLAINTEXT (10.0.0.5:9092) takes everybody who reaches it" in finding.text


def test_the_command_answers_for_programs_and_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    done = runner.invoke(main.main, ["doctor", "--json", "--data", str(tmp_path)])
    answer = json.loads(done.output)
    assert (answer["can_run"], done.exit_code) == (True, 0), done.output
    subjects = [finding["subject"] for finding in answer["findings"]]
    of_host = ["kernel", "io_uring", "memlock", "descriptors", "cpu"]
    assert subjects == [*of_host, "disk", "space", "secrecy", "ebpf", "clock source", "clock"]

    monkeypatch.setattr(doctor.platform, "release", lambda: "5.4.0")
    done = runner.invoke(main.main, ["doctor", "--data", str(tmp_path)])
    assert done.exit_code == 0
    assert "warning  kernel       Linux 5.4.0; 5.8 or newer is needed for io_uring\n" in done.output
    assert done.output.endswith("The broker can run here.\n")
    assert "mend: apt-get install linux-image" in done.output

    monkeypatch.undo()
    monkeypatch.setenv(HIDE_VARIABLE, "warp")
    done = runner.invoke(main.main, ["doctor", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "failure  io_uring" in done.output
    assert done.output.endswith("The broker cannot run here.\n")
