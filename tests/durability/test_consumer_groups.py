"""`kill -9`, and stops of every other kind, of a broker while members of a group by KIP-848 come, commit and are given
their shares: they go on as they were told (`raw_members`).
"""

from __future__ import annotations

from random import Random

import pytest

from tests.durability.conftest import against_kafka
from tests.durability.test_stops import Stops
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import create_topic
from tests.support.raw_members import RawMembers

TOPIC, PARTITIONS, ROUNDS, STOPS = "shared-out", 12, 5, 12
pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="one round would take it a minute")]


@pytest.mark.parametrize("chosen", [1, 2])
def test_members_go_on_as_they_were_told(chosen, tmp_path):
    chance = Random(chosen)
    broker = TpcBroker(tmp_path / "broker", 2)
    members = RawMembers([broker], "g", TOPIC, PARTITIONS)
    try:
        broker.start()
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        for _round in range(ROUNDS):
            members.come(chance.randint(0 if members.members else 1, 2))
            for _turn in range(chance.randint(1, 4)):
                members.turn()
            broker.kill()
            broker.start()
            members.check_offsets()
        members.wait_stable()
        epochs = [member.epoch for member in members.members]
        broker.kill()
        broker.start()
        members.wait_stable()
        assert [member.epoch for member in members.members] == epochs, "nothing was assigned anew"
        members.check_offsets()
    finally:
        members.close()
        broker.kill()


def test_members_that_commit_without_pause_go_on_through_stops_of_every_kind(seed, tmp_path):
    """Each of them comes while requests are under way, of which some are answered and others are not."""
    chance = Random(seed)
    broker = TpcBroker(tmp_path / "broker", 2)
    stops = Stops(broker, chance)
    members = RawMembers([broker], "g", TOPIC, PARTITIONS)
    try:
        broker.start()
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        members.come(2)
        members.wait_stable()
        for _stop in range(STOPS):
            is_joined = chance.random() < 0.5 and len(members.members) < PARTITIONS
            members.come(1 if is_joined else 0)
            epochs = [member.epoch for member in members.members]
            with members.turning():
                stops.stop()
            members.check_offsets()
            members.wait_stable()
            after = [member.epoch for member in members.members]
            assert is_joined or after == epochs, f"seed {seed}: it was stable, and is assigned anew: {stops.done}"
    finally:
        members.close()
        broker.kill()
