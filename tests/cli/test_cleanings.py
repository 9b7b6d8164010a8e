"""What `tpc topic describe` says of the compaction of a topic's partitions."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tpc_broker.cli import cleanings
from tpc_broker.cli.cleanings import CLEANING_TAG, COLUMNS, cleaning_row, cleanings_of
from tpc_broker.client.errors import ClientError
from tpc_broker.kafka.source import uvarint

FACTS = {
    "dirty_ratio": 0.256, "dirty_bytes": 256, "clean_bytes": 744, "first_dirty_offset": 80, "last_cleaned_ms": -1,
    "bytes_saved": 0, "records_removed": 0, "cleanings_count": 0, "batches_unreadable": 0, "uncleanable": None,
    "is_cleaning": False,
}  # fmt: skip


def answer(node: int, partitions: dict[str, object]) -> bytes:
    text = json.dumps({"node": node, "partitions": partitions}).encode()
    return b"the rest" + uvarint(1) + uvarint(CLEANING_TAG) + uvarint(len(text)) + text


@pytest.fixture
def brokers(monkeypatch):
    """Answers of brokers; and what they were asked."""
    answers, asked = {}, []

    def connection(broker):
        def call_tagged(_key, _make, tag, value):
            asked.append((broker, tag, value))
            if isinstance(answers[broker], Exception):
                raise answers[broker]
            return None, answers[broker]

        return SimpleNamespace(call_tagged=call_tagged)

    @contextmanager
    def client(_bootstrap):
        yield SimpleNamespace(connection_to_broker=connection)

    monkeypatch.setattr(cleanings, "patient_client", client)
    return SimpleNamespace(answers=answers, asked=asked)


def test_each_leaders_node_is_asked_once(brokers):
    brokers.answers |= {1025: answer(1, {"0": FACTS, "1": FACTS}), 2048: answer(2, {"0": FACTS, "2": FACTS})}
    found = cleanings_of("here", "kept", {0: 1024, 1: 1025, 2: 2048, 3: 2048, 4: -1})
    assert sorted(found) == [0, 1, 2]
    assert brokers.asked == [(1025, CLEANING_TAG, b"kept"), (2048, CLEANING_TAG, b"kept")]


def test_another_nodes_answer_does_not_count(brokers):
    brokers.answers[1024] = answer(2, {"0": FACTS})
    assert cleanings_of("here", "kept", {0: 1024}) == {}


@pytest.mark.parametrize("said", [b"Apache Kafka", ClientError("not allowed")])
def test_who_tells_nothing_is_no_error(brokers, said):
    brokers.answers[0] = said
    assert cleanings_of("here", "kept", {0: 0}) == {}


def test_a_row_says_what_is_wrong():
    assert cleaning_row(3, FACTS) == (3, "26%", 256, 80, 0, "", 0, "")
    row = cleaning_row(3, {
        **FACTS, "last_cleaned_ms": 1_700_000_000_000, "is_cleaning": True, "uncleanable": "a damaged segment",
        "batches_unreadable": 2, "no_cleaner": "none comes up",
    })  # fmt: skip
    assert len(row) == len(COLUMNS)
    assert str(row[5]).startswith("2023-11-1")
    assert row[7] == (
        "being cleaned; there is no cleaner: none comes up; cannot be cleaned: a damaged segment; "
        "batches that cannot be read: 2"
    )
