"""The bench's C programs, compiled when they are first needed and kept in the user's cache folder.

They are no part of the extensions: who installs a wheel needs no compiler, who measures needs one and the source tree.
The name of a kept program carries a checksum of its sources and flags.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[2] / "native"
_FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-D_GNU_SOURCE")
_PROGRAMS: Final = {
    "load": ("bench/load.c", "bench/load_answers.c", "bench/load_tls.c"),
    "bare_durable": ("bench/bare_durable.c", "bytes/crc32c.c"),
    "transaction_load": ("bench/transaction_load.c", "bench/load_answers.c", "bytes/crc32c.c"),
    "datagram_load": ("bench/datagram_load.c",),
    "disk_limit": ("bench/disk_limit.c",),
    "loopback_limit": ("bench/loopback_limit.c",),
}
_LIBRARIES: Final = {"load": ("-lssl", "-lcrypto")}
"""Besides liburing."""
_HEADERS: Final = ("bench/histogram.h", "bench/load.h")


class CannotBuild(RuntimeError):  # noqa: N818 (it says what is)
    """No source tree, no compiler, or it failed; the message says which."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tpc-broker"


def program(name: str) -> Path:
    """Path of the compiled program; compiles it when its sources are new."""
    sources = [SOURCES / source for source in _PROGRAMS[name]]
    if not all(source.exists() for source in sources):
        raise CannotBuild(f"{sources[0]} is missing: the bench runs from a source tree")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise CannotBuild(f"there is no C compiler {compiler[0]!r}")
    machine = ("-msse4.2",) if platform.machine() == "x86_64" else ()
    flags = [*_FLAGS, *machine, f"-I{SOURCES / 'bytes'}"]
    digest = hashlib.sha256(" ".join(flags).encode())
    for path in [*sources, *(SOURCES / header for header in _HEADERS)]:
        digest.update(path.read_bytes())
    target = cache_folder() / "bench" / f"{name}-{digest.hexdigest()[:16]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        command = [*compiler, *flags, *map(str, sources), "-o", str(unfinished), "-luring", *_LIBRARIES.get(name, ())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"{shlex.join(command)}\n{done.stderr}")
        unfinished.rename(target)
    return target
