"""Addresses, numbers of cores, and what the supervisor hands to a core."""

import dataclasses
from pathlib import Path

import pytest

from tpc_broker.model import CoreId
from tpc_broker.runtime import options
from tpc_broker.runtime.options import CoreOptions, StartError, choose_cores, resolve_addresses, split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("broker.example:1", ("broker.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_split(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text, "--listen") == parts


@pytest.mark.parametrize("text", ["127.0.0.1", "", "host:", "host:0", "host:65536", "host:-1", "host:9092x", "::1"])
def test_what_is_no_address_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(StartError, match=r"^--listen: "):
        split_address(text, "--listen")


@pytest.mark.parametrize("text", ["broker.example", "[::1]", "::1"])
def test_the_port_may_be_left_out_where_there_is_a_default(text: str) -> None:
    assert split_address(text, "--advertise", default_port=9092) == (text.strip("[]"), 9092)


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", ":9092", "*:9092"])
def test_a_wildcard_needs_an_address_that_clients_can_reach(listen: str) -> None:
    with pytest.raises(StartError, match="give --advertise"):
        resolve_addresses(listen, None)
    with pytest.raises(StartError, match="wildcard"):
        resolve_addresses(listen, "0.0.0.0")
    assert resolve_addresses(listen, "broker.example")[2:] == ("broker.example", 9092)
    assert resolve_addresses(listen, "broker.example:19092")[2:] == ("broker.example", 19092)


def test_without_advertise_clients_are_told_the_listening_address() -> None:
    assert resolve_addresses("127.0.0.1:9092", None) == ("127.0.0.1", 9092, "127.0.0.1", 9092)


@pytest.mark.parametrize(
    ("cpus", "quota", "asked", "expected"),
    [
        ((0, 1, 2, 3), None, None, (4, (0, 1, 2, 3))),
        ((0, 1, 2, 3), None, 2, (2, (0, 1))),
        ((5, 7), None, None, (2, (5, 7))),
        ((0, 1), None, 4, (4, None)),  # more cores than CPUs: not pinned
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


def test_a_core_s_options_survive_the_command_line() -> None:
    sent = CoreOptions(
        core=CoreId(1), cores=2, data="/data with space", listen_fd=5, mailbox_fd=6, control_fd=7,
        mailbox_names=("a", "b"), advertised_host="höst", advertised_port=9092, cpu=None,
        settings="num.partitions=3\n# text\n", overrides=("log.retention.ms=1", 'x="y"'), log_style="json",
        log_level="INFO", supervisor_pid=1,
    )  # fmt: skip
    received = CoreOptions.from_arguments(sent.to_arguments())
    assert received == sent
    assert dataclasses.asdict(received) == dataclasses.asdict(sent)
