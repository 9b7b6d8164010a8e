"""Compile `programs/steer.c` ahead of time, for the loader that needs no compiler on the host: `python ebpf/build.py`.

Called by `setup.py` too, so that an installation where clang is there has the object. Without clang there is none, and
nothing else is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "programs" / "steer.c"
OBJECT: Final = SOURCE.with_name(f"steer-{zlib.crc32(SOURCE.read_bytes()):08x}.o")
"""Named after its source: one that was built of another is not taken for it."""
INSTALL_CLANG: Final = "apt-get install -y --no-install-recommends clang libbpf1"


class NotBuiltError(Exception):
    """One line: why there is no object."""


def build_object(target: Path = OBJECT) -> Path:
    """The object, made anew. Raises NotBuiltError."""
    clang = shutil.which("clang")
    if clang is None:
        raise NotBuiltError("clang is not installed")
    multiarch = sysconfig.get_config_var("MULTIARCH")  # where Debian has the kernel's asm/ headers
    headers = [f"-I/usr/include/{multiarch}"] if multiarch else []
    command = [clang, "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", *headers, "-c", str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or "no reason").splitlines()[0]
        raise NotBuiltError(f"clang cannot compile {SOURCE}: {said}")
    for old in set(target.parent.glob("steer-*.o")) - {target}:
        old.unlink()
    return target


if __name__ == "__main__":
    try:
        print(build_object())  # noqa: T201 (a command)
    except NotBuiltError as error:
        sys.exit(str(error))
