"""When the processes of a server, of a test's or of the bench's, count as gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpc_broker.bench.server import has_ended

THREAD_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=[1000]).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("program", ["import time; time.sleep(1000)", THREAD_LEFT], ids=["process", "thread"])
def test_what_runs_has_not_ended_and_the_dead_that_nobody_asked_for_have(program):
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        try:
            wanted = "Z" if program == THREAD_LEFT else "S"
            give_up_at = time.monotonic() + 60
            while state_of(process) != wanted:
                assert time.monotonic() < give_up_at
                time.sleep(0.01)
            assert not has_ended(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(process) == "Z"
        assert has_ended(process.pid)
