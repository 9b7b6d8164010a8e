"""A server that is measured never outlives the process that measures it, and its end is not waited for in vain."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.server import Server

_MEASURES = """
import signal, sys
from pathlib import Path
from tpc_broker.bench.server import Server
from tpc_broker.cli.bench import end_on_signals

end_on_signals()
server = Server([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], Path(sys.argv[1]))
server.launch()
try:
    print(*server.pids(), flush=True)
    signal.pause()
finally:
    server.stop()
"""


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_server_ends_with_who_measures_it(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", _MEASURES, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as measuring:
        assert measuring.stdout is not None
        pid = int(measuring.stdout.readline())
        try:
            assert _lives(pid)
            measuring.send_signal(number)
            measuring.wait(PATIENCE_S)
            eventually(lambda: not _lives(pid), "the server's end")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            measuring.kill()


PR_SET_CHILD_SUBREAPER = 36
LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def _slow_init() -> Iterator[None]:
    """Whose parent ends is this process's to wait for, and it does not hurry."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("_slow_init")
def test_a_kill_does_not_wait_until_init_takes_notice_of_the_dead(tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = Server([sys.executable, "-c", LEAVES_A_CHILD], log)
    server.launch()
    child = int(eventually(lambda: (text := log.read_text()).endswith("\n") and text, "its child's number"))
    try:
        kill = threading.Thread(target=server.kill)
        kill.start()
        kill.join(PATIENCE_S)
        assert not kill.is_alive(), "it waits for init"
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
