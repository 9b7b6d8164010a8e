"""Processes that the supervisor starts: with the terminal's signals blocked, and awaited through their pidfds."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import trio

from tpc_broker.process.control import TERMINAL_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Sequence


def start_process(command: Sequence[str], descriptors: Sequence[int]) -> tuple[subprocess.Popen[bytes], int]:
    """And its pidfd. With the terminal's signals blocked, which the process unblocks when it has learnt to ignore them.
    OSError: there is too little of something for it; then nothing of it is left.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return process, os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


async def wait_for(process: subprocess.Popen[bytes], life_fd: int) -> int:
    """Exit code of a child, awaited through its pidfd, which nobody else waits for."""
    while process.poll() is None:
        await trio.lowlevel.wait_readable(life_fd)
    return process.returncode


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # one of the real-time signals, of which most have no name
        return f"killed by signal {-code}"
