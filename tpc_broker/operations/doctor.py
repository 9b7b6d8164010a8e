"""What this host offers the broker, and which command mends what is missing (``tpc-broker doctor``).

Each ``judge_…`` takes a reading and gives a finding, so that it can be tested with hosts that are not at hand;
:func:`examine_host` takes the readings. A finding is ``ok``; a ``warning``: the broker runs, slower, with less room or
for everybody; or a ``failure``: it cannot run here. Nothing on the host is changed, save for a probe file that is
written and removed.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import stat
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.ebpf.loaders import LoaderUnavailableError, find_bcc, loaders
from tpc_broker.ebpf.steering import Select, Steering
from tpc_broker.engine.backend import COSTS, KERNEL_MIN, choose_backend, kernel_version
from tpc_broker.engine.journal_probe import best_journal_mode, measure_journal_modes
from tpc_broker.engine.ring import FEATURE_KERNELS, HIDE_VARIABLE, Backend, Feature, Ring
from tpc_broker.options import StartError, cpu_quota, usable_cpus
from tpc_broker.telemetry.status import read_status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.log.journal import JournalMode

KERNEL_RINGS_NOT_LOCKED: Final = (5, 12)
"""From here on rings are charged to the control group, not to RLIMIT_MEMLOCK."""
MEMLOCK_BYTES_MIN: Final = 64 * limits.MIB
DESCRIPTORS_MIN: Final = 65_536
DURABLE_WRITE_SLOW_S: Final = 0.005
FREE_BYTES_MIN: Final = 2 * limits.JOURNAL_BYTES_MAX
FREE_SHARE_MIN: Final = 0.10
PROBE_ENTRIES: Final = 8
CLOCK_SOURCE_FILE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
CLOCK_SOURCES_SLOW: Final = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})
EARLIEST_SANE_TIME_S: Final = 1_735_689_600  # 2025-01-01: a clock before this was never set
CONTROL_GROUP_QUOTA: Final = "systemctl set-property tpc-broker.service CPUQuota= (container: --cpus)"


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``mend`` is a command or a setting, where something can be done."""

    subject: str
    severity: Severity
    text: str
    mend: str | None = None


def examine_host(data: Path) -> list[Finding]:
    """All findings, in the order in which a newcomer would mend them."""
    soft_memlock, _hard_memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    _soft_descriptors, hard_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    release = platform.release()
    return [
        judge_kernel(release),
        examine_ring(),
        judge_memlock(soft_memlock, release, is_root=os.geteuid() == 0),
        judge_descriptors(hard_descriptors),
        judge_cpus(len(usable_cpus()), os.cpu_count() or 1, cpu_quota()),
        *examine_disk(data),
        *examine_listeners(data),
        examine_ebpf(),
        judge_clock_source(_clock_source()),
        judge_clock(time.time(), is_synchronised=_clock_is_synchronised()),
    ]


def report(findings: list[Finding], *, as_json: bool) -> str:
    """The findings as lines for people, or as one JSON object."""
    can_run = all(finding.severity is not Severity.FAILURE for finding in findings)
    if as_json:
        return json.dumps({"can_run": can_run, "findings": [asdict(finding) for finding in findings]})
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:<8} {finding.subject:<12} {finding.text}")
        if finding.mend is not None:
            lines.append(f"{'':<21} mend: {finding.mend}")
    lines.append("The broker can run here." if can_run else "The broker cannot run here.")
    return "\n".join(lines)


# -- kernel and ring --------------------------------------------------------------------------------------------------


def judge_kernel(release: str) -> Finding:
    version = kernel_version(release)
    if version < KERNEL_MIN:
        text = f"Linux {release}; {_dotted(KERNEL_MIN)} or newer is needed for io_uring"
        return Finding("kernel", Severity.WARNING, text, "apt-get install linux-image-amd64, then reboot")
    return Finding("kernel", Severity.OK, f"Linux {release}")


def examine_ring() -> Finding:
    try:
        chosen = choose_backend()
        if chosen.name == Backend.PLAIN:
            text = f"{chosen.reason}; the plain backend is taken instead: {COSTS}"
            return Finding("io_uring", Severity.WARNING, text, chosen.mend)
        ring = Ring(PROBE_ENTRIES)
    except ValueError as error:
        return Finding("io_uring", Severity.FAILURE, str(error), f"unset {str(error).partition(':')[0]}")
    try:
        return judge_ring(frozenset(ring.features), platform.release())
    finally:
        ring.close()


