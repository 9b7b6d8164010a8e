"""A run of the tests leaves at most 200 MB behind, and nothing when all passed (`tests/support/kept_files.py`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kept_files import KEPT_BYTES_MAX, trim, used_bytes

ROOT = Path(__file__).parent.parent.parent
LARGE = 150 * 1000 * 1000
SUITE = f"""
import os
import pytest

def fill(path):
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, {LARGE})

@pytest.fixture(scope="session")
def of_the_session(tmp_path_factory):
    fill(tmp_path_factory.mktemp("session") / "file")

@pytest.mark.parametrize("number", range(3))
def test_passes(number, tmp_path, of_the_session):
    fill(tmp_path / "file")
    assert len(list(tmp_path.parent.glob("**/file"))) == 2  # the last test's is gone
"""
FAILING = """
@pytest.mark.parametrize("number", range(2))
def test_fails(number, tmp_path):
    fill(tmp_path / "file")
    (tmp_path / "broker.log").write_text("why it failed")
    assert not number + 1
"""
BEFORE = """
def test_first(module_tmp_path):
    (module_tmp_path / "file").write_text("")

def test_second(module_tmp_path):
    assert (module_tmp_path / "file").exists()
"""
THEN = """
def test_after(tmp_path):
    assert not list(tmp_path.parent.glob("**/file"))
"""


def run(folder: Path, **suites: str) -> tuple[int, str, Path]:
    """Exit code, output, and where the temporary files were, of a run with this project's settings."""
    for name, suite in suites.items():
        (folder / f"test_{name}.py").write_text(suite)
    (root := folder / "kept").mkdir()
    settings = ["-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *(folder / f"test_{name}.py" for name in suites)],
        cwd=ROOT, env=os.environ | {"PYTEST_DEBUG_TEMPROOT": str(root)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, root


def test_a_run_that_passes_leaves_nothing(tmp_path: Path) -> None:
    code, output, root = run(tmp_path, passing=SUITE)
    assert code == pytest.ExitCode.OK, output
    assert used_bytes(root) == 0


def test_a_run_that_fails_leaves_what_explains_it_within_the_bound(tmp_path: Path) -> None:
    code, output, root = run(tmp_path, failing=SUITE + FAILING)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert used_bytes(root) <= KEPT_BYTES_MAX
    assert len({path.resolve() for path in root.glob("pytest-of-*/pytest-0/*/broker.log")}) == 2
    assert output.count("removed, to keep no more than 200 MB") == 2


def test_a_folder_of_a_module_goes_with_the_module(tmp_path: Path) -> None:
    code, output, _root = run(tmp_path, before=BEFORE, then=THEN)
    assert code == pytest.ExitCode.OK, output


def test_the_largest_files_go_first(tmp_path: Path) -> None:
    for name, size in (("a", 40_000), ("b", 400_000), ("c", 4_000)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert [path.name for path in trim(tmp_path, 60_000)] == ["b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
