"""What operators ask, and transactions of both versions, with Apache Kafka in the broker's place."""

from __future__ import annotations

import anyio
import pytest

from tests.client import test_admin, test_transaction_reading
from tests.client.test_transaction_reading import read, topics_of
from tests.support.both_loops import on_both_loops
from tests.support.shared_servers import new_kafka
from tpc_broker.client import connect
from tpc_broker.client.errors import TransactionAbortedError
from tpc_broker.client.transaction.owner import Outcome

pytestmark = pytest.mark.clients
EXPIRY_MS = 200
OVER_SOON_S = 0.3

for module in (test_admin, test_transaction_reading):
    globals().update({name: test for name, test in vars(module).items() if name.startswith("test_")})


@pytest.fixture(scope="module", params=[1, 2], ids=["version1", "version2"])
def broker(request, tmp_path_factory):
    peer = new_kafka(tmp_path_factory.mktemp("kafka"))
    peer.format_options += ["--feature", f"transaction.version={request.param}"]
    peer._overrides["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = str(EXPIRY_MS)
    peer.start()
    yield peer
    peer.stop()


@on_both_loops
async def test_a_time_that_is_over_is_told_and_the_id_goes_on(broker):
    async with connect(broker.bootstrap) as client, topics_of(client, "tx-time"):
        with pytest.raises(TransactionAbortedError, match=r"timeout_seconds=0\.3"):
            async with client.transaction("tx-time", timeout_seconds=OVER_SOON_S) as tx:
                await tx.send("tx-time", b"slow")
                while (await client.admin.transactions.describe("tx-time"))["tx-time"].is_open:
                    await anyio.sleep(EXPIRY_MS / 1000)
        assert tx.outcome is Outcome.ABORTED
        async with client.transaction("tx-time") as tx:
            await tx.send("tx-time", b"quick")
        assert await read(client, "tx-time", 1) == [b"quick"]


@on_both_loops
async def test_many_transactions_of_one_id(broker):
    async with connect(broker.bootstrap) as client, topics_of(client, "tx-many", partitions=3):
        for number in range(60):
            try:
                async with client.transaction("tx-many") as tx:
                    await tx.send_all("tx-many", [b"%d" % number] * 9)
                    if number % 3 == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert tx.outcome is Outcome.ABORTED
        found = await read(client, "tx-many", 40 * 9)
        assert sorted(found) == sorted([b"%d" % number for number in range(60) if number % 3] * 9)
