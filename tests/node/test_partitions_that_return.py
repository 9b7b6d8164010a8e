"""A replica that was deleted comes back: a start finds nothing of the one before, or `remembers` says so."""

from __future__ import annotations

import random

import pytest

from tests.engine.in_place_core import KEY, on_core, recovered_copy
from tests.node.test_replica_storage import ReplicaBench
from tpc_broker.storage.recovery.core_partitions import PartitionState


class ReturningBench(ReplicaBench):
    async def delete(self):
        await self.storage.delete(self.files, self.handle)
        assert self.storage._partitions.state(KEY) is PartitionState.ABSENT


def test_what_returns_when_nothing_is_remembered_survives_a_crash_by_itself(tmp_path):
    async def body(bench):
        for life in range(3):
            term = 7 - life  # a life begins with nothing: no term of the one before is left
            bench.begin(term, b"")
            await bench.take(9 - life)
            if life == 1:
                assert await bench.storage.checkpoint()
                await bench.take(2)
            await bench.check_crash(tmp_path / f"crash{life}", term=term, epochs=[(term, 0)])
            await bench.delete()
            assert bench.storage.remembers([KEY]), "its deletion would be replayed over what comes now"
            assert await bench.storage.checkpoint()
            assert not bench.storage.remembers([KEY])
            await bench.open()

    on_core(tmp_path / "core", body, ReturningBench)


def test_a_checkpoint_that_failed_or_began_before_does_not_count(tmp_path, monkeypatch):
    async def body(bench):
        bench.begin(7, b"")
        await bench.take(3)
        await bench.delete()
        run = bench.storage._checkpointer.run

        async def fail(*_):
            raise OSError("not now, for a test")

        monkeypatch.setattr(bench.storage._checkpointer, "run", fail)
        assert not await bench.storage.checkpoint()
        assert bench.storage.remembers([KEY])
        partitions = bench.storage._partitions

        async def goes_meanwhile(*arguments):
            done = await run(*arguments)
            partitions.make(KEY)
            partitions.made(bench.files)
            partitions.lead(bench_led(bench))
            partitions.begin_deletion(KEY, bench.handle)
            partitions.forget(bench.files)
            partitions.deleted(KEY)
            return done

        monkeypatch.setattr(bench.storage._checkpointer, "run", goes_meanwhile)
        assert await bench.storage.checkpoint()
        assert bench.storage.remembers([KEY]), "it went when the checkpoint had begun"
        monkeypatch.setattr(bench.storage._checkpointer, "run", run)
        assert await bench.storage.checkpoint()
        assert not bench.storage.remembers([KEY])
        await bench.open()

    on_core(tmp_path / "core", body, ReturningBench)


def bench_led(bench):
    return type("Led", (), {"files": bench.files, "handle": bench.handle})()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_and_goes(tmp_path, seed):
    """A crash after any steps leaves what the last life has, as long as one begins only where nothing is remembered."""
    chooser = random.Random(seed)

    async def body(bench):
        term = 1
        bench.begin(term, b"")
        for step in range(25):
            name = chooser.choice(["take", "take", "behind", "checkpoint", "return"])
            if name == "take":
                await bench.take(chooser.randrange(1, 4))
            elif name == "behind":
                await bench.storage.write_behind()
            elif name == "checkpoint":
                assert await bench.storage.checkpoint()
            else:
                await bench.delete()
                if bench.storage.remembers([KEY]):
                    assert await bench.storage.checkpoint()
                await bench.open()
                term = chooser.randrange(1, 9)
                bench.begin(term, b"")
                await bench.take(1)
            if bench.sent and chooser.random() < 0.3:
                await bench.check_crash(tmp_path / f"crash{step}", term=term, epochs=[(term, 0)])

    on_core(tmp_path / "core", body, ReturningBench)


def test_without_the_checkpoint_the_deletion_would_take_the_new_one(tmp_path):
    """Why `remembers` is asked."""

    async def body(bench):
        bench.begin(7, b"")
        await bench.take(3)
        await bench.delete()
        await bench.open()
        bench.begin(1, b"")
        await bench.take(2)
        recovered = await recovered_copy(bench, tmp_path / "crash")
        assert KEY not in recovered.storages
        await recovered.close()

    on_core(tmp_path / "core", body, ReturningBench)
