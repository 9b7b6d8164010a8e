"""What the supervisor and its cores are told: options, validated once, handed to the cores as one JSON argument."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpc_broker import limits

if TYPE_CHECKING:
    from tpc_broker.model import CoreId

WILDCARDS = frozenset({"0.0.0.0", "::", "", "*"})  # noqa: S104  (named here to be refused without --advertise)

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
OWN_CONTROL_GROUPS: Final = Path("/proc/self/cgroup")


class StartError(Exception):
    """A wrong configuration or a host where the broker cannot run: one line, exit code 2."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    data: Path
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    cores: int
    cpus: tuple[int, ...] | None
    settings_text: str
    overrides: tuple[str, ...]
    log_style: str
    log_level: str


@dataclass(frozen=True, slots=True)
class CoreOptions:
    core: CoreId
    cores: int
    data: str
    listen_fd: int
    mailbox_fd: int
    control_fd: int
    mailbox_names: tuple[str, ...]
    advertised_host: str
    advertised_port: int
    cpu: int | None
    settings: str
    overrides: tuple[str, ...]
    log_style: str
    log_level: str
    supervisor_pid: int
    recover_only: bool = False

    def to_arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> CoreOptions:
        fields = json.loads(arguments[0])
        fields["mailbox_names"] = tuple(fields["mailbox_names"])
        fields["overrides"] = tuple(fields["overrides"])
        return cls(**fields)


def split_address(text: str, option: str, *, default_port: int | None = None) -> tuple[str, int]:
    """``HOST:PORT`` (``[v6]:PORT``) to its parts; the port may be left out where there is a default."""
    host, separator, port_text = text.rpartition(":")
    bare_v6 = host.count(":") > 0 and not host.startswith("[")
    if not separator or bare_v6 or text.endswith("]"):
        if default_port is None:
            raise StartError(f"{option}: {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
        host, port_text = text, str(default_port)
    if not port_text.isdigit() or not 1 <= int(port_text) <= 65535:
        raise StartError(f"{option}: port {port_text!r} is not a number from 1 to 65535")
    return host.strip("[]"), int(port_text)


def resolve_addresses(listen: str, advertise: str | None) -> tuple[str, int, str, int]:
    host, port = split_address(listen, "--listen")
    if advertise is None:
        if host in WILDCARDS:
            raise StartError(
                f"--listen {listen} takes connections on every address, and clients must be told one that they can "
                "reach: give --advertise HOST[:PORT]"
            )
        return host, port, host, port
    advertised_host, advertised_port = split_address(advertise, "--advertise", default_port=port)
    if advertised_host in WILDCARDS:
        raise StartError(f"--advertise {advertise}: a wildcard is not an address that a client can reach")
    return host, port, advertised_host, advertised_port


def usable_cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


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


def choose_cores(asked: int | None) -> tuple[int, tuple[int, ...] | None]:
    """Number of cores, and the CPUs to pin them to (None: not pinned)."""
    cpus = usable_cpus()
    quota = cpu_quota()
    cores = (len(cpus) if quota is None else max(1, min(len(cpus), -int(-quota // 1)))) if asked is None else asked
    if not 1 <= cores <= limits.CORES_MAX:
        raise StartError(f"--cores {cores}: a number from 1 to {limits.CORES_MAX} is allowed")
    pinned = cpus[:cores] if quota is None and len(cpus) >= cores else None
    return cores, pinned
