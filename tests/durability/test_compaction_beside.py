"""What goes on beside cleanings: a backup of the broker, and a disk that runs full in the midst of one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.durability.conftest import against_kafka, new_broker_on_disk
from tests.durability.loads import problems_of_log
from tests.durability.loop_device import new_file_system
from tests.durability.newest_values import (
    COMPACTED,
    SETTINGS,
    NewestValues,
    Writing,
    check,
    cleaned_names,
    cleanings,
    wait_cleaning,
)
from tests.durability.test_backup import back_up, restored
from tests.durability.test_full_disk import fill
from tests.support.broker_process import TpcBroker, run_command
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="commands and cleaners of ours"),
]

BACKUPS = 6
DISK_BYTES = 192 << 20


def scrub(broker: TpcBroker) -> None:
    done = run_command("scrub", "--rate", "2G", "--data", str(broker.data_folder))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_backup_beside_cleanings_has_the_newest_value_of_each_key(tmp_path: Path, seed: int) -> None:
    """As it was acknowledged before the backup began, or written since. With second names of files, and with copies."""
    broker = TpcBroker(tmp_path / "broker", 2, SETTINGS)
    broker.start()
    values = NewestValues("kept", 3, 9_000, seed)
    values.create(broker.bootstrap, {**COMPACTED, "delete.retention.ms": "3600000"})
    writing = Writing(broker.bootstrap, values)
    try:
        for number in range(BACKUPS):
            wait_cleaning(broker, values)
            acknowledged, done = values.acknowledged(), cleanings(broker)
            back_up(broker, tmp_path / f"backup-{number}", *(["--copy"] if number % 2 else []))
            copy = restored(tmp_path / f"backup-{number}", tmp_path / f"copy-{number}")
            try:
                check(copy.bootstrap, values, acknowledged)
                assert problems_of_log(copy.log_text()) == []
                copy.stop()
                scrub(copy)
            finally:
                copy.kill()
            eventually(lambda done=done: cleanings(broker) > done, "it cleans beside and behind a backup")
            writing.check()
        writing.finish()
        check(broker.bootstrap, values)
        assert problems_of_log(broker.log_text()) == []
    finally:
        writing.ends.set()
        broker.kill()


class FullDisk:
    """A broker with a compacted topic on a small disk, and a file that takes the room which is left."""

    def __init__(self, broker: TpcBroker, filler: Path) -> None:
        self.broker, self.filler = broker, filler

    def ended(self) -> int:
        """Jobs that came to nothing, for want of room or otherwise."""
        return int(self.broker.counters()[0]["cleaning"]["cleaner_away"])

    def run_full(self) -> bool:
        """What a swap frees, or the broker, is taken as well."""
        fill(self.filler, 0)
        return "No space left" in self.broker.process.log_of_this_run()

    def ends_a_job(self, values: NewestValues) -> bool:
        """Whether one that writes finds no room: it may be done, or not have begun, when there is none left."""
        before = self.ended()
        eventually(lambda: cleaned_names(self.broker, values), "a cleaning writes", pause_s=0.0005)
        eventually(self.run_full, "there is no room")
        eventually(lambda: self.ended() > before or not cleaned_names(self.broker, values), "it ends")
        if self.ended() > before:
            return True
        self.filler.unlink()
        return False


@pytest.mark.parametrize("round_seed", [1, 2])
def test_a_disk_that_runs_full_in_the_midst_of_a_cleaning(tmp_path: Path, round_seed: int) -> None:
    """The job ends and that is told; nothing is lost; when there is room it cleans again. Also if it is killed then."""
    with ExitStack() as stack:
        disk = stack.enter_context(new_file_system(tmp_path / "disk", DISK_BYTES))
        settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": str(4 << 20)}
        broker = new_broker_on_disk(tmp_path / "broker", disk, 1, settings)
        assert isinstance(broker, TpcBroker)
        stack.callback(broker.kill)
        broker.start()
        values = NewestValues("kept", 1, 9_000, round_seed)
        values.create(broker.bootstrap, COMPACTED)
        full = FullDisk(broker, disk.mount_point / "filler")
        writing = Writing(broker.bootstrap, values)
        stack.callback(writing.ends.set)
        for is_killed in (False, True):
            eventually(lambda: full.ends_a_job(values), "a job that ends for want of room is told in the status")
            check(broker.bootstrap, values)
            at_full = values.acknowledged_count
            if is_killed:
                broker.kill()
                left = cleaned_names(broker, values)
                broker.start()
                assert not left & cleaned_names(broker, values)
                check(broker.bootstrap, values)
            full.filler.unlink()
            eventually(lambda at_full=at_full: values.acknowledged_count > at_full + 1000, "what waited is there")
            done = cleanings(broker)
            eventually(lambda done=done: cleanings(broker) > done, "it cleans again")
            check(broker.bootstrap, values)
            writing.check()
        writing.finish()
        check(broker.bootstrap, values)
        assert broker.counters()[0]["cleaning"]["uncleanable_now"] == 0
        assert not [problem for problem in problems_of_log(broker.log_text()) if "__consumer_offsets" not in problem]
        broker.stop()
        scrub(broker)
        assert not cleaned_names(broker, values)
