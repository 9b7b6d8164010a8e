"""A cleaner's process that does what the job's label says: ``python -m tests.support.fake_cleaner OPTIONS``."""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.support.cleaning_jobs import REPORT, a_group
from tpc_broker import limits
from tpc_broker.cleaner.cleaner_process import CleanerOptions, Work, run
from tpc_broker.log.cleaning_job import CleaningJob, CleaningReport

HANGS_S = 0.3


def clean(
    job: CleaningJob, take: Callable[..., None], pace: Callable[[int], None], should_stop: Callable[[], bool]
) -> CleaningReport:
    """What it finds out of its process is in the report, in fields that are as good as any."""
    told: dict[str, Any] = {"records_read": os.getpid(), "map_keys": os.getppid()}
    match job.label:
        case "nice":
            told["records_kept"] = os.getpriority(os.PRIO_PROCESS, 0)
        case "greedy":  # what it is given, and then more
            kept = [mmap.mmap(-1, job.dedupe_bytes), bytearray(job.decompressed_bytes_max)]
            kept += [bytearray(1 << 20) for _ in range(4096)]
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hangs":
            limits.CLEANER_SILENT_S = HANGS_S
            pace(1)
            signal.pause()
        case "long":
            take(a_group())
            while not should_stop():
                pace(1)
            raise RuntimeError("stopped")
        case _:
            pace(1 << 20)
    return REPORT._replace(**told)


if __name__ == "__main__":
    sys.exit(run(CleanerOptions.from_argument(sys.argv[1]), Work(clean, KeyError)))
