"""An ext4 file system in a file, on a loop device: the machine whose power a test takes away, or that runs full.

What a program wrote and nobody flushed lies in the kernel's cache above the device and is not in the backing file, so a
copy of that file is what the disk would hold if the power went at that moment. Everything is unmounted and detached
when the block ends, whatever happened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S


class LoopUnavailable(RuntimeError):  # noqa: N818 (it says what is)
    """No loop devices or mounts for this user here; the message is the reason for a skip."""


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise LoopUnavailable(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


class LoopFileSystem:
    """A mounted image. `mount_point` is its root, owned by this user."""

    def __init__(self, image: Path, mount_point: Path, device: str) -> None:
        self.image = image
        self.mount_point = mount_point
        self._statistics = Path("/sys/block") / Path(device).name / "stat"

    def _written(self) -> tuple[int, int]:
        """Sectors written to the device so far, and requests in flight."""
        fields = self._statistics.read_text().split()
        return int(fields[6]), int(fields[8])

    def copy_as_it_stands(self, target: Path) -> None:
        """Copy the backing file as of one instant: no write may reach the device from begin to end of the copy.

        Those who write should be stopped; the kernel's own write-back is waited out.
        """
        give_up_at = time.monotonic() + 30
        while True:
            before = self._written()
            _run("cp", "--sparse=always", "--reflink=auto", self.image, target)
            if before[1] == 0 and self._written() == before:
                return
            if time.monotonic() > give_up_at:
                raise AssertionError(f"writes to {self.mount_point} do not stop")
            time.sleep(0.02)


@contextmanager
def mounted(image: Path, mount_point: Path) -> Iterator[LoopFileSystem]:
    """Mount an image that is there."""
    mount_point.mkdir(parents=True, exist_ok=True)
    device = _run("losetup", "--find", "--show", image)
    try:
        _run("mount", "-t", "ext4", device, mount_point)
        try:
            yield LoopFileSystem(image, mount_point, device)
        finally:
            _unmount(mount_point)
    finally:
        subprocess.run(["losetup", "--detach", device], capture_output=True, timeout=PATIENCE_S, check=False)


def _unmount(mount_point: Path) -> None:
    """A killed process's ring may hold the file system for some milliseconds more."""
    for _ in range(100):
        done = subprocess.run(["umount", str(mount_point)], capture_output=True, timeout=PATIENCE_S, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "--lazy", str(mount_point)], capture_output=True, timeout=PATIENCE_S, check=False)


@contextmanager
def new_file_system(folder: Path, size_bytes: int) -> Iterator[LoopFileSystem]:
    """Make, mount and finally remove an ext4 file system. Skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / "image"
    try:
        if os.geteuid() != 0:
            raise LoopUnavailable("mounting needs root")
        if shutil.which("mkfs.ext4") is None:
            raise LoopUnavailable("mkfs.ext4 is not installed (Debian: e2fsprogs)")
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", image)
        context = mounted(image, folder / "mounted")
        system = context.__enter__()
    except LoopUnavailable as reason:
        pytest.skip(f"no loop device: {reason}")
    try:
        yield system
    finally:
        context.__exit__(None, None, None)
        image.unlink(missing_ok=True)
