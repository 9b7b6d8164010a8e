"""Bank transfers on one broker that is killed and restarted, with other numbers of cores and moves of partitions
meanwhile: nothing is torn, lost or there twice, and whoever reads sees the same.
"""

from __future__ import annotations

import contextlib
import time
from random import Random

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.durability.conftest import against_kafka
from tests.support.bank_files import Copy, read_by_spark, read_files
from tests.support.bank_run import ACCOUNTS, COORDINATORS, TOPIC, Bank, Source, read_by_librdkafka, read_raw, settle
from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, stopwatch
from tpc_broker.cli.partitions import alter
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import ClientError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, BrokerId

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="files and moves of ours")]

CORES = 2
SECONDS = 60
SETTINGS = {**COORDINATORS, "log.segment.bytes": str(1 << 20)}
ATTACKS = (
    "kill", "kill", "kill a core", "restart", "other cores", "kill tellers", "pause tellers", "stand still", "move",
    "move", "copy",
)  # fmt: skip


class Attack:
    """What is done to a broker and its clients, one thing after the other, and read beside it."""

    def __init__(self, broker: TpcBroker, bank: Bank, chance: Random) -> None:
        self.broker, self.bank, self.chance = broker, bank, chance
        self.done: list[str] = []
        self.copies: list[Copy] = []

    @property
    def sources(self) -> list[Source]:
        return [Source(f"core {core}", self.broker.host, port) for core, port in enumerate(self.broker.ports)]

    def one(self, kind: str) -> None:
        broker, chance = self.broker, self.chance
        self.done.append(kind)
        if kind == "kill":
            broker.kill()
            time.sleep(chance.random())
            broker.start()
        elif kind == "kill a core":
            victim = chance.randrange(broker.cores_count)
            process = broker.core_process(victim)
            process.kill()
            broker.wait_core_replaced(victim, process.pid)
        elif kind == "restart":
            broker.restart()
        elif kind == "other cores":
            broker.kill() if chance.random() < 0.5 else broker.stop()
            broker.cores_count = 1 + broker.cores_count % CORES
            broker.start()
        elif kind == "kill tellers":
            self.bank.kill_tellers(chance)
        elif kind == "pause tellers":
            self.bank.pause_tellers(chance, chance.uniform(1, 14))
        elif kind == "stand still":
            self._stand_still(chance.uniform(0.5, 5))
        elif kind == "move":
            self._move()
        else:
            self._copy()

    def _stand_still(self, seconds: float) -> None:
        processes = self.broker.process.processes()
        for process in processes:
            process.suspend()
        time.sleep(seconds)
        for process in processes:
            process.resume()

    def _move(self) -> None:
        """Some partitions to other cores: of accounts, of coordinators of transactions and of groups."""
        topics = {TOPIC: ACCOUNTS, TRANSACTION_STATE_TOPIC: 8, CONSUMER_OFFSETS_TOPIC: 8}
        for topic in self.chance.choices(list(topics), k=4):
            place = topic, self.chance.randrange(topics[topic])
            core = BrokerId(self.chance.randrange(self.broker.cores_count))
            with (
                contextlib.suppress(ClientError),  # one is under way, or it is there
                Cluster(ClusterSettings(self.broker.bootstrap, retry_seconds=PATIENCE_S)) as client,
            ):
                alter(client, {place: core})

    def _copy(self) -> None:
        folder = self.bank.folder / f"copy-{len(self.copies)}"
        folder.mkdir()
        self.copies.append(Copy(self.bank, self.broker.data_folder, folder))

    def read_files(self) -> None:
        """What there is of them, beside whoever writes them."""
        self.bank.see("files of a running broker", *read_files(self.broker.data_folder))


def test_transfers_while_a_broker_is_killed(tmp_path, seed, chance):
    broker = TpcBroker(tmp_path / "broker", CORES, SETTINGS)
    try:
        broker.start()
        sources = [Source(f"core {core}", broker.host, port) for core, port in enumerate(broker.ports)]
        bank = Bank(broker.bootstrap, tmp_path, seed, sources)
        bank.open()
        attack = Attack(broker, bank, chance)
        with bank.at_work():
            bank.wait_progress()
            passed_s = stopwatch()
            while passed_s() < SECONDS:
                attack.one(chance.choice(ATTACKS))
                attack.read_files()
                time.sleep(chance.uniform(0, 4))
            attack.one("copy")
            bank.wait_progress()
        print("; ".join(attack.done))
        end = settle(broker.bootstrap)
        bank.note_all()
        final = read_by_librdkafka(broker.bootstrap, end)
        for size in (1 << 20, 1 << 12):
            statements = {account: read_raw(attack.sources, account, end[account], size) for account in range(ACCOUNTS)}
            bank.see(f"fetches of {size} bytes", statements, end)
        given = {"bootstrap": broker.bootstrap}
        bank.see("client", read_by_spark(given), end)
        bank.see("files and client", read_by_spark({**given, "path": str(broker.data_folder)}), end)
        requests = bank.requests_done()
        broker.stop()
        statements, ended = read_files(broker.data_folder)
        assert ended == end
        bank.see("files of a stopped broker", statements, end)
        print(bank.figures())
        problems = bank.failures + bank.ledger.problems(final, requests)
        for copy in attack.copies:
            problems += copy.problems(CORES, SETTINGS, bank.ledger)
        assert not problems, problems[:10]
        assert not bank.hangs(), bank.hangs()
        assert not [line for line in broker.log_text().splitlines() if "Traceback" in line or "AssertionError" in line]
    finally:
        broker.kill()
