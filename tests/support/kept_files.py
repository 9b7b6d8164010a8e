"""What a run of the tests leaves in pytest's temporary folder: nothing when all passed, else a bounded remainder.

Folders of tests that passed go at once (`tmp_path_retention_policy`), those of fixtures that a module shares with the
module (`module_tmp_path`). What is left belongs to failures; a broker's journals alone can be hundreds of megabytes
there, so the largest files are removed until the rest is within `KEPT_BYTES_MAX`, and the run says which.
"""

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

KEPT_BYTES_MAX = 200 * 1000 * 1000
_removed = pytest.StashKey[list[Path]]()


def used_bytes(folder: Path) -> int:
    """What its files take on the disk, however long they say they are."""
    return sum(_disk_bytes(path) for path in _files(folder))


def trim(folder: Path, bytes_max: int) -> list[Path]:
    """Remove the largest files until the folder has no more than that; what was removed, largest first."""
    sizes = {path: _disk_bytes(path) for path in _files(folder)}
    left, removed = sum(sizes.values()), []
    for path in sorted(sizes, key=lambda one: -sizes[one]):
        if left <= bytes_max:
            break
        path.unlink(missing_ok=True)
        left -= sizes[path]
        removed.append(path)
    return removed


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture(scope="module")
def module_tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for what the tests of a module share; it stays only when one of them failed."""
    failed_before = request.session.testsfailed
    path = tmp_path_factory.mktemp(Path(request.node.name).stem)
    yield path
    if request.session.testsfailed == failed_before:
        shutil.rmtree(path, ignore_errors=True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After pytest's own removals, which no wrapper precedes, and before the summary, which an outer one writes."""
    yield
    base = session.config._tmp_path_factory._basetemp
    if base is not None and base.is_dir():
        session.config.stash[_removed] = trim(base, KEPT_BYTES_MAX)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for path in config.stash.get(_removed, []):
        terminalreporter.write_line(f"removed, to keep no more than {KEPT_BYTES_MAX // 10**6} MB: {path}")
