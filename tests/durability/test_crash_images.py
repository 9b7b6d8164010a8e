"""Crash images from recorded writes and flushes: recovery passes on all of them, and mutants are caught by some.

`kill -9` leaves the kernel's cache alone, and the loop device tears nothing. Here a core's writes are recorded with the
flushes between them (`recorded_core`), and disks are made from the record in which what was not flushed is missing,
torn at 512 bytes or out of order (`crash_images`). `recover_core` runs on each, and nothing acknowledged up to it may
be missing. The same program with a fault built in must fail this, or the test tests nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

from tests.durability.crash_images import DIRECT, DSYNC, FLUSH_ALL, MARK, RENAME, Replayer, read_record
from tests.durability.recorded_core import MUTANTS, MUTANTS_OF_MANY, MUTANTS_OF_SWAPS, SWAPS
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.log.batch import BatchDamageError, walk_headers
from tpc_broker.log.files import EPOCHS_FILE
from tpc_broker.model import CoreId
from tpc_broker.storage.recovery.recovery import recover_core

ROOT = Path(__file__).resolve().parents[2]
IMAGES = 80
IMAGES_OF_SWAPS = 250
IMAGES_OF_MUTANT = 400
LIVES_OF_MUTANT = 4
"""Some faults show in every life's images, some in most (one life in twelve hid "direct is durable")."""
IN_C = ("no dsync", "early acknowledgement", "in-place without dsync", "in-place too early")

pytestmark = pytest.mark.crash


class Told:
    """What the recorded program said up to the crash, by partition (its topic id)."""

    def __init__(self, marks: list[str]) -> None:
        self.asked: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.acknowledged: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.seen: dict[str, int] = defaultdict(int)
        self.trimming: dict[str, int] = defaultdict(int)
        self.trimmed: dict[str, int] = defaultdict(int)
        self.swapped: dict[str, int] = defaultdict(int)
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        for text in marks:
            word, partition, *numbers = text.split()
            values = [int(number) for number in numbers]
            known = getattr(self, word)
            if isinstance(known, set):
                known.add(partition)
            elif len(values) == 3:
                known[partition][values[0]] = values[1], values[2]
            else:
                known[partition] = max(known[partition], values[0])


async def problems_of_image(folder: Path, marks: list[str]) -> list[str]:
    """Recover what lies in the folder; how it contradicts the marks."""
    told = Told(marks)
    disk = RingDisk(current_ring())
    try:
        recovered = await recover_core(disk, folder, CoreId(0), new_journal_id=bytes(16))
    except Exception as error:
        return [f"recovery failed: {type(error).__name__}: {error}"]
    try:
        offline = {key.topic_id.hex: one for key, one in recovered.offline.items()}
        problems = [f"{name} is offline: {offline[name].reason}" for name in set(offline) - told.deleting]
        found = {key.topic_id.hex: storage for key, storage in recovered.storages.items()}
        for partition in set(told.asked) | set(found) | set(offline):
            if partition in told.deleting:
                # The metadata say so already: nothing of it is kept up any more, and it may be in any state.
                if partition in told.deleted and (partition in found or partition in offline):
                    problems.append(f"{partition} was deleted and is there")
            else:
                try:
                    problems += await problems_of_partition(partition, found.get(partition), told)
                except (BatchDamageError, AssertionError) as error:
                    problems.append(f"{partition} cannot be read: {error}")
        return problems
    finally:
        await recovered.close()


async def problems_of_partition(name: str, storage, told: Told) -> list[str]:
    start = storage.log_start_offset if storage else 0
    end = storage.written_end_offset if storage else 0
    held: dict[int, tuple[int, int]] = {}
    epochs: dict[int, int] = {}
    offset = start
    while offset < end:
        data = await storage.read(offset, 1 << 20)
        assert data, (name, offset, end)
        for header, place in walk_headers(data):
            crc = zlib.crc32(data[place + 21 : place + header.size_bytes])
            held[header.base_offset] = header.next_offset, crc
            epochs.setdefault(header.partition_leader_epoch, header.base_offset)
            offset = header.next_offset
    problems = []
    known = dict(storage.epochs.entries) if storage else {}
    unknown = [epoch for epoch, base in epochs.items() if known.get(epoch, end) > max(base, start)]
    if unknown:
        problems.append(f"{name}: epochs {unknown} of its batches are not known from {start} on: {known}")
    if not told.trimmed[name] <= start <= max(told.trimming[name], told.trimmed[name]):
        problems.append(f"{name} starts at {start}, trimmed to {told.trimmed[name]}, asked for {told.trimming[name]}")
    if end < told.seen[name]:
        problems.append(f"{name} ends at {end}, readers were let up to {told.seen[name]}")
    for base, batch in told.acknowledged[name].items():
        if batch[0] > start and held.get(base) != batch:
            problems.append(f"{name}: acknowledged batch at {base} is lost (found {held.get(base)}, end {end})")
    invented = [base for base, batch in held.items() if told.asked[name].get(base) != batch]
    if invented:
        problems.append(f"{name}: batches were never written: {invented[:5]}")
    return problems


