"""Two cffi extensions and, where clang is there, the kernel program; everything else is in pyproject.toml."""

import runpy
import sys

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithProgram(build_py):
    """Without the program the broker lacks what `tpc-broker doctor` says, and can be given it afterwards."""

    def run(self) -> None:
        program = runpy.run_path("tpc_broker/ebpf/build.py")
        try:
            program["build_object"]()
        except program["NotBuiltError"] as reason:
            sys.stderr.write(f"no eBPF object: {reason}\n")
        super().run()


setup(
    cmdclass={"build_py": BuildWithProgram},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for 3.11 and later: cffi builds to the stable ABI
    cffi_modules=["native/build_bytes.py:ffibuilder", "native/build_ring.py:ffibuilder"],
)
