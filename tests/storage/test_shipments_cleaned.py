"""Shipments beside swaps of cleaned segments: of each segment log, indexes and seal are of one version."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.storage.test_segment_identity import keep, made, swap
from tests.storage.test_segment_reader import Stop
from tests.support.cleaned_copies import cleanable, cleaned_copy, sources_of
from tests.support.fake_disk import at_every_effect
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import CLEANED_SUFFIXES, SEAL_SUFFIX, segment_file_name
from tpc_broker.log.indexes import OffsetIndex
from tpc_broker.log.seals import Seal
from tpc_broker.model import CoreId
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.replicas.filled_logs import bring_own
from tpc_broker.storage.replicas.shipments import Shipments
from tpc_broker.storage.segments.segment_swap import SwapRefusedError


async def begin(storage, results):
    shipments = Shipments(storage.folder.files, Path("/"), CoreId(0))
    results.append(await shipments.begin(storage, 0, storage.written_end_offset, 0))


def shipped(disk, shipment):
    """Contents by name, as far as they are shipped."""
    return {file.name: bytes(disk.names[shipment.folder.path / file.name].content[: file.size_bytes])
            for file in shipment.files}  # fmt: skip


def check(contents):
    """Base offsets of the cleaned ones."""
    bases = sorted(int(name[:20]) for name in contents if name.endswith(".log"))
    cleaned = []
    for base, behind in zip(bases, [*bases[1:], None], strict=True):
        files = [contents.get(segment_file_name(base, suffix), b"") for suffix in CLEANED_SUFFIXES]
        log, seal = files[0], contents.get(segment_file_name(base, SEAL_SUFFIX))
        headers = {place: header for header, place in walk_headers(log)}
        for entry in OffsetIndex(base, files[1]):
            assert headers[entry.position].last_offset == entry.offset
        if seal is not None:
            decoded = Seal.decode(seal)
            assert [(len(data), crc32c(data)) for data in files] == [tuple(file) for file in decoded.files]
            assert decoded.end_offset == behind
            cleaned.append(base)
        else:
            offsets = [header.base_offset for header in headers.values()]
            assert offsets == list(range(base, behind or base + len(offsets)))
    return cleaned


@pytest.mark.parametrize("first", ["shipment", "swap"])
async def test_a_swap_beside_it_at_each_step(first):
    number, seen = 0, set()
    while True:
        number += 1
        storage, results = await made(), []
        disk = storage.folder.disk
        stop = Stop(disk, number)
        tasks = {"shipment": lambda at=storage, into=results: begin(at, into), "swap": lambda at=storage: swap(at)}

        async def run(name, tasks=tasks, stop=stop):
            if name == first:
                stop.task = trio.lowlevel.current_task()
            await tasks[name]()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(run, "swap" if first == "shipment" else "shipment")
            await trio.testing.wait_all_tasks_blocked()
            stop.go_on()
        [shipment] = results
        seen.add(tuple(check(shipped(disk, shipment))))
        if not stop.reached.is_set():
            break
    assert number > 10
    assert () in seen or first == "swap"


async def test_a_cleaned_segment_is_not_shipped_without_its_seal():
    storage = await made()
    await swap(storage)
    cleaned = next(segment for segment in storage.segments if segment.seal is not None)
    await storage.folder.remove(segment_file_name(cleaned.base_offset, SEAL_SUFFIX))
    with pytest.raises(StorageFailedError):
        await begin(storage, [])


async def test_nothing_is_shipped_or_kept_from_the_midst_of_a_swap_that_has_failed():
    """The names are in part the cleaned segment's, and which is which only mending finds out."""

    async def run(effect):
        storage = await made()
        disk, folder = storage.folder.disk, Path("/own")
        disk.put_folder(folder)
        segments = cleanable(storage)[1:2]
        sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)
        disk.effects, disk.fail_at = 0, effect
        try:
            await storage.swap(sources, seal, lambda: None)
        except SwapRefusedError:
            return True
        except StorageFailedError:
            if segments[0] not in storage.segments:  # all of the swap is there but its last sync
                return True
            with pytest.raises(OSError, match="in part"):
                await begin(storage, [])
            with pytest.raises(OSError, match="in part"):
                await bring_own(storage, folder, seal.end_offset, 0)
            return True
        return False

    assert await at_every_effect(run) > 6
