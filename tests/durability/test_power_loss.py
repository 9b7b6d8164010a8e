"""The power goes: what the kernel had in its cache is gone, and nothing acknowledged may be.

While a workload runs, the broker's processes are stopped, the backing file of their file system is copied as it stands,
and they go on; a second broker is opened on the copy. Kafka, which acknowledges what is in the cache, fails this test
(`TPC_TEST_BROKER=kafka`); with a flush for every message it passes.
"""

from __future__ import annotations

import random
import signal
import subprocess

import psutil
import pytest

from tests.durability.conftest import against_kafka, new_broker_on_disk
from tests.durability.loop_device import mounted, new_file_system
from tests.durability.readback import compare
from tests.durability.workload import Workload
from tests.support.backends import on_io_uring
from tests.support.raw_members import RawMembers

IMAGE_BYTES = 600 << 20
ROUNDS = 5
TOPICS = {"power-a": 3, "power-b": 2}
BACKENDS = [on_io_uring("io_uring"), pytest.param("plain", marks=pytest.mark.plain)]
SMALL = {"journal.bytes.max": str(8 << 20), "log.segment.bytes": str(1 << 20)}

pytestmark = pytest.mark.crash


def stop_the_world(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    for process in processes:
        while process.status() != psutil.STATUS_STOPPED:
            pass


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_nothing_acknowledged_is_lost_with_the_power(tmp_path, seed):
    chooser = random.Random(seed)
    with new_file_system(tmp_path / "disk", IMAGE_BYTES) as disk:
        broker = new_broker_on_disk(tmp_path / "broker", disk, 2, SMALL)
        broker.start()
        if against_kafka():
            subprocess.run(["sync", "-f", disk.mount_point], check=True)  # `format` flushes nothing
        bootstrap = ",".join(f"{broker.host}:{port}" for port in broker.ports)
        workload = Workload(bootstrap, TOPICS, producers_count=3, records_per_second=900, seed=seed)
        members = RawMembers([broker], "members", "power-a", TOPICS["power-a"])
        try:
            workload.start()
            for round_number in range(ROUNDS):
                workload.run_for(chooser.uniform(1.5, 4.0))
                if not against_kafka():
                    members.come(round_number % 2)
                    for _turn in range(chooser.randint(1, 6)):
                        members.turn()
                processes = broker.process.processes()
                stop_the_world(processes)
                moment = workload.ledger.moment()
                disk.copy_as_it_stands(tmp_path / "copy")
                for process in processes:
                    process.send_signal(signal.SIGCONT)
                problems = open_copy(tmp_path, chooser, workload, moment, members)
                assert not problems, "\n".join([f"seed {seed}, round {round_number}", *problems[:20]])
            workload.finish()
            problems = compare(bootstrap, workload.ledger, workload.ledger.moment(), everything=True)
            assert not problems, "\n".join(problems[:20])
        finally:
            workload.abandon()
            members.close()
            broker.kill()


def open_copy(tmp_path, chooser: random.Random, workload: Workload, moment, members: RawMembers) -> list[str]:
    """Problems of a broker that is started on the copy of the disk. Members of a group by KIP-848 go on there as they
    were told by the other one, and what they committed is there.
    """
    image = tmp_path / "copy"
    try:
        with mounted(image, tmp_path / "copy-mounted") as copied:
            folder = tmp_path / f"survivor-{chooser.randrange(1 << 30)}"
            survivor = new_broker_on_disk(folder, copied, chooser.choice([1, 2, 3]), SMALL)
            survivor.start()
            others = members.at([survivor])
            try:
                if others.members:
                    others.check_offsets()
                    others.wait_stable()
                return compare(survivor.bootstrap, workload.ledger, moment, everything=False)
            finally:
                others.close()
                survivor.kill()
    finally:
        image.unlink(missing_ok=True)
