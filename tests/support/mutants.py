"""The package with its faults compiled in (`-DTPC_MUTANTS`): built once for all tests of a run that want it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built_with_mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the faults compiled into the C part."""
    target = tmp_path_factory.mktemp("mutants")
    for name in ("native", "tpc_broker", "routing", "ebpf", "tests"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__", ".hypothesis", "build")
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    built = subprocess.run(  # not in parallel: both extensions compile native/bytes into the same object files
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=target, env={**os.environ, "TPC_CFLAGS": "-DTPC_MUTANTS -O1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    return target
