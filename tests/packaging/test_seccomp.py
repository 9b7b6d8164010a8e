"""The broker under the system call filters that are shipped, and what it says under one that refuses io_uring."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_process import TpcBroker, run_command
from tests.support.seccomp import IO_URING, WAYS, refusing, under
from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.ring import BACKEND_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGING = Path(__file__).parent.parent.parent / "packaging"


pytestmark = pytest.mark.usefixtures("system_call_filters")


def container_profile() -> dict[str, Any]:
    return json.loads((PACKAGING / "container" / "seccomp.json").read_text())


def unit_profile() -> dict[str, Any]:
    """What the unit's SystemCallFilter= leaves, as this machine's systemd reads its groups."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to ask what @system-service is")
    unit = (PACKAGING / "systemd" / "tpc-broker.service").read_text()
    waiting = " ".join(re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE)).split()
    waiting.append("@default")  # systemd's own addition to every list of what is allowed
    names: set[str] = set()
    while waiting:
        word = waiting.pop()
        if word.startswith("@"):
            listed = subprocess.check_output(["systemd-analyze", "syscall-filter", word], text=True).splitlines()
            waiting += [line.strip() for line in listed[1:] if not line.strip().startswith("#")]
        elif word:
            names.add(word)
    assert len(names) > 200
    rule = {"names": sorted(names), "action": "SCMP_ACT_ALLOW"}
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": [rule]}


@pytest.mark.parametrize("profile", [container_profile, unit_profile])
def test_a_broker_lives_under_the_filter_that_is_shipped(profile, tmp_path: Path) -> None:
    """Produce, fetch, status, a core that dies, a drain, and a start on what is there."""
    broker = TpcBroker(tmp_path, cores_count=2)
    broker.prefix = under(profile(), tmp_path)
    broker.start()
    try:
        tpc("produce", "hello", broker, "one\ntwo\n")
        victim = broker.core_process(0)
        victim.kill()
        broker.wait_core_replaced(0, victim.pid)
        broker.restart()
        tpc("produce", "hello", broker, "three\n")
        assert tpc("consume", "hello", broker, options=["--from", "earliest", "--count", "3"]) == "one\ntwo\nthree\n"
        status = run_command("status", "--data", str(broker.data_folder), "--json")
        assert status.returncode == 0, status.stderr
        broker.stop()
        log = broker.log_text()
        assert "Traceback" not in log
        of_filters = WAYS.keys() - {"O_DIRECT", "fallocate"}  # a file system refuses these
        assert [name for name in of_filters if f"{name} is refused here" in log] == []
    finally:
        broker.kill()


def tpc(command: str, topic: str, broker: TpcBroker, text: str = "", options: Sequence[str] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tpc_broker.cli.main", command, topic, *options, "--bootstrap", broker.bootstrap],
        input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("number", "says", "reason"),
    [
        (errno.EPERM, "io_uring is forbidden here: ", "a seccomp filter refuses io_uring; "),
        (
            errno.ENOSYS,
            "there is no io_uring here: a container or a service needs ",
            "a seccomp filter or the kernel refuses io_uring; ",
        ),
    ],
)
def test_who_insists_on_io_uring_is_told_what_is_needed(
    number: int, says: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's filter answers EPERM, Podman's ENOSYS, which is also what a kernel without io_uring says."""
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)  # the suite's own, where it is refused anyway
    prefix = under(refusing(number, *IO_URING), tmp_path)
    done = run_command("serve", "--data", str(tmp_path / "data"), "--backend", "io_uring", prefix=prefix)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tpc-broker: {says}")
    assert "a seccomp filter that allows io_uring_setup, io_uring_enter and io_uring_register" in line
    assert line.endswith("; or let it do without, slower: --backend plain")
    assert not (tmp_path / "data").exists()
    doctor = run_command("doctor", "--data", str(tmp_path / "data"), prefix=prefix)
    assert doctor.returncode == 0
    assert f"warning  io_uring     {reason}" in doctor.stdout
    assert "The broker can run here." in doctor.stdout
