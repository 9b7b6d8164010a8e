"""Confluent's client in Rust, of the version that tests/rust_client names, which knows groups of KIP-848 and no other ones:
its producer, members of its groups that come, go and are killed, and each function of its Admin.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.group_story import PARTITIONS, Records, committed, epochs, make_topic, producing, story
from tests.support.rust_client import RustUnavailableError, build_client
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def client() -> Path:
    try:
        return build_client()
    except RustUnavailableError as reason:
        pytest.skip(str(reason))


@contextmanager
def its_producer(client: Path, broker: TpcBroker, topic: str) -> Iterator[Records]:
    """Writes to all partitions until it is left; then the places of all records are in the set."""
    settings = json.dumps({"bootstrap.servers": broker.bootstrap})
    places: Records = set()
    with subprocess.Popen(
        [client, "produce", topic, str(PARTITIONS), settings],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield places
        except BaseException:
            process.kill()
            raise
        said, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaints
    written = list(map(tuple, json.loads(said)))
    places.update(written)
    assert len(places) == len(written), "each record has a place of its own"


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_go_and_are_killed(client, brisk_broker, topic, tmp_path, assignor):
    broker, program = brisk_broker, [str(client), "member"]
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **{"group.remote.assignor": assignor}) as told:
        with its_producer(client, broker, topic) as places:
            told.comes("a", topic, program)
            told.share("a")
            told.comes("b", topic, program)
            told.comes("c", f"^{topic}$", program)
            told.share("a", "b", "c")
            told.handle_more()
            told.leaves("a")
            told.share("b", "c")
            told.comes("d", topic, program, group_instance_id="d")
            told.share("b", "c", "d")
            told.handle_more()
            told.is_killed("b")
            told.share("c", "d")
            told.is_killed("d")  # its instance may be taken again when its session is over
            told.share("c")
            told.comes("d again", topic, program, group_instance_id="d")
            told.comes("e", topic)  # librdkafka
            told.share("c", "d again", "e")
            told.handle_more()
        told.all_handled(places)
        for name in ("c", "d again", "e"):
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert committed(broker, topic) == {
        (topic, partition): 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }


def test_members_outlive_a_killed_broker(client, brisk_broker, topic, tmp_path):
    broker, program, names = brisk_broker, [str(client), "member"], ("a", "b", "c")
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            for name in names:
                told.comes(name, topic, program)
            told.share(*names)

            def settled() -> bool:
                epoch, members = epochs(broker, topic)
                return set(members.values()) == {epoch} and len(members) == 3

            eventually(settled, "all have the newest epoch")
            before, owned, kept = epochs(broker, topic), told.owned(), committed(broker, topic)
            told.handle_more()
            broker.kill()
            broker.start()
            told.handle_more()
            assert told.owned() == owned
            assert epochs(broker, topic) == before
            now = committed(broker, topic)
            assert all(now[place] >= kept[place] for place in kept)
            told.leaves("c")
            told.share("a", "b")
        told.all_handled(places)
        for name in ("a", "b"):
            told.leaves(name)
        told.check_positions()
