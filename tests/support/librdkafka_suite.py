"""librdkafka's own tests, as they come with a package of npm that carries its whole source: fetched, built, run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tpc_broker.bench.compiled import cache_folder

VERSION: Final = "2.15.1"
PACKAGE: Final = "@confluentinc/kafka-javascript@1.10.1"
SHA512: Final = (
    "29578f5019f6d44a8254ff667f1cc4b8cdd26091c7105ed7fa2882d9ee374108"
    "034b211a92c2279821a8a13df0e6af9c340764482acaef58f42027eaa12a992f"
)
SOURCE: Final = "package/deps/librdkafka"
CONFIGURATION: Final = ("ssl", "gssapi", "curl", "optimization")
"""What is left out: none of it is for what is tested here."""
SECONDS: Final = 900


class LibrdkafkaUnavailableError(RuntimeError):
    """What builds it is missing, or its source cannot be had; the message says which."""


def _run(*command: str, folder: Path) -> str:
    """Its standard output."""
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise LibrdkafkaUnavailableError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _fetch(folder: Path) -> None:
    name = _run("npm", "pack", "--silent", PACKAGE, folder=folder).strip().splitlines()[-1]
    found = hashlib.sha512((folder / name).read_bytes()).hexdigest()
    if found != SHA512:
        raise LibrdkafkaUnavailableError(f"{PACKAGE} is not what it was: SHA-512 {found}")
    with tarfile.open(folder / name) as archive:
        members = [member for member in archive if member.name.startswith(f"{SOURCE}/")]
        archive.extractall(folder, members, filter="data")
    (folder / name).unlink()


def build_suite() -> Path:
    """The folder of the tests' program. It is kept in the user's cache folder: a minute and a half the first time."""
    for program in ("npm", "gcc", "g++", "make"):
        if shutil.which(program) is None:
            raise LibrdkafkaUnavailableError(f"{program} is not installed, so that librdkafka's tests cannot be built")
    folder = cache_folder() / f"librdkafka-{VERSION}"
    source = folder / SOURCE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder / "package", ignore_errors=True)
            _fetch(folder)
            _run("./configure", *(f"--disable-{one}" for one in CONFIGURATION), folder=source)
            _run("make", "-j2", "libs", folder=source)
            _run("make", "-j2", "-C", "tests", "test-runner", folder=source)
            (folder / "done").touch()
    return source / "tests"


def run_suite(tests: Path, bootstrap: str, folder: Path, number: str) -> tuple[set[str], str]:
    """Those tests whose names begin with the number, against a cluster of at least three nodes, with what they write in
    `folder`: the names of those that passed, and all that was said. None may fail or be skipped.
    """
    (folder / "test.conf").write_text(f"bootstrap.servers={bootstrap}\n")
    libraries = ":".join(str(tests.parent / part) for part in ("src", "src-cpp"))
    environment = {**os.environ, "TESTS": number, "LD_LIBRARY_PATH": libraries}
    done = subprocess.run(
        [tests / "test-runner", "-p1"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS, check=False,
    )  # fmt: skip
    said = re.sub(r"\x1b\[\d*m", "", done.stdout)
    assert done.returncode == 0, said[-5000:]
    told = dict(re.findall(r"^\| (\d{4}_\w+) +\| +(\w+) ", said, re.MULTILINE))
    assert set(told.values()) == {"PASSED"}, told
    return set(told), said
