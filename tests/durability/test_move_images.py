"""Losses of power while partitions are handed between two cores: on every disk that may be left one core at most has a
partition, somebody knows of it, and nothing acknowledged is missing. Mutants of the hand-over are caught.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from tests.durability.crash_images import Replayer, read_record
from tests.durability.recorded_move import CORES, MUTANTS
from tests.durability.test_crash_images import ROOT, Told, problems_of_partition
from tests.support.plain_disk import PlainDisk
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.model import CoreId
from tpc_broker.storage.recovery.handover import hand_over, recover_all
from tpc_broker.storage.recovery.recovery import recover_core

IMAGES, IMAGES_OF_MUTANT = 40, 150

pytestmark = pytest.mark.crash


def recorded(folder: Path, seed: int, mutant: str) -> tuple[Path, Path]:
    """The folder that the data was in, and the record."""
    root, record = folder / "data", folder / "record"
    command = [sys.executable, "-m", "tests.durability.recorded_move", str(root), str(record), str(seed), mutant]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return root, record


async def problems_of_image(folder: Path, marks: list[str]) -> list[str]:
    """Both cores start. Then the same directory with one core, which has everything by then."""
    disk, told = PlainDisk(), Told(marks)
    try:
        owners = await _owners(disk, folder)
    except Exception as error:
        return [f"recovery failed: {type(error).__name__}: {error}"]
    problems = [f"{name}: cores {cores} have it" for name, cores in owners.items() if len(cores) > 1]
    problems += [f"{name} is offline" for name, cores in owners.items() if None in cores]
    problems += [f"{name}: nobody knows of it" for name in told.acknowledged if name not in owners]
    if problems:
        return problems
    recovered = await recover_all(disk, folder, lambda: bytes(16))
    await hand_over(disk, folder, recovered, lambda *_: CoreId(0), cores_count=1, new_journal_id=lambda: b"1" * 16)
    one = await recover_core(disk, folder, CoreId(0), new_journal_id=bytes(16))
    found = {key.topic_id.hex: storage for key, storage in one.storages.items()}
    for name in told.asked:
        try:
            problems += await problems_of_partition(name, found.get(name), told)
        except (BatchDamageError, AssertionError) as error:
            problems.append(f"{name} cannot be read: {error}")
    await one.close()
    return problems


async def _owners(disk: PlainDisk, folder: Path) -> dict[str, list[int | None]]:
    """Of each partition that anybody knows; None stands for an offline one."""
    owners: dict[str, list[int | None]] = {}
    for core in CORES:
        one = await recover_core(disk, folder, CoreId(core), new_journal_id=bytes([core]) * 16)
        for key in one.released:
            owners.setdefault(key.topic_id.hex, [])
        for key in one.storages:
            owners.setdefault(key.topic_id.hex, []).append(core)
        for key in one.offline:
            owners.setdefault(key.topic_id.hex, []).append(None)
        await one.close()
    return owners


def check_images(record: Path, root: Path, chooser: random.Random, images: int, *, until: int) -> list[str]:
    entries = list(read_record(record))
    first = next(at for at, entry in enumerate(entries) if entry.path.startswith("acknowledged"))
    replayer, fed, problems = Replayer(str(root), ["journals", "topics"]), 0, []
    for cut in sorted(chooser.randrange(first, len(entries) + 1) for _ in range(images)):
        for entry in entries[fed:cut]:
            replayer.feed(entry)
        fed = cut
        with tempfile.TemporaryDirectory(dir=root.parent) as image:
            replayer.crash(chooser).write_to(Path(image))
            found = trio.run(problems_of_image, Path(image), replayer.marks)
        problems += [f"crash behind record entry {cut} of {len(entries)}: {one}" for one in found[:1]]
        if len(problems) >= until:
            break
    return problems


def test_every_image_has_one_owner_and_every_record(tmp_path, seed):
    root, record = recorded(tmp_path, seed, "none")
    problems = check_images(record, root, random.Random(seed), IMAGES, until=5)
    assert not problems, "\n".join([f"seed {seed}", *problems])


@pytest.mark.parametrize("mutant", MUTANTS[1:])
def test_mutants_of_the_hand_over_are_caught(tmp_path, seed, mutant):
    root, record = recorded(tmp_path, seed, mutant)
    assert check_images(record, root, random.Random(seed), IMAGES_OF_MUTANT, until=1), f"{mutant} was never seen"
