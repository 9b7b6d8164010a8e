"""Addresses, numbers of cores, and what the supervisor hands to a core."""

import dataclasses
import os
from pathlib import Path

import pytest

from tpc_broker import options
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.model import CoreId
from tpc_broker.options import CoreOptions, StartError, choose_cores

ARGUMENT_BYTES_MAX = 32 * os.sysconf("SC_PAGE_SIZE")
"""MAX_ARG_STRLEN: more in one argument and execve(2) says E2BIG."""


@pytest.mark.parametrize(
    ("cpus", "quota", "asked", "expected"),
    [
        ((0, 1, 2, 3), None, None, (4, (0, 1, 2, 3))),
        ((0, 1, 2, 3), None, 2, (2, (0, 1))),
        ((5, 7), None, None, (2, (5, 7))),
        ((0, 1, 2, 3), 1.5, 2, (2, None)),
        ((0, 1, 2, 3), 1.5, None, (2, None)),  # a quota: rounded up, not pinned
        ((0, 1, 2, 3), 0.2, None, (1, None)),
        ((0, 1), 8.0, None, (2, None)),
    ],
)
def test_one_core_a_cpu_that_may_be_used(
    cpus: tuple[int, ...],
    quota: float | None,
    asked: int | None,
    expected: tuple[int, tuple[int, ...] | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(options, "cpu_quota", lambda: quota)
    assert choose_cores(asked) == expected


@pytest.mark.parametrize(
    ("cpus", "quota", "asked", "said"),
    [
        ((0, 1), None, 3, "--cores 3: .* are 2 CPUs: give --cores 1 to 2, or add --oversubscribe"),
        ((3,), None, 2, "--cores 2: .* is 1 CPU: give --cores 1 to 1, or"),
        ((0, 1, 2, 3), 1.5, 3, "--cores 3: .* are 4 CPUs with a quota of 1.5: give --cores 1 to 2, or"),
    ],
)
def test_more_cores_than_cpus_need_a_word(
    cpus: tuple[int, ...], quota: float | None, asked: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(options, "cpu_quota", lambda: quota)
    with pytest.raises(StartError, match=said):
        choose_cores(asked)
    assert choose_cores(asked, oversubscribe=True)[0] == asked


def test_oversubscribed_cores_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "usable_cpus", lambda: (0, 1))
    monkeypatch.setattr(options, "cpu_quota", lambda: None)
    assert choose_cores(4, oversubscribe=True) == (4, None)
    assert choose_cores(2) == (2, (0, 1))
    assert choose_cores(2, oversubscribe=True) == (2, None)  # other brokers' first cores would be pinned there, too


@pytest.mark.parametrize("asked", [0, -1, 1025])
def test_a_number_of_cores_out_of_range_is_refused(asked: int) -> None:
    with pytest.raises(StartError, match=f"--cores {asked}: a number from 1 to 1024"):
        choose_cores(asked)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group file system without quotas; `own` beside it says which groups this process is in."""
    mount = tmp_path / "cgroup"
    (mount / "cpu").mkdir(parents=True)
    monkeypatch.setattr(options, "CONTROL_GROUPS", mount)
    monkeypatch.setattr(options, "OWN_CONTROL_GROUPS", tmp_path / "own")
    return mount


def write_quota(group: Path, quota: str, period: str | None = None) -> None:
    """Of version 2, or with a period of its own of version 1."""
    group.mkdir(parents=True, exist_ok=True)
    if period is None:
        (group / "cpu.max").write_text(f"{quota}\n")
    else:
        (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (group / "cpu.cfs_period_us").write_text(f"{period}\n")


def test_the_quota_is_read_from_both_versions_of_control_groups(groups: Path) -> None:
    assert options.cpu_quota() is None
    write_quota(groups, "max 100000")
    assert options.cpu_quota() is None
    write_quota(groups / "cpu", "-1", "100000")
    assert options.cpu_quota() is None
    write_quota(groups / "cpu", "250000", "100000")
    assert options.cpu_quota() == 2.5
    write_quota(groups, "150000 100000")
    assert options.cpu_quota() == 1.5


def test_a_service_s_quota_stands_in_its_own_group_or_above(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/other\n0::/system.slice/tpc-broker.service\n")
    write_quota(groups / "other", "10000 100000")
    assert options.cpu_quota() is None
    write_quota(groups / "system.slice" / "tpc-broker.service", "max 100000")
    write_quota(groups / "system.slice", "300000 100000")
    assert options.cpu_quota() == 3
    write_quota(groups / "system.slice" / "tpc-broker.service", "200000 100000")
    assert options.cpu_quota() == 2


def test_a_service_s_quota_of_the_first_version_too(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("9:name=systemd:/\n3:cpu,cpuacct:/system.slice/tpc-broker.service\n0::/\n")
    write_quota(groups / "cpu" / "system.slice" / "tpc-broker.service", "50000", "100000")
    assert options.cpu_quota() == 0.5


@pytest.mark.parametrize("settings_bytes", [0, 2 * ARGUMENT_BYTES_MAX])
def test_a_core_s_options_survive_the_way_to_its_process(settings_bytes: int) -> None:
    here, there = Address("::1", 9092), Address("höst", 19092)
    listeners = (
        Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, (here, here), (there, there)),
        Listener("OTHER", ListenerMode.PER_CORE_ADDRESS, (there, here), (here, there)),
    )
    sent = CoreOptions(
        core=CoreId(1), cores=2, data="/data with space", listen_fds=(5, 8), mailbox_fd=6, control_fd=7,
        mailbox_names=("a", "b"), listeners=listeners, cpu=None,
        settings="num.partitions=3\n# text\n" + "#" * settings_bytes,
        overrides=("log.retention.ms=1", 'x="y"'), log_style="json", log_level="INFO", supervisor_pid=1,
    )  # fmt: skip
    options_fd = sent.to_file()
    arguments = sent.to_arguments(options_fd)
    assert sum(map(len, arguments)) < ARGUMENT_BYTES_MAX
    received = CoreOptions.from_arguments(arguments)
    with pytest.raises(OSError):
        os.fstat(options_fd)
    assert received == sent
    assert dataclasses.asdict(received) == dataclasses.asdict(sent)
