"""The disk runs full: appends are refused, everything else goes on, and it heals by itself when space is back."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from typing import Self

import pytest
from confluent_kafka.admin import AdminClient

from tests.durability.conftest import against_kafka, new_broker_on_disk
from tests.durability.loop_device import new_file_system
from tests.durability.raw_produce import KAFKA_STORAGE_ERROR, PartitionClient
from tests.durability.workload import client_settings, create_topics
from tests.support.backends import on_io_uring
from tests.support.waiting import eventually

DISK_BYTES = 256 << 20
VALUE_BYTES = 200_000
BACKENDS = [on_io_uring("io_uring"), pytest.param("plain", marks=pytest.mark.plain)]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="Kafka takes its log folder offline for good"),
]


def fill(path, leave_bytes):
    """Take space with one file until so much is left; as far as it goes while the broker takes some too."""
    with path.open("ab") as file:
        while True:
            state = os.statvfs(path.parent)
            more = (state.f_bavail * state.f_frsize - leave_bytes) // 2
            if more < 65536:
                return
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + more)


class Kept:
    """What one partition acknowledged."""

    def __init__(self, broker, topic) -> None:
        self.client = PartitionClient(broker, topic)
        self.values: dict[int, bytes] = {}
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def produce(self) -> int:
        """One large record; its error code."""
        self._number += 1
        value = f"{self._number:07}|".encode() * (VALUE_BYTES // 8)
        code, offset = self.client.produce(value)
        if code == 0:
            assert offset not in self.values
            self.values[offset] = value
        return code

    def produce_until_refused(self) -> None:
        for _ in range(DISK_BYTES // VALUE_BYTES):
            code = self.produce()
            if code:
                assert code == KAFKA_STORAGE_ERROR, f"error code {code}"
                return
        raise AssertionError("the disk never ran full")

    def check(self) -> None:
        found = self.client.values()
        lost = [offset for offset, value in self.values.items() if found.get(offset) != value]
        assert not lost, f"lost {len(lost)} of {len(self.values)}: {lost[:5]}"
        invented = sorted(set(found) - set(self.values))
        assert not invented, f"refused records are there: {invented[:5]}"


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_full_disk_refuses_and_heals(tmp_path):
    with ExitStack() as stack:
        disk = stack.enter_context(new_file_system(tmp_path / "disk", DISK_BYTES))
        broker = new_broker_on_disk(tmp_path / "broker", disk, 2, {"log.segment.bytes": str(4 << 20)})
        filler = disk.mount_point / "filler"
        try:
            broker.start()
            create_topics(broker.bootstrap, {"kept": 1, "given-up": 1}, {"file.delete.delay.ms": "100"})
            kept = stack.enter_context(Kept(broker, "kept"))
            given_up = stack.enter_context(Kept(broker, "given-up"))
            for _ in range(100):
                assert given_up.produce() == 0
                assert kept.produce() == 0
            fill(filler, 12 << 20)
            kept.produce_until_refused()
            for _ in range(5):
                assert kept.produce() in (0, KAFKA_STORAGE_ERROR)
            kept.check()
            given_up.check()

            admin = AdminClient(client_settings(broker.bootstrap))
            [future] = admin.delete_topics(["given-up"]).values()
            future.result()
            eventually(lambda: kept.produce() == 0, "appends go on after a topic was deleted")
            kept.check()

            fill(filler, 0)
            kept.produce_until_refused()
            filler.unlink()
            eventually(lambda: kept.produce() == 0, "appends go on after space was freed")
            kept.check()

            fill(filler, 0)
            kept.produce_until_refused()
            broker.kill()
            filler.unlink()
            broker.start()
            kept.check()
            assert kept.produce() == 0
            kept.check()
            broker.stop()
        finally:
            broker.kill()


def test_a_broker_starts_on_a_disk_that_is_full(tmp_path):
    """After a crash on a full disk: what was acknowledged is served; new records are refused until there is space."""
    with ExitStack() as stack:
        disk = stack.enter_context(new_file_system(tmp_path / "disk", DISK_BYTES))
        broker = new_broker_on_disk(tmp_path / "broker", disk, 1, {"log.segment.bytes": str(4 << 20)})
        filler = disk.mount_point / "filler"
        try:
            broker.start()
            create_topics(broker.bootstrap, {"kept": 1})
            kept = stack.enter_context(Kept(broker, "kept"))
            assert kept.produce() == 0
            fill(filler, 4 << 20)
            kept.produce_until_refused()
            broker.kill()
            fill(filler, 0)
            broker.start()
            kept.check()
            filler.unlink()
            eventually(lambda: kept.produce() == 0, "appends go on after space was freed")
            kept.check()
        finally:
            broker.kill()
