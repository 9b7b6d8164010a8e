"""A server that is measured never outlives the process that measures it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
            measuring.wait(60)
            give_up_at = time.monotonic() + 60
            while _lives(pid) and time.monotonic() < give_up_at:
                time.sleep(0.01)
            assert not _lives(pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            measuring.kill()
