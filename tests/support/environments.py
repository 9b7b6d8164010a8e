"""Python environments beside the one that the tests run in."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

from tpc_broker.bench.compiled import cache_folder

HERE: Final = Path(sysconfig.get_path("purelib"))
OTHER_PYSPARK: Final = Path(__file__).parents[2] / "requirements" / "other-pyspark.txt"
"""Of the versions that the extra takes, the one that is not in requirements/test.txt."""

QUIX_STREAMS: Final = OTHER_PYSPARK.parent / "quixstreams.txt"
"""Which wants an older librdkafka than the one that is in requirements/test.txt."""


class NotInstalledError(RuntimeError):
    """What an environment is to have cannot be had; the message says why."""


def packages_of(python: Path) -> Path:
    """The folder of an environment's packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parent.parent / "lib" / version / "site-packages"


def environment_of(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with nothing but links to those packages of this one."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    for package in packages:
        found = [path for path in HERE.iterdir() if re.fullmatch(rf"{package}(\..*)?", path.name)]
        assert found, f"{package} is not installed"
        for path in found:
            (packages_of(python) / path.name).symlink_to(path)
    return python


def install(python: Path, *wanted: str | Path) -> None:
    """By the pip of this environment, into another one. `NotInstalledError` with what pip said."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-input", "--no-deps"]
    done = subprocess.run(
        [str(word) for word in (*command, "--disable-pip-version-check", *wanted)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotInstalledError(done.stderr.strip()[-1000:])


def _version_in(requirements: Path, package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", requirements.read_text(), re.MULTILINE)
    assert found, requirements
    return found[1]


def _kept(name: str, requirements: Path) -> Path:
    """The Python of an environment with what is required, kept in the user's cache folder."""
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{name}-python-{sys.version_info.major}.{sys.version_info.minor}"
    with (root / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python, done = folder / "bin" / "python", folder / "done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            environment_of(folder)
            install(python, "--require-hashes", "-r", requirements)
            done.touch()
    return python


def other_pyspark_version() -> str:
    return _version_in(OTHER_PYSPARK, "pyspark")


def other_pyspark() -> Path:
    """The Python of an environment that differs from this one in PySpark's version.

    Its own packages come first, and what it has not is this environment's.
    """
    python = _kept(f"pyspark-{other_pyspark_version()}", OTHER_PYSPARK)
    (packages_of(python) / "others.pth").write_text(f"{HERE}\n")
    return python


def quix_streams_version() -> str:
    return _version_in(QUIX_STREAMS, "quixstreams")


def quix_streams() -> Path:
    """The Python of an environment with Quix Streams and nothing of this one."""
    return _kept(f"quixstreams-{quix_streams_version()}", QUIX_STREAMS)