def judge_ring(features: frozenset[Feature], release: str) -> Finding:
    missing = [feature for feature in Feature if feature not in features]
    if not missing:
        return Finding("io_uring", Severity.OK, f"available, with all {len(Feature)} features that the broker uses")
    names = ", ".join(f"{feature.name.lower()} ({_dotted(FEATURE_KERNELS[feature])})" for feature in missing)
    needed = max(FEATURE_KERNELS[feature] for feature in missing)
    mend = f"a kernel of {_dotted(needed)} or newer has them; {HIDE_VARIABLE} must be unset"
    if kernel_version(release) >= needed:
        mend = f"this kernel has them: {HIDE_VARIABLE} must be unset, and the container's or service's seccomp filter"
        mend += " (SystemCallFilter=) must allow cachestat" if Feature.CACHESTAT in missing else " may hide them"
    return Finding(
        "io_uring", Severity.WARNING, f"available, but without: {names}; slower ways are taken instead", mend
    )


# -- limits -----------------------------------------------------------------------------------------------------------


def judge_memlock(limit: int, release: str, *, is_root: bool) -> Finding:
    """`limit` in bytes, as of getrlimit(2)."""
    if limit == resource.RLIM_INFINITY or is_root:
        return Finding("memlock", Severity.OK, "unlimited" if limit == resource.RLIM_INFINITY else "root: not limited")
    text = f"{limit // 1024} KiB of memory may be locked"
    if limit >= MEMLOCK_BYTES_MIN:
        return Finding("memlock", Severity.OK, text)
    if kernel_version(release) >= KERNEL_RINGS_NOT_LOCKED:
        return Finding("memlock", Severity.OK, f"{text}; enough, since rings do not count from Linux 5.12 on")
    mend = "systemd: LimitMEMLOCK=infinity; container: --ulimit memlock=-1; shell: ulimit -l unlimited"
    return Finding("memlock", Severity.WARNING, f"{text}; before Linux 5.12 the rings may not fit", mend)


def judge_descriptors(hard_limit: int) -> Finding:
    """The hard limit, because the broker raises the soft one to it."""
    shown = "unlimited" if hard_limit == resource.RLIM_INFINITY else f"{hard_limit:,}"
    text = f"{shown} open files and connections per core"
    if hard_limit == resource.RLIM_INFINITY or hard_limit >= DESCRIPTORS_MIN:
        return Finding("descriptors", Severity.OK, text)
    mend = "systemd: LimitNOFILE=1048576; container: --ulimit nofile=1048576; shell, as root: ulimit -Hn 1048576"
    return Finding("descriptors", Severity.WARNING, f"{text}; at least {DESCRIPTORS_MIN:,} is better", mend)


