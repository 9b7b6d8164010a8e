"""A core whose disk hangs, whatever it was asked for: others lead, nobody waits for it, and it comes back by itself."""

import logging

import pytest

from tests.engine.faults import HungDisk
from tpc_broker.errors import LeadershipLostError
from tpc_broker.raft.output import LEADER
from tpc_broker.raft.settings import Settings

STALL_MS = 800
SETTINGS = Settings(disk_hangs_ms=STALL_MS)
LIFE_MAX = 60
"""More calls than a short life has."""
VALUES = [bytes([number]) * 900_000 for number in range(8)]
"""More than a segment."""


@pytest.fixture(params=[False, True], ids=["by the machine", "carried by C"])
def cores(make_cores, request):
    made = make_cores(settings=SETTINGS, is_carried=request.param, has_beats=request.param)
    made.leader()
    return made


def all_answer(cores):
    cores.until(lambda: not any(node.ask(getattr, node.driver.core, "disk_hangs") for node in cores.up()))
    cores.until(lambda: not any(node.ask(node.plane.journal_error) for node in cores.up()))


def waits_for_room(node, size):
    """As a client's records do in front of C; whether it was told that the leadership is over."""

    async def ask():
        try:
            await node.storage.make_room(node.files, node.handle, size)
        except LeadershipLostError:
            return True
        return False

    return node.ask(ask)


def test_a_leader_whose_disk_hangs_in_front_of_the_journal_gives_up(cores, caplog):
    """Nothing is in the journal: its records wait for segment space. Who waits is told, and another node leads."""
    caplog.set_level(logging.WARNING)
    first = cores.leader()
    cores.produce(first, VALUES[:2])
    first.ask(first.storage.write_behind)
    with HungDisk(first):
        assert waits_for_room(first, 20_000_000), "whoever waits for room is told that it leads no more"
        assert not first.ask(first.plane.journal_progress)[1], "nothing waits in the journal"
        cores.until(lambda: first.role()[0] is not LEADER)
        assert cores.produce_at_leader(VALUES[2:4]) is not first
        assert first.ask(lambda: first.driver.core.disk_hangs)
    all_answer(cores)
    cores.produce_at_leader(VALUES[4:])
    cores.check()
    texts = [record.getMessage() for record in caplog.records]
    assert any("the disk has not answered for" in text for text in texts)
    assert any("the disk answers again" in text for text in texts)


@pytest.mark.parametrize("cores", [True], ids=["carried by C"], indirect=True)
def test_a_disk_that_hangs_at_any_call_of_a_short_life(cores):
    """Appends, segments that are full, files that are made, what is written behind, checkpoints."""
    for at in range(1, LIFE_MAX):
        first = cores.leader()
        with HungDisk(first, at) as hung:
            cores.produce_at_leader(VALUES[:4])
            first.ask(first.storage._requests.checkpoint.ask)
            cores.produce_at_leader(VALUES[4:])  # as long as the disk hangs
        all_answer(cores)
        if not hung.hung:
            break
    assert at > 5, "there were calls"
    cores.check()
