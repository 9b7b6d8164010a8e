"""Two cffi extensions and, where clang is there, the kernel program; everything else is in pyproject.toml.

`_bytes` is the client's too. `_ring` is the broker's alone, and is left out where liburing's headers are missing, with
the reason on standard error; ``TPC_RING=on`` refuses to build without it, ``TPC_RING=off`` builds without it.
"""

import runpy
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))
from native.headers import HeadersMissingError, reason_without_ring


class BuildWithProgram(build_py):
    """Without the program the broker lacks what `tpc-broker doctor` says, and can be given it afterwards."""

    def run(self) -> None:
        program = runpy.run_path("tpc_broker/ebpf/build.py")
        try:
            program["build_object"]()
        except program["NotBuiltError"] as reason:
            sys.stderr.write(f"no eBPF object: {reason}\n")
        super().run()


def extensions() -> list[str]:
    """Those that can be built here."""
    try:
        reason = reason_without_ring()
    except HeadersMissingError as error:
        sys.exit(f"tpc-broker: {error}")
    if reason:
        sys.stderr.write(f"tpc-broker: the client only, without the broker's ring: {reason}\n")
    return ["native/build_bytes.py:ffibuilder", *([] if reason else ["native/build_ring.py:ffibuilder"])]


setup(
    cmdclass={"build_py": BuildWithProgram},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for 3.11 and later: cffi builds to the stable ABI
    cffi_modules=extensions(),
)
