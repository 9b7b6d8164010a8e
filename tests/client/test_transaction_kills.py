"""Exactly once through kills of the broker: transactions of the asynchronous client with its streams."""

from __future__ import annotations

import anyio
import pytest

from tests.client.test_transaction_reading import read
from tests.support.both_loops import on_both_loops
from tests.support.broker_process import TpcBroker
from tpc_broker.client import connect
from tpc_broker.client.transaction.owner import Outcome

pytestmark = pytest.mark.clients
COUNT, KILLS = 400, 3


@pytest.fixture
def broker(tmp_path):
    made = TpcBroker(tmp_path / "broker", cores_count=1)
    made.start()
    yield made
    made.kill()


@on_both_loops
async def test_what_was_read_is_written_once_whatever_is_killed(broker):
    """A broker goes and comes while batches are read, written and done; some blocks end by an error or a cancel."""
    written = [b"%d" % number for number in range(COUNT)]
    async with connect(broker.bootstrap) as client:
        await client.admin.topics.create("in", partitions=2)
        await client.admin.topics.create("out", partitions=1)
        await client.send_all("in", written)
        done, attempts, killed = 0, 0, anyio.Event()

        async def kill():
            for number in range(1, KILLS + 1):
                while done < COUNT * number / (KILLS + 2):
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(broker.kill)
                await anyio.to_thread.run_sync(broker.start)
            killed.set()

        async def move(batch):
            async with client.transaction("mover") as tx:
                for record in batch.records:
                    await tx.post("out", record=record)
                tx.done(batch)
                if attempts % 5 == 0:
                    raise ZeroDivisionError
            assert tx.outcome is Outcome.COMMITTED

        async with anyio.create_task_group() as tasks, client.read("in", group="mover") as stream:
            tasks.start_soon(kill)
            async for batch in stream.batches(max_records=7):
                attempts += 1
                try:
                    with anyio.CancelScope(deadline=anyio.current_time() + 0.02 if attempts % 7 == 0 else float("inf")):
                        await move(batch)
                except ZeroDivisionError:
                    pass
                done = sum(
                    one.offset for one in (await client.admin.groups.offsets("mover", require_stable=True)).values()
                )
                if done == COUNT:
                    break
            await killed.wait()
        found = await read(client, "out", COUNT)
        assert sorted(found) == sorted(written)
        assert sum(one.records for one in (await client.admin.groups.lag("mover")).values()) == 0