def judge_cpus(usable: int, present: int, quota: float | None) -> Finding:
    """CPUs that the affinity allows, that are there, and that the control group's quota pays for."""
    text = f"{usable} of {present} CPUs may be used"
    if quota is None:
        return Finding("cpu", Severity.OK, f"{text}, no quota: one core process each, pinned")
    cores = max(1, min(usable, -int(-quota // 1)))
    text = f"{text}, with a quota of {quota:g} CPUs: {cores} core process{'es' if cores > 1 else ''}, not pinned"
    if quota % 1:
        text = f"{text}; a fraction stalls a core"
        return Finding("cpu", Severity.WARNING, text, f"whole CPUs: {CONTROL_GROUP_QUOTA}")
    return Finding("cpu", Severity.OK, text)


# -- disk -------------------------------------------------------------------------------------------------------------


def examine_disk(data: Path) -> list[Finding]:
    """On the data directory, or on the nearest folder above it that exists."""
    folder = data
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        found = measure_journal_modes(folder)
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror or error}"
        return [Finding("disk", Severity.FAILURE, text, f"chown {os.geteuid()} {folder}, or choose another --data")]
    status = os.statvfs(folder)
    findings = [
        judge_durable_writes(found, folder),
        judge_free_space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, folder),
    ]
    if folder == data:
        findings.append(judge_mode(stat.S_IMODE(folder.stat().st_mode), folder))
    return findings


def judge_mode(mode: int, folder: Path) -> Finding:
    """Of the data directory: what is below it is closed by it, too."""
    if mode & (stat.S_IROTH | stat.S_IXOTH):
        text = f"{folder} can be read by every user of this host, and so can files of earlier releases in it"
        return Finding("secrecy", Severity.WARNING, text, f"chmod -R o-rwx {folder}")
    return Finding("secrecy", Severity.OK, f"{folder} is closed to other users")


def judge_durable_writes(found: Mapping[JournalMode, Sequence[float]], folder: Path) -> Finding:
    """Seconds of a durable 4 KiB write, per mode that works."""
    best = best_journal_mode(found)
    least_s = min(found[best])  # what else the disk does at the moment is not its fault
    text = f"a durable 4 KiB write to {folder} takes {least_s * 1000:.2f} ms ({best.name.lower()})"
    if least_s > DURABLE_WRITE_SLOW_S:
        mend = "put --data on a local SSD, best with power-loss protection; what else writes there: iostat -x 1"
        return Finding("disk", Severity.WARNING, f"{text}; every acknowledgement waits for one", mend)
    return Finding("disk", Severity.OK, text)


def judge_free_space(free_bytes: int, total_bytes: int, folder: Path) -> Finding:
    text = f"{free_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB free at {folder}"
    mend = f"free some (du -xh {folder} | sort -h | tail), choose another --data, or lower log.retention.bytes"
    if free_bytes < FREE_BYTES_MIN:
        needed = FREE_BYTES_MIN // limits.MIB
        return Finding("space", Severity.FAILURE, f"{text}; journal and first segments need {needed} MiB", mend)
    if free_bytes < FREE_SHARE_MIN * total_bytes:
        return Finding("space", Severity.WARNING, f"{text}, which is less than {FREE_SHARE_MIN:.0%}", mend)
    return Finding("space", Severity.OK, text)


# -- listeners --------------------------------------------------------------------------------------------------------


def examine_listeners(data: Path) -> list[Finding]:
    """Of the broker that runs on this directory; none: of one that is to be started `check-config` tells the same."""
    try:
        told = read_status(data).get("open_doors")
    except StartError:
        return []
    return [] if told is None else judge_open_doors(told)


def judge_open_doors(warnings: Sequence[str]) -> list[Finding]:
    """What the running broker has warned of at its start."""
    if not warnings:
        return [Finding("listeners", Severity.OK, "the start had nothing to warn of")]
    mend = "docs/security.md; check-config judges new settings before the next start"
    return [Finding("listeners", Severity.WARNING, warning, mend) for warning in warnings]


# -- eBPF -------------------------------------------------------------------------------------------------------------


def examine_ebpf() -> Finding:
    """The program is loaded by libbpf and unloaded again; bcc, which compiles for seconds, is only looked for."""
    missing: dict[str, LoaderUnavailableError] = {}
    try:
        find_bcc()
    except LoaderUnavailableError as error:
        missing["bcc"] = error
    try:
        Steering("libbpf", 1, Select.LOAD).close()
    except LoaderUnavailableError as error:
        missing["libbpf"] = error
    return judge_ebpf(missing)


def judge_ebpf(missing: Mapping[str, LoaderUnavailableError]) -> Finding:
    """By loader, what is in its way."""
    reasons = "; ".join(error.reason for error in missing.values())
    found = [loader.name for loader in loaders("auto") if loader.name not in missing]
    if found:
        text = f"programs are loaded by {found[0]}" + (f" ({reasons})" if reasons else f", or by {found[-1]}")
        return Finding("ebpf", Severity.OK, text)
    mend = " or ".join(dict.fromkeys(error.mend for error in missing.values()))
    text = f"{reasons}; what is steered by eBPF is refused, all else works"
    return Finding("ebpf", Severity.WARNING, text, mend)


# -- clock ------------------------------------------------------------------------------------------------------------


def judge_clock_source(name: str | None) -> Finding:
    if name is None:
        return Finding("clock source", Severity.OK, "unknown here")
    if name in CLOCK_SOURCES_SLOW:
        text = f"{name}: reading the time is a slow system call, and the broker reads it at every turn"
        return Finding("clock source", Severity.WARNING, text, f"echo tsc > {CLOCK_SOURCE_FILE}")
    return Finding("clock source", Severity.OK, name)


def judge_clock(now_s: float, *, is_synchronised: bool | None) -> Finding:
    """Timestamps of records and retention by age follow the wall clock."""
    mend = "apt-get install chrony (or: timedatectl set-ntp true)"
    if now_s < EARLIEST_SANE_TIME_S:
        text = f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now_s))}: retention would delete by it"
        return Finding("clock", Severity.FAILURE, text, mend)
    if is_synchronised is False:
        text = "nothing keeps the clock in step; timestamps and retention by age follow it"
        return Finding("clock", Severity.WARNING, text, mend)
    return Finding("clock", Severity.OK, "kept in step" if is_synchronised else "set; its source cannot be asked here")


def _clock_source() -> str | None:
    try:
        return CLOCK_SOURCE_FILE.read_text().strip()
    except OSError:
        return None


TIMEX_BYTES: Final = 256  # struct timex has 208; only its first field, modes = 0 (read), matters
TIME_ERROR: Final = 5


def _clock_is_synchronised() -> bool | None:
    """As adjtimex(2) says without changing anything; None where it may not be called."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return None if state < 0 else state != TIME_ERROR


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
