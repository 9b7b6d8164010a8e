"""A broker's processes whose journals take no writes while a file is there, for tests with real processes.

`environment` has each process of a broker import this module at its start (`sitecustomize`). While the file `NAME` is
in that folder, a thread has put a descriptor for reading in the place of each journal's: writes fail with EBADF, as
they would with EIO. When the file is gone, the journal's own descriptors are back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

NAME: Final = "journals-fail"
VARIABLE: Final = "TPC_TEST_JOURNALS_FAIL"
LOOK_S: Final = 0.02


def environment(folder: Path) -> dict[str, str]:
    """For a broker whose journals are to fail while `folder / NAME` is there."""
    start = folder / "at-start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(Path(__file__).read_text() + "\n\nbegin()\n")
    path = os.pathsep.join([str(start), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, VARIABLE: str(folder / NAME)}


def begin() -> None:
    """In the broker's process."""
    if VARIABLE in os.environ:
        threading.Thread(target=_watch, args=(Path(os.environ[VARIABLE]),), daemon=True).start()


def _watch(fault: Path) -> None:
    kept: dict[int, int] = {}
    """Of each descriptor that was replaced, another one for the same file, which also keeps its lock."""
    while True:
        time.sleep(LOOK_S)
        if fault.exists():
            for link in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError):
                    _break(link, kept)
        else:
            while kept:
                number, original = kept.popitem()
                os.dup2(original, number, inheritable=False)
                os.close(original)


def _break(link: Path, kept: dict[int, int]) -> None:
    target, number = link.readlink(), int(link.name)
    if target.suffix != ".journal" or number in kept or number in kept.values():
        return
    original = os.dup(number)
    reading = os.open(target, os.O_RDONLY | os.O_DIRECT)
    os.dup2(reading, number, inheritable=False)
    os.close(reading)
    kept[number] = original
