"""A partition whose large batches are written in place: a core on a real disk, crashed by copying its folder."""

from __future__ import annotations

import os
import random
import socket
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.crash_copy import copy_as_crashed
from tpc_broker._ring import ffi, lib
from tpc_broker.bench.kafka_requests import PRODUCE_VERSION, produce_request
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.kafka import ApiKey, protocol
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.journal import JournalMode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.options import CoreOptions
from tpc_broker.process import assembly
from tpc_broker.storage.recovery.recovery import recover_core

KEY = TopicPartition(TopicId(uuid.UUID(int=77)), PartitionIndex(0))
SEGMENT_BYTES = 6 * 1024 * 1024
GROWN_BLOCKS = 4096


class Bench:
    """One partition on one core, with what was acknowledged."""

    def __init__(self, core: assembly.CoreAssembly) -> None:
        self.core = core
        self.storage, self.plane = core.storage, core.plane
        self.chooser = random.Random(5)
        self.acknowledged: dict[int, bytes] = {}

    async def open(self) -> None:
        self.config = self.make_config()
        self.files = await self.storage.open(KEY, "topic", self.config)
        await self.storage.begin_epoch(self.files)
        self.handle = self.storage.register(self.files, self.config, is_internal=False)

    @staticmethod
    def make_config() -> TopicConfig:
        config = load_settings("", ("log.segment.bytes=1048576",)).topic_config({}, is_internal=False)
        object.__setattr__(config, "segment_bytes", SEGMENT_BYTES)
        return config

    async def grow_journal(self) -> None:
        """As the maintenance does when it is used."""
        await self.storage._recovered.journal_file.extend(self.plane, blocks=GROWN_BLOCKS)

    async def append(self, value_bytes: int, count: int = 1) -> None:
        """So many batches in one commit."""
        pending = []
        for _ in range(count):
            data = batch(0, [self.chooser.randbytes(value_bytes)], epoch=self.files.leader_epoch)
            await self.storage.make_room(self.files, self.handle, len(data))
            result = self.plane.append(self.handle, data)
            assert result is not None, "the journal is full"
            assert result.error_code == 0, result
            pending.append((result, data))
        for result, data in pending:
            await self.plane.wait_committed(self.handle, result.end_offset, result.leader_epoch)
            self.acknowledged[result.base_offset] = data[21:]

    async def begin_in_place(self) -> None:
        """Write as a busy partition does, until its batches are written in place."""
        for _ in range(20):
            await self.append(300_000, 4)
            await self.storage.write_behind(all_of_it=False)
            await self.storage.checkpoint()
            if self.plane.set_in_place_space(self.handle, self.files.active.reserved_end_position):
                return
        pytest.skip("the file system takes no direct writes here")

    def in_place_bytes(self) -> int:
        return int(self.journal_statistics().in_place_bytes_written)

    def journal_statistics(self):
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self.plane._journal, statistics)
        return statistics

    async def produce(self, clients: Sequence[Sequence[bytes]], in_flight: int) -> None:
        """Each client sends its batches over a connection of its own, so many under way, until all are acknowledged."""
        await self.storage.make_room(self.files, self.handle, sum(len(data) for batches in clients for data in batches))
        async with trio.open_nursery() as nursery:
            for batches in clients:
                ours, theirs = socket.socketpair()
                self.core.connections._connections.adopt(theirs.detach())
                requests = [produce_request("topic", 0, data) for data in batches]
                nursery.start_soon(self._produce, ours, batches, requests, in_flight)

    async def _produce(self, client: socket.socket, batches, requests, in_flight: int) -> None:
        with client:
            offsets = await trio.to_thread.run_sync(ask_all, client, requests, in_flight)
        for base_offset, data in zip(offsets, batches, strict=True):
            self.acknowledged[base_offset] = data[21:]

    @property
    def log(self) -> Path:
        return self.files.folder.path / self.files.active.log_name


def ask_all(client: socket.socket, requests: Sequence[bytes], in_flight: int) -> list[int]:
    """Produce requests of one batch each; their base offsets."""
    offsets, sent = [], 0
    while len(offsets) < len(requests):
        for request in requests[sent : len(offsets) + in_flight]:
            client.sendall(request)
            sent += 1
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
        _, answer = protocol.decode_response_frame(
            ApiKey.PRODUCE, PRODUCE_VERSION, client.recv(size, socket.MSG_WAITALL)
        )
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == 0, partition
        offsets.append(partition.base_offset)
    return offsets


async def held(storage) -> dict[int, bytes]:
    found, offset = {}, storage.segments[0].base_offset
    while offset < storage.written_end_offset:
        data = await storage.read(offset, 1 << 22)
        for header, place in walk_headers(data):
            found[header.base_offset] = bytes(data[place + 21 : place + header.size_bytes])
            offset = header.next_offset
    return found


async def recovered_copy(bench: Bench, target: Path, change=None):
    """What a crash now would leave, recovered; `change` gets the copied log first."""
    data = bench.files.folder.path.parents[1]
    copy_as_crashed(data, target)
    if change is not None:
        change(target / bench.log.relative_to(data))
    return await recover_core(bench.core.disk, target, CoreId(0), new_journal_id=bytes(16))


async def assert_kept(bench: Bench, target: Path) -> None:
    """A crash now would lose nothing that was acknowledged, and take nothing offline."""
    recovered = await recovered_copy(bench, target)
    assert not recovered.offline
    assert await held(recovered.storages[KEY]) == bench.acknowledged
    await recovered.close()


async def _on_core(folder: Path, body, bench_type: type[Bench]) -> None:
    nowhere = dict.fromkeys(("mailbox_fd", "control_fd"), -1)
    options = CoreOptions(
        core=CoreId(0), cores=1, data=str(folder), **nowhere, mailbox_names=(), listeners=(), listen_fds=(),
        cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
    )  # fmt: skip
    for name in ("journals", "topics"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    async with assembly.open_assembly(options) as core:
        bench = bench_type(core)
        await bench.open()
        await body(bench)


def on_core(tmp_path, body, bench_type: type[Bench] = Bench) -> None:
    """`body` gets a `Bench`. In other modes nothing is written in place, and a busy disk may seem to lack this one."""
    with mock.patch.object(assembly, "probe_journal_mode", return_value=JournalMode.DIRECT_DSYNC):
        run_on_ring(partial(_on_core, tmp_path / "data", body, bench_type))


def recover(data: Path):
    return recover_core(RingDisk(current_ring()), data, CoreId(0), new_journal_id=bytes(16))


def recovered(data: Path) -> dict[int, bytes]:
    """What the partition holds after another start."""

    async def body():
        core = await recover(data)
        try:
            assert not core.offline
            return await held(core.storages[KEY])
        finally:
            await core.close()

    return run_on_ring(body)
