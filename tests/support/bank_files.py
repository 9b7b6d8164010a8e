"""Accounts as Spark's reader sees them, in files and at brokers, and as a broker sees them that runs on a backup."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.bank import Ledger, Leg, Statement, Told, between, wrong_transfers
from tests.support.bank_run import ACCOUNTS, TOPIC, Bank, read_by_librdkafka, settle
from tests.support.broker_process import TpcBroker, run_command
from tpc_broker.client.isolation import Isolation
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark.options import read_options
from tpc_broker.spark.readers import TpcReader
from tpc_broker.spark.rows import Mode, RowPlan
from tpc_broker.spark.segments import PartitionFolder, read_checkpoints
from tpc_broker.spark.values import ValueFormat


def read_by_spark(given: dict[str, str]) -> dict[int, Statement]:
    """By the reader of the data source, in this process: from files (`path`), brokers (`bootstrap`), or both."""
    columns = pa.schema([(name, COLUMN_TYPES[name]) for name in ("partition", "offset", "value")])
    options = read_options({"subscribe": TOPIC, "isolation.level": "read_committed", **given}, streaming=False)
    reader = TpcReader(
        options, RowPlan.of(from_arrow_schema(columns), ValueFormat(), Mode.FAILFAST, "_corrupt_record")
    )
    found: dict[int, Statement] = {account: [] for account in range(ACCOUNTS)}
    for task in reader.partitions():
        for batch in reader.read(task):
            for row in batch.to_pylist():
                found[row["partition"]].append((row["offset"], Leg.decode(row["value"])))
    return {account: sorted(statement, key=lambda each: each[0]) for account, statement in found.items()}


def read_files(data_folder: Path) -> tuple[dict[int, Statement], dict[int, int]]:
    """As far as they go, beside a broker that writes them or without one; and up to where."""
    ended = {
        place.partition: PartitionFolder(data_folder, checkpoint).end_offset(Isolation.READ_COMMITTED)
        for place, checkpoint in read_checkpoints(data_folder).items() if place.topic == TOPIC
    }  # fmt: skip
    found = read_by_spark({"path": str(data_folder)})
    return {account: between(found[account], 0, end) for account, end in ended.items()}, ended


class Copy:
    """A backup that was made while transfers went on, and what was told before."""

    def __init__(self, bank: Bank, data_folder: Path, folder: Path) -> None:
        self.folder = folder
        self._told = {about: Told(what) for what, about in bank.said() if what in set(Told)}
        done = run_command("backup", str(folder / "backup"), "--data", str(data_folder))
        assert done.returncode == 0, done.stderr

    def problems(self, cores: int, settings: dict[str, str], ledger: Ledger) -> list[str]:
        """Of a broker of its own on the copy: whoever was in the midst of something then is ended, whole or not at all;
        what was committed before is there; and nothing that never was to be committed.
        """
        broker = TpcBroker(self.folder / "copy", cores, settings)
        broker.folder.mkdir()
        done = run_command("restore", str(self.folder / "backup"), "--data", str(broker.data_folder))
        assert done.returncode == 0, done.stderr
        try:
            broker.start()
            end = settle(broker.bootstrap)
            final = read_by_librdkafka(broker.bootstrap, end)
        finally:
            broker.kill()
        told = {name: last for name, last in ledger.told.items() if last is not Told.COMMITTED}
        told |= {name: Told.ASKED for name, last in ledger.told.items() if last is Told.COMMITTED}
        told |= {name: Told.COMMITTED for name, last in self._told.items() if last is Told.COMMITTED}
        found = sum(map(len, final.values()))
        assert found, "nothing is in the copy"
        return [f"copy: {each}" for each in wrong_transfers(told, final)]
