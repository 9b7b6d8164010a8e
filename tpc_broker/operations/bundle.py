"""``tpc-broker bundle``: one file with what somebody needs to understand a problem, and without secrets.

No record, no key, no value, no argument and no environment of a process is in it; settings and texts go through
`redaction`. Names are in it: of topics (folders), hosts, addresses. What cannot be read says why and holds up nothing
else.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpc_broker import __version__
from tpc_broker.engine.data_directory import PROPERTIES_FILE, mark_of, read_properties
from tpc_broker.log.checkpoint import CheckpointError, decode_checkpoint
from tpc_broker.log.journal import BLOCK_BYTES, REGION_BLOCK_FIRST, JournalUnreadableError, choose_superblock
from tpc_broker.metadata.settings import without_comments
from tpc_broker.operations.redaction import Redaction
from tpc_broker.options import StartError
from tpc_broker.storage.recovery.scrub_report import read_report
from tpc_broker.telemetry.status import read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_BYTES_MAX: Final = 4 * 1024 * 1024
LOG_LINES_MAX: Final = 20_000
FILES_MAX: Final = 100_000
COMMAND_S: Final = 15
BETWEEN_LOOKS_S: Final = 2.0
_HOST_FILES: Final = (
    "/proc/meminfo", "/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory",
    "/proc/sys/kernel/io_uring_disabled", "/proc/sys/net/core/somaxconn", "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max", "/etc/os-release",
)  # fmt: skip
_PROCESS_FILES: Final = ("status", "limits", "smaps_rollup", "io", "schedstat", "cgroup")


class Bundle:
    """What goes into one, each a named part that is made when it is asked for."""

    def __init__(self, data: Path, config: Path | None, overrides: tuple[str, ...], log: Path | None) -> None:
        self._data = data
        self._log = log
        try:
            text = "" if config is None else config.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise StartError(f"--config {config}: {error.strerror}") from error
        if log is not None and not log.is_file():
            raise StartError(f"--log {log}: there is no such file")
        self._redaction = Redaction([*without_comments(text).splitlines(), *overrides])

    def parts(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "about.json", lambda: _json(self._about())
        yield "settings.json", lambda: _json(self._redaction.settings)
        yield "doctor.txt", self._doctor
        yield "host.txt", _host
        yield "status-1.json", self._status
        yield "status-2.json", self._status_later
        yield "processes.txt", self._processes
        yield "data-directory.txt", self._files
        yield "journals.json", lambda: _json(self._journals())
        yield "checkpoints.json", lambda: _json(self._checkpoints())
        yield "scrub.json", lambda: _json(None if (found := read_report(self._data)) is None else found.as_json())
        yield "log.txt", self._log_text

    def write(self, target: Path) -> dict[str, int]:
        """Make the file, which only its owner may read; sizes of its parts. StartError: it is there, or cannot be."""
        sizes = {}
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, make in self.parts():
                    redact = self._redaction.of_json if name.endswith(".json") else self._redaction.of_text
                    content = redact(_made(make)).encode(errors="replace")
                    entry = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
                    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(content))
                    sizes[name] = len(content)
        except FileExistsError as error:
            raise StartError(f"{target} is there already; give another --out") from error
        except OSError as error:
            raise StartError(f"{target}: {error.strerror}") from error
        return sizes

    def _about(self) -> dict[str, Any]:
        return {
            "release": __version__, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "python": sys.version, "platform": platform.platform(), "cpus": os.cpu_count(),
            "usable_cpus": len(os.sched_getaffinity(0)), "user": os.geteuid(), "data": str(self._data),
            "mark": mark_of(self._data), "properties": read_properties(self._data / PROPERTIES_FILE),
        }  # fmt: skip

    def _doctor(self) -> str:
        from tpc_broker.operations.doctor import examine_host, report  # noqa: PLC0415 (it imports what makes rings)

        return report(examine_host(self._data), as_json=False)

    def _status(self) -> str:
        return _json(read_status(self._data))

    def _status_later(self) -> str:
        """A second look, from which rates follow."""
        read_status(self._data)
        time.sleep(BETWEEN_LOOKS_S)
        return self._status()

    def _processes(self) -> str:
        status = read_status(self._data)
        pids = [status["pid"], *(core["pid"] for core in status["cores"] if core["pid"] is not None)]
        return "\n".join(_file(f"/proc/{pid}/{name}") for pid in pids for name in _PROCESS_FILES)

    def _files(self) -> str:
        lines = []
        for folder, folders, names in os.walk(self._data):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                try:
                    found = path.lstat()
                except OSError:
                    continue
                changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
                sizes = f"{found.st_size:>14} {found.st_blocks * 512:>14}"
                lines.append(f"{sizes} {changed} {path.relative_to(self._data)}")
                if len(lines) >= FILES_MAX:
                    return "\n".join([*lines, f"… and more: {FILES_MAX} are told"])
        return "\n".join(["          size      allocated changed              file", *lines])

    def _journals(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted((self._data / "journals").glob("*.journal")):
            try:
                with path.open("rb") as file:
                    superblock = choose_superblock(file.read(REGION_BLOCK_FIRST * BLOCK_BYTES))
                found[path.name] = {**asdict(superblock), "journal_id": superblock.journal_id.hex()}
            except (OSError, JournalUnreadableError) as error:
                found[path.name] = f"{error}"
        return found

    def _checkpoints(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted((self._data / "journals").glob("*.checkpoint")):
            try:
                generation, partitions = decode_checkpoint(path.read_bytes())
            except (OSError, CheckpointError) as error:
                found[path.name] = f"{error}"
                continue
            rows = [
                {
                    "partition": f"{one.topic}-{one.partition}", "topic_id": str(one.topic_id),
                    "segment_base": one.segment_base, "segment_position": one.segment_position,
                    "log_start_offset": one.log_start_offset, "log_end_offset": one.log_end_offset,
                    "committed_end_offset": one.committed_end_offset, "leader_epoch": one.leader_epoch,
                    "epochs_count": len(one.epochs),
                }
                for one in partitions.values()
            ]  # fmt: skip
            found[path.name] = {"generation": generation, "partitions": rows}
        return found

    def _log_text(self) -> str:
        if self._log is None:
            return _run("journalctl", "--unit", "tpc-broker", "--no-pager", "--lines", str(LOG_LINES_MAX))
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LOG_BYTES_MAX))
            return file.read(LOG_BYTES_MAX).decode(errors="replace")


def _made(make: Callable[[], str]) -> str:
    try:
        return make()
    except (OSError, ValueError, KeyError, StartError, subprocess.SubprocessError) as error:
        return f"not to be had: {type(error).__name__}: {error}\n"


def _json(found: object) -> str:
    return json.dumps(found, indent=1, default=str)


def _host() -> str:
    commands = (("uname", "-a"), ("lsblk",), ("df", "-h"), ("findmnt", "--df"), ("sysctl", "kernel.pid_max"))
    return "\n".join([*map(_file, _HOST_FILES), *(_made(partial(_run, *one)) for one in commands)])


def _file(path: str) -> str:
    try:
        return f"== {path}\n{Path(path).read_text(errors='replace')}"
    except OSError as error:
        return f"== {path}: {error.strerror}\n"


def _run(*command: str) -> str:
    done = subprocess.run(  # noqa: S603 (the commands are those above)
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        timeout=COMMAND_S,
    )  # fmt: skip
    return f"== {' '.join(command)}\n{done.stdout}{done.stderr}"
