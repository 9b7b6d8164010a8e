"""A compacted topic on a real broker: one value of each key is left, and every one is the newest, whatever ends it.

Killed in the middle of cleanings, started again, read by a stock client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.durability.conftest import against_kafka
from tests.support.broker_process import TpcBroker
from tests.support.kept_keys import COMPACTED, KEYS, TOPIC, KeptKeys
from tests.support.waiting import eventually
from tpc_broker.log.files import parse_cleaned_file_name

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="it kills processes of ours"),
]

SETTINGS = {"log.cleaner.backoff.ms": "100"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path, 2, SETTINGS)
    made.start()
    try:
        create(made.bootstrap)
        yield made
    finally:
        made.kill()


def create(bootstrap: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(TOPIC, 1, 1, config=COMPACTED)])[TOPIC].result()


class Kept(KeptKeys):
    """On a broker."""

    def __init__(self, broker: TpcBroker, seed: int) -> None:
        super().__init__(broker, seed, tombstones=0.05)
        self.broker = broker

    def check(self) -> int:
        """How many records are there; the newest of each key is the one that was written last."""
        found = self.read()
        there = dict(found)
        for key, value in self.newest.items():
            assert there.get(key) == value, key
        assert there.keys() <= self.newest.keys()
        return len(found)


@pytest.fixture
def kept(broker: TpcBroker, seed: int) -> Kept:
    return Kept(broker, seed)


def is_small(kept: Kept) -> bool:
    """As many records as keys, and what is not sealed yet."""
    return kept.check() < KEYS + 3500


def test_one_value_of_each_key_is_left(kept: Kept) -> None:
    for _round in range(3):
        kept.write(6_000)
        eventually(lambda: is_small(kept), "the log was cleaned")
    kept.broker.stop()
    kept.broker.start()
    kept.check()


def generations(broker: TpcBroker) -> set[bytes]:
    """What cleanings have left, and are about to leave."""
    found = set()
    for path in (broker.data_folder / "topics" / f"{TOPIC}-0").iterdir():
        if path.suffix == ".seal":
            with contextlib.suppress(FileNotFoundError):
                found.add(path.read_bytes())
        elif parse_cleaned_file_name(path.name):
            found.add(path.name.encode())
    return found


def test_nothing_is_lost_by_kills_in_the_middle_of_cleanings(kept: Kept, broker: TpcBroker) -> None:
    for _life in range(6):
        before = generations(broker)
        kept.write(kept.random.randrange(4_000, 6_000))
        eventually(lambda before=before: generations(broker) - before, "a cleaning begins", pause_s=0.001)
        broker.kill()
        broker.start()
        kept.check()
    kept.write(4_000)
    eventually(lambda: is_small(kept), "the log was cleaned")
