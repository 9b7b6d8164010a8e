"""The tests of frames and connections once more, on an extension built with AddressSanitizer and UBSan."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
CANARY = """
from tpc_broker._ring import ffi, lib
frame = lib.tpc_frame_new(lib.tpc_budget_new(1000), 10)
ffi.memmove(frame.data, bytes(100), 100)
"""

pytestmark = pytest.mark.slow


def sanitizer_libraries():
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc, whose sanitizer libraries are preloaded")
    options = ("-print-file-name=libasan.so", "-print-file-name=libubsan.so")
    paths = [subprocess.check_output([compiler, option], text=True).strip() for option in options]
    if not all(Path(path).is_absolute() for path in paths):
        pytest.skip("gcc has no sanitizer libraries")
    return " ".join(paths)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    libraries = sanitizer_libraries()
    tree = tmp_path_factory.mktemp("sanitized") / "tree"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.o")
    for name in ("native", "tpc_broker", "tests", "routing", "ebpf"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored, symlinks=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    flags = {"TPC_CFLAGS": f"{SANITIZERS} -fno-omit-frame-pointer -O1", "TPC_LDFLAGS": SANITIZERS}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tree, env=os.environ | flags, check=True, capture_output=True)

    def run(*arguments):
        options = f"detect_leaks=0:log_path={tree}/report"
        preloaded = {"LD_PRELOAD": libraries, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": f"log_path={tree}/report"}
        environment = os.environ | preloaded
        environment.pop("PYTHONPATH", None)
        result = subprocess.run(
            [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        reports = [path.read_text() for path in tree.glob("report.*")]
        for path in tree.glob("report.*"):
            path.unlink()
        return result, "\n".join(reports)

    return run


def test_the_canary_dies(run):
    result, report = run("-c", CANARY)
    assert result.returncode != 0
    assert "heap-buffer-overflow" in report


NAMES = ["test_frames.py", "test_connections.py", "test_connections_large.py", "test_connections_random.py"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_touched_that_must_not_be(run, name):
    result, report = run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/runtime/{name}")
    assert not report
    assert result.returncode == 0, result.stdout[-3000:]
