"""``tpc txn`` against a running broker: what is open is shown and aborted, and what hangs is told from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.conftest import Tpc
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import transactions


@contextmanager
def opened(command: Tpc, name: str, topic: str) -> Iterator[Producer]:
    """A transaction of one record in partition 0 of a new topic."""
    admin = AdminClient({"bootstrap.servers": command.broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    settings = {"bootstrap.servers": command.broker.bootstrap, "transactional.id": name, "log_level": 0}
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"moved", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    yield producer


def described(command: Tpc, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(command("txn", "describe", name, "--json"))
    return told


def listed(command: Tpc, *options: str) -> list[str]:
    return [one["transactional_id"] for one in json.loads(command("txn", "list", "--json", *options))]


def test_what_is_open_is_listed_described_and_aborted(command: Tpc) -> None:
    with opened(command, "txn-open", "txn-data") as producer:
        told = described(command, "txn-open")
        assert told["partitions"] == [{"topic": "txn-data", "partition": 0}]
        assert (told["state"], told["timeout_ms"]) == ("Ongoing", 600_000)
        assert told["started_ms"] > 0
        (line,) = command("txn", "describe", "txn-open").splitlines()[1:]
        assert line.startswith("txn-open\tOngoing\t")
        assert line.endswith("\ttxn-data-0")
        assert "txn-open" in listed(command, "--state", "ongoing")
        assert "txn-open" not in listed(command, "--state", "Empty")
        assert "txn-open" not in listed(command, "--longer-than", "1h")
        rows = [line.split("\t") for line in command("txn", "list").splitlines()]
        assert ["txn-open", "Ongoing", str(told["producer_id"]), str(told["coordinator"])] in rows
        (one,) = map(json.loads, command("txn", "describe", "--partition", "txn-data-0", "--json").splitlines())
        assert (one["topic"], one["partition"], one["first_offset"]) == ("txn-data", 0, 0)
        assert (one["producer_id"], one["producer_epoch"]) == (told["producer_id"], told["producer_epoch"])
        assert command("txn", "describe", "--partition", "txn-data-1") == "", "nothing was sent there"
        assert command("txn", "list", "--hanging", "txn-data") == "", "its coordinator has it"
        said = command.error("txn", "abort", "--partition", "txn-data-0", "--from-offset", "0", code=5)
        assert said.endswith("so it does not hang: `tpc txn abort txn-open`")
        assert command("txn", "abort", "txn-open") == "Aborted the transaction of txn-open.\n"
        assert described(command, "txn-open")["state"] != "Ongoing"
        with pytest.raises(KafkaException) as caught:
            producer.commit_transaction(PATIENCE_S)
        assert caught.value.args[0].fatal(), "it was fenced"
    assert "nothing is open" in command.error("txn", "abort", "txn-open", code=5)


def test_what_no_coordinator_has_hangs_and_is_aborted_where_it_is(
    command: Tpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client can make one: here a coordinator's answer is missing."""
    with opened(command, "txn-lost", "txn-behind"):
        known = described(command, "txn-lost")
        asked = ("txn", "list", "--hanging", "txn-behind", "--json")
        assert json.loads(command(*asked)) == []
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "list_transactions", lambda *_asked: [])
            (row,) = json.loads(command(*asked))
            assert (row["topic"], row["partition"], row["first_offset"]) == ("txn-behind", 0, 0)
            assert (row["producer_id"], row["transactional_id"], row["state"]) == (known["producer_id"], None, None)
            (line,) = command("txn", "list", "--hanging", "txn-behind").splitlines()[1:]
            assert line.startswith(f"txn-behind-0\t0\t{known['producer_id']}\t")
            place = ("txn", "abort", "--partition", "txn-behind-0", "--from-offset")
            assert "no transaction is open in txn-behind-0 from offset 1 on" in command.error(*place, "1", code=4)
            assert json.loads(command(*place, "0", "--json"))["aborted"] is True
            assert "no transaction is open" in command.error(*place, "0", code=4)
        (one,) = map(json.loads, command("txn", "describe", "--partition", "txn-behind-0", "--json").splitlines())
        assert one["first_offset"] is None
        command("txn", "abort", "txn-lost")


def test_what_is_refused_says_why(command: Tpc) -> None:
    assert "there is no transactional id 'txn-absent'" in command.error("txn", "describe", "txn-absent", code=4)
    assert "there is no transactional id 'txn-absent'" in command.error("txn", "abort", "txn-absent", code=4)
    assert "expected TOPIC-N" in command.error("txn", "describe", "--partition", "nowhere", code=2)
    for words in (
        "describe", "describe a --partition b-0", "abort", "abort --partition b-0", "abort a --from-offset 1",
        "list a", "list --hanging --state Empty",
    ):  # fmt: skip
        assert command.error("txn", *words.split(), code=2), words
