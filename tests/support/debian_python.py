"""Pythons that this machine does not have: later Debians', unpacked into a folder with their own C library.

apt downloads it with its own lists, beside those of the system, and dpkg unpacks it: nothing is installed, and nobody
has to be root. It is started by the dynamic linker that came along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

RELEASES: Final = {"3.13": "trixie", "3.15": "sid"}
"""Each version, and the release of Debian that has it; the last one is the newest Python that there is."""
KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_FOLDERS: Final = ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "root")


def _mirror() -> str:
    """Where this machine's own packages come from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [each for each in sorted(set(done.stdout.split())) if "security" not in each]
    if not found:
        raise NoPythonError("apt has no mirror of Debian")
    return found[0]


class NoPythonError(RuntimeError):
    """It cannot be had here; the message says why."""


class DebianPython:
    """``version``: one of `RELEASES`; ``packages``: what `install` puts there."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self.packages = folder / "packages"
        self._root = folder / "root"
        self._folder = folder

    def fetch(self) -> None:
        if not KEYS.exists() or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise NoPythonError("this is not Debian")
        for name in _FOLDERS:
            (self._folder / name).mkdir(parents=True)
        (self._folder / "state/status").touch()
        source = f"deb [signed-by={KEYS}] {_mirror()} {RELEASES[self.version]} main\n"
        (self._folder / "etc/sources.list").write_text(source)
        lines = [f'Dir::State "{self._folder}/state";', f'Dir::State::status "{self._folder}/state/status";']
        lines += [f'Dir::Cache "{self._folder}/cache";', f'Dir::Etc "{self._folder}/etc";']
        lines += ['APT::Architecture "amd64";', 'Acquire::Languages "none";', 'APT::Sandbox::User "root";']
        lines += ['Acquire::Check-Valid-Until "false";']  # lists of a release that is not out yet are good for a week
        (self._folder / "apt.conf").write_text("\n".join(lines))
        packages = [f"python{self.version}", f"python{self.version}-venv"]
        self._apt("update")
        self._apt("install", "--yes", "--no-install-recommends", "--download-only", *packages)
        for archive in sorted((self._folder / "cache/archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, self._root], check=True)

    def _apt(self, *words: str) -> None:
        environment = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf")}
        done = subprocess.run(
            ["apt-get", "-qq", *words], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise NoPythonError(f"apt-get {words[0]}: {done.stderr.strip()[-300:]}")

    def install(self, *what: str | Path) -> None:
        """By the pip that came along, from the indexes that pip knows."""
        [pip] = (self._root / "usr/share/python-wheels").glob("pip-*.whl")
        options = ["--quiet", "--root-user-action=ignore", "--target", self.packages]
        done = self.run(f"{pip}/pip", "install", *options, *what)
        assert done.returncode == 0, done.stderr

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        [linker] = (self._root / "usr/lib").glob("*/ld-linux-*.so.2")
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        own |= {"PYTHONHOME": str(self._root / "usr"), "PYTHONPATH": str(self.packages)}
        command = [linker, "--library-path", linker.parent, self._root / f"usr/bin/python{self.version}", *words]
        return subprocess.run([str(word) for word in command], env=own, capture_output=True, text=True, check=False)