async def check_images(
    record: Path, root: Path, chooser: random.Random, images: int, *, until: int
) -> list[str]:
    """Problems of so many images, made at random places of a record; stops when there are `until`."""
    entries = list(read_record(record))
    first = next(at for at, entry in enumerate(entries) if entry.path.startswith("acknowledged"))
    cuts = sorted(chooser.randrange(first, len(entries) + 1) for _ in range(images))
    replayer, fed, problems = Replayer(str(root), ["journals", "topics"]), 0, []
    memory = Path("/dev/shm")
    for cut in cuts:
        for entry in entries[fed:cut]:
            replayer.feed(entry)
        fed = cut
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else root.parent) as image:
            replayer.crash(chooser).write_to(Path(image))
            found = await problems_of_image(Path(image), replayer.marks)
        if found:
            problems.append(f"crash behind record entry {cut} of {len(entries)}: {found[0]}")
        if len(problems) >= until:
            break
    return problems


def record_life(
    folder: Path, seed: int, mutant: str, python_path: Path, mode: str = "DIRECT_DSYNC", *, way: str = ""
) -> tuple[Path, Path]:
    """Run the recorded program; its record, and the folder that its data was in."""
    root, record = folder / "data", folder / "record"
    command = [sys.executable, "-m", "tests.durability.recorded_core", str(root), str(record), str(seed), mutant, mode]
    done = subprocess.run(
        [*command, way] if way else command,
        cwd=python_path, env={**os.environ, "PYTHONPATH": str(python_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return root, record


@pytest.mark.parametrize("mode", ["DIRECT_DSYNC", "BUFFERED_DSYNC", "BUFFERED_FDATASYNC"])
def test_recovery_passes_on_every_image(tmp_path, seed, mode):
    root, record = record_life(tmp_path, seed, "none", ROOT, mode)
    assert sum(entry.flags == DIRECT for entry in read_record(record)) > 20, "hardly anything was written direct"
    in_place = [one for one in read_record(record) if one.flags == DIRECT | DSYNC and one.path.endswith(".log")]
    assert len(in_place) > 20 or mode != "DIRECT_DSYNC", "hardly anything was written in place"
    problems = run_on_ring(lambda: check_images(record, root, random.Random(seed), IMAGES, until=5))
    assert not problems, "\n".join([f"seed {seed}", *problems])


def test_recovery_passes_on_every_image_of_partitions_that_are_synced_together(tmp_path, seed):
    """Behind the recycling comes `leader-epoch-checkpoint`, without a flush in front of its new name. It may be torn,
    old or missing in an image: recovery reads no such file, and the checkpoint says every epoch that the journal does
    not say any more.
    """
    root, record = record_life(tmp_path, seed, "none", ROOT, way="many")
    entries = list(read_record(record))
    assert sum(entry.kind == FLUSH_ALL for entry in entries) > 10, "hardly any checkpoint"
    assert any(entry.kind == RENAME and entry.payload.endswith(EPOCHS_FILE.encode()) for entry in entries)
    problems = run_on_ring(lambda: check_images(record, root, random.Random(seed), IMAGES, until=5))
    assert not problems, "\n".join([f"seed {seed}", *problems])


def test_recovery_passes_on_every_image_of_segments_that_give_way(tmp_path, seed):
    """To others with the same records: each image has all of them, whichever files it has."""
    root, record = record_life(tmp_path, seed, "none", ROOT, way="swaps")
    assert sum(entry.kind == MARK and entry.path.startswith("swapped") for entry in read_record(record)) >= SWAPS
    problems = run_on_ring(lambda: check_images(record, root, random.Random(seed), IMAGES_OF_SWAPS, until=5))
    assert not problems, "\n".join([f"seed {seed}", *problems])


@pytest.mark.parametrize("mutant", MUTANTS[1:] + MUTANTS_OF_MANY + MUTANTS_OF_SWAPS)
def test_mutants_are_caught(tmp_path, seed, mutant, request):
    way = "many" if mutant in MUTANTS_OF_MANY else "swaps" if mutant in MUTANTS_OF_SWAPS else ""
    path = request.getfixturevalue("built_with_mutants") if mutant in IN_C else ROOT
    for life in range(LIVES_OF_MUTANT):
        folder = tmp_path / str(life)
        folder.mkdir()
        root, record = record_life(folder, seed + life, mutant, path, way=way)
        chooser = random.Random(seed + life)
        if run_on_ring(partial(check_images, record, root, chooser, IMAGES_OF_MUTANT, until=1)):
            return
    images = LIVES_OF_MUTANT * IMAGES_OF_MUTANT
    pytest.fail(f"{images} crash images of {LIVES_OF_MUTANT} lives, and {mutant!r} was never seen (seed {seed})")
