"""The program of `tests/rust_client`, which has Confluent's client in Rust: fetched, built, and where it is."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tpc_broker.bench.compiled import cache_folder

PACKAGE: Final = Path(__file__).parents[1] / "rust_client"
SECONDS: Final = 900
_TOO_OLD: Final = "requires rustc"


class RustUnavailableError(RuntimeError):
    """Cargo is missing or too old, or a crate cannot be had; the message says which."""


def _cargo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise RustUnavailableError("cargo is not installed, so that nothing of Rust can be built")
    return subprocess.run(
        [cargo, *arguments, "--locked"], cwd=PACKAGE, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def fetch_crates() -> None:
    """Into Cargo's own cache, as Cargo.lock has them."""
    done = _cargo("fetch")
    if done.returncode:
        raise RustUnavailableError(f"the crates could not be fetched: {done.stderr.strip()[-300:]}")


def build_client() -> Path:
    """The program. What Cargo makes is kept in the user's cache folder: a minute and a half the first time."""
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "rust-client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetch_crates()
        done = _cargo("build", "--offline", "--target-dir", root / "rust-client")
    if _TOO_OLD in done.stderr or "unsupported edition" in done.stderr:
        raise RustUnavailableError(f"this Rust is too old: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr
    return root / "rust-client" / "debug" / "rust_client"
