"""When the processes of a server, of a test's or of the bench's, count as gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tpc_broker.bench.server import has_ended

THREAD_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=[1000]).start()
ctypes.CDLL(None).pthread_exit(None)
"""
STARTS_ONE = """
import sys, threading
from pathlib import Path
from tests.support.server_process import ServerProcess
server = ServerProcess([sys.executable, "-c", "import time; time.sleep(1000)"], Path(sys.argv[1]))
if sys.argv[2] == "in a thread":
    thread = threading.Thread(target=server.launch)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():  # Python is done with it a little before the kernel is
        pass
else:
    server.launch()
while Path(f"/proc/{server.pid}/comm").read_text().startswith("setpriv"):  # it has not asked for the signal yet
    pass
print(server.pid, flush=True)
sys.stdin.read()
"""


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("program", ["import time; time.sleep(1000)", THREAD_LEFT], ids=["process", "thread"])
def test_what_runs_has_not_ended_and_the_dead_that_nobody_asked_for_have(program):
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        try:
            wanted = "Z" if program == THREAD_LEFT else "S"
            eventually(lambda: state_of(process) == wanted, wanted)
            assert not has_ended(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(process) == "Z"
        assert has_ended(process.pid)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv, which is of util-linux")
def test_a_server_does_not_outlive_the_tests_that_have_started_it(tmp_path):
    command = [sys.executable, "-c", STARTS_ONE, str(tmp_path / "log"), ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        server = int(tests.stdout.readline())
        assert not has_ended(server)
        tests.kill()
    eventually(lambda: has_ended(server), "the server has ended with them")


def test_one_that_a_thread_has_started_outlives_the_thread(tmp_path):
    """The kernel's signal at the end of a parent is one at the end of its thread."""
    command = [sys.executable, "-c", STARTS_ONE, str(tmp_path / "log"), "in a thread"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        server = int(tests.stdout.readline())
        try:
            assert not has_ended(server)
        finally:
            os.killpg(server, signal.SIGKILL)
