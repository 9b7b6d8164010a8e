"""What the supervisor and its cores are told: options, validated once, handed to each core in a file in memory.

The core's argument has what tells processes apart in a list of them. All the rest is not there: the kernel takes no
argument of 128 KiB, and other users see arguments, while settings may be secret.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker import limits
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.host_port import NO_HOST, PORT_MAX, may_name_a_host, split_host_port
from tpc_broker.metadata.listeners import Address, Listener

if TYPE_CHECKING:
    from tpc_broker.model import CoreId

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
LOOPBACK: Final = "127.0.0.1"
OWN_CONTROL_GROUPS: Final = Path("/proc/self/cgroup")


class StartError(Exception):
    """A wrong configuration or a host where the broker cannot run: one line, exit code 2."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """`secret_path`: the file is read again by each core that starts; the secret itself is never in an argument, where
    other users see it. "": none.
    """

    node_id: int
    address: SeedAddress
    seeds: tuple[SeedAddress, ...]
    rack: str
    secret_path: str
    encryption: str = "auto"
    """Of links: `cluster.links.encryption`."""
    has_authorizer: bool = False

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ClusterOptions:
        """From what `dataclasses.asdict` and JSON have made of one."""
        return cls(
            fields["node_id"],
            SeedAddress(*fields["address"]),
            tuple(SeedAddress(*seed) for seed in fields["seeds"]),
            fields["rack"],
            fields["secret_path"],
            fields.get("encryption", "auto"),
            has_authorizer=fields.get("has_authorizer", False),
        )


class ChosenBackend(NamedTuple):
    """`name` of `engine.ring.Backend`; why it is not io_uring, and what mends that ("": it is)."""

    name: str
    reason: str
    mend: str


ON_IO_URING: Final = ChosenBackend("io_uring", "", "")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    data: Path
    listeners: tuple[Listener, ...]
    cores: int
    cpus: tuple[int, ...] | None
    settings_text: str
    settings_ignored: tuple[str, ...]
    """Names that were given and have no effect."""
    overrides: tuple[str, ...]
    log_style: str
    log_level: str
    admin: AdminAddress | None = None
    datagram: Address | None = None
    cluster: ClusterOptions | None = None
    backend: ChosenBackend = ON_IO_URING
    fallbacks: tuple[str, ...] = ()
    """What was refused up to here, and what is done instead: lines for the log."""
    open_doors: tuple[str, ...] = ()
    """Of listeners that everybody may use, or passwords that others may read: lines for the log."""


class AdminAddress(NamedTuple):
    """Where `--admin` listens."""

    host: str
    port: int


def parse_admin(text: str) -> AdminAddress:
    """`HOST:PORT`, or `PORT` on loopback."""
    named, port = split_host_port(text)
    host = named or LOOPBACK
    if port is None:
        raise StartError(f"--admin {text}: expected HOST:PORT, or PORT (1 to {PORT_MAX}) on {LOOPBACK}")
    if not may_name_a_host(host):
        raise StartError(f"--admin {text}: {NO_HOST}")
    return AdminAddress(host, port)


def parse_datagram(text: str) -> Address:
    """`HOST:PORT`, an IPv6 address in brackets, or `PORT` on loopback."""
    named, port = split_host_port(text)
    host = named or LOOPBACK
    try:
        ip_address(host)
        if port is not None and may_name_a_host(host):  # an IPv6 address may end in the name of an interface
            return Address(host, port)
    except ValueError:
        pass
    allowed = f"ADDRESS:PORT (an IP address), or PORT (1 to {PORT_MAX}) on {LOOPBACK}"
    raise StartError(f"--datagram {text}: expected {allowed}")


@dataclass(frozen=True, slots=True)
class CoreOptions:
    core: CoreId
    cores: int
    data: str
    listeners: tuple[Listener, ...]
    listen_fds: tuple[int, ...]
    """This core's socket of each listener."""
    mailbox_fd: int
    control_fd: int
    mailbox_names: tuple[str, ...]
    cpu: int | None
    settings: str
    overrides: tuple[str, ...]
    log_style: str
    log_level: str
    supervisor_pid: int
    recover_only: bool = False
    beats_fd: int = -1
    """An eventfd(2) that the core adds to while its loop turns."""
    loads_fd: int = -1
    """The map in which it shows how many connections it has (`tpc_broker.ebpf.steering.make_loads`)."""
    quotas_fd: int = -1
    """Memory in which all cores count clients of shared listeners (`tpc_broker.engine.quotas.make_node_table`)."""
    datagram_fd: int = -1
    """Its UDP socket of the port for datagrams; -1: there is none."""
    cluster: ClusterOptions | None = None
    cluster_fds: tuple[int, ...] = ()
    """Its sockets for what comes from other nodes: links, at core 0 datagrams too."""
    backend: str = ""
    """Of its ring; "": as the environment has it."""
    cleaner_fd: int = -1
    """Where cleaners are reached (`cleaner.cleaner_door`); -1: there are none."""

    def to_file(self) -> int:
        """The descriptor of a file in memory that has them; whose it is closes it."""
        options_fd = os.memfd_create("core options", os.MFD_CLOEXEC)
        with open(options_fd, "wb", closefd=False) as file:
            file.write(json.dumps(asdict(self)).encode())
            file.seek(0)
        return options_fd

    def to_arguments(self, options_fd: int) -> list[str]:
        return [json.dumps({"core": self.core, "data": self.data, "options_fd": options_fd})]

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> CoreOptions:
        """In the core's process, once: the file is closed then."""
        with open(json.loads(arguments[0])["options_fd"], "rb") as file:  # noqa: PTH123 (it has no path)
            fields = json.load(file)
        fields["listeners"] = tuple(Listener.from_fields(each) for each in fields["listeners"])
        fields["listen_fds"] = tuple(fields["listen_fds"])
        fields["mailbox_names"] = tuple(fields["mailbox_names"])
        fields["overrides"] = tuple(fields["overrides"])
        fields["cluster_fds"] = tuple(fields["cluster_fds"])
        if fields["cluster"] is not None:
            fields["cluster"] = ClusterOptions.from_fields(fields["cluster"])
        return cls(**fields)


