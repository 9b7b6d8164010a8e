"""Python environments beside the one that the tests run in."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

HERE: Final = Path(sysconfig.get_path("purelib"))


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
