"""The C parts of a core under AddressSanitizer and UBSan: the extension is built once more, and their tests run
with it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1"
TESTED = [
    "test_ring_wait.py",
    "test_ring_net.py",
    "test_ring_disk.py",
    "test_trio_ring.py",
    "test_frames.py",
    "test_journal.py",
    "test_plane_partitions.py",
    "test_plane_produce.py",
    "test_plane_fetch.py",
    "test_plane_fetch_random.py",
    "test_plane_fetch_segments.py",
]
"""The connections have a sanitizer test of their own."""


def sanitizer_libraries():
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip("no C compiler")
    found = []
    for name in ("libasan.so", "libubsan.so"):
        answer = subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if not Path(answer).is_absolute():
            pytest.skip(f"the compiler comes without {name}")
        found.append(str(Path(answer).resolve()))
    return ":".join(found)


@pytest.mark.slow
def test_the_c_parts_tests_pass_with_sanitizers(tmp_path):
    preloaded = sanitizer_libraries()
    shutil.copytree(ROOT / "tpc_broker", tmp_path / "tpc_broker", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    build = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        f"--build-lib={tmp_path}",
        f"--build-temp={tmp_path / 'build'}",
    ]
    subprocess.run(
        build, cwd=ROOT, env=os.environ | {"TPC_CFLAGS": FLAGS, "TPC_LDFLAGS": FLAGS}, check=True, capture_output=True
    )
    environment = os.environ | {
        "LD_PRELOAD": preloaded,
        "PYTHONPATH": str(tmp_path),
        "PYTHONMALLOC": "malloc",
        # Python itself leaves memory behind at its end
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    where = subprocess.run(
        [sys.executable, "-c", "import tpc_broker._ring as built; print(built.__file__)"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert where.stdout.startswith(str(tmp_path)), where.stderr
    tests = [str(ROOT / "tests/runtime" / name) for name in TESTED]
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not slow",
            "-q",
            "-x",
            "-s",
            "-p",
            "no:cacheprovider",
            "-o",
            f"pythonpath={tmp_path}",
            *tests,
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    output = child.stdout + child.stderr
    assert child.returncode == 0, output[-6000:]
    assert "Sanitizer" not in output, output[-6000:]