def usable_cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def why_not_pinned() -> str | None:
    """Why a process cannot be given CPUs here; None where it can. Tried with those that it has."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None


def cpu_quota() -> float | None:
    """CPUs that control groups grant this process (cgroups(7): v2 cpu.max, v1 cfs quota); None where there is no limit.

    A quota of any group above counts too, so the smallest is taken. A service sees its own group by its path below the
    mount, a container as the mount itself.
    """
    quotas = [quota for folder in _control_groups() if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _control_groups() -> list[Path]:
    """Folders of this process's groups that may hold a CPU quota, with all above them. Some may not be there."""
    mount = CONTROL_GROUPS
    found = [mount, mount / "cpu"]
    try:
        lines = OWN_CONTROL_GROUPS.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / "cpu" if controllers else mount
        group = top / path.lstrip("/")
        found += [folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder not in found]
    return found


def _quota_of(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        if quota_us > 0:
            return quota_us / period_us
    except (OSError, ValueError):
        pass
    return None


# Rule: As many cores as affinity and CPU quota give. They are pinned only without a quota, and where no others are
# to have the CPUs as well: brokers that share a host would all be pinned to its first ones. Held by
# tests/process/test_options.py.
def choose_cores(asked: int | None, *, oversubscribe: bool = False) -> tuple[int, tuple[int, ...] | None]:
    """Number of cores, and the CPUs to pin them to (None: not pinned)."""
    cpus = usable_cpus()
    quota = cpu_quota()
    paid_for = len(cpus) if quota is None else max(1, min(len(cpus), -int(-quota // 1)))
    cores = paid_for if asked is None else asked
    if not 1 <= cores <= limits.CORES_MAX:
        raise StartError(f"--cores {cores}: a number from 1 to {limits.CORES_MAX} is allowed")
    if cores > paid_for and not oversubscribe:
        raise StartError(
            f"--cores {cores}: a core is a process that wants a CPU for itself, and there {_cpus_text(cpus, quota)}: "
            f"give --cores 1 to {paid_for}, or add --oversubscribe (then up to {limits.CORES_MAX})"
        )
    return cores, cpus[:cores] if quota is None and not oversubscribe else None


def _cpus_text(cpus: tuple[int, ...], quota: float | None) -> str:
    count = "is 1 CPU" if len(cpus) == 1 else f"are {len(cpus)} CPUs"
    return count if quota is None else f"{count} with a quota of {quota:g}"
