"""Replicas whose segments were cleaned: what a leader sends of them, and what it knows of them after a start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.node.test_replica_driver import values, write_and_checkpoint
from tests.support.cleaned_copies import swap_copy
from tests.support.replica_cores import GROUP
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import EpochStart
from tpc_broker.log.seals import CleanedState
from tpc_broker.model import NodeId
from tpc_broker.node.replicas.item_reads import without_gaps
from tpc_broker.node.replicas.recovered_replicas import checkpoint_of
from tpc_broker.raft.items import START, Batch, Marker, Position, Voter, simple
from tpc_broker.raft.journal import MarkerEntry

ME = Voter(NodeId(1), 0)


@pytest.fixture(params=[False, True], ids=["by the machine", "carried by C"])
def either(make_cores, request):
    return make_cores(is_carried=request.param)


def fill_segments(cores, leader):
    """Three of ten records each, all of them in files, and in no memory."""

    async def roll():
        await leader.storage.write_behind()
        await leader.files.roll()

    for _segment in range(3):
        cores.produce(leader, values("kept", 10))
        leader.ask(roll)
    cores.until(lambda: all(node.bounds().high_watermark == 30 for node in cores.up()))
    write_and_checkpoint(leader)
    leader.ask(lambda: leader.plane.set_cache_bytes_max(0, 0))
    leader.ask(lambda: leader.plane.evict(1 << 30))
    cores.until(lambda: leader.ask(lambda: leader.driver.core.look(GROUP).log.start.offset) == 30)


def clean(node, count=2):
    """Every other batch goes, of so many segments."""

    async def swap():
        await swap_copy(node.files, node.files.segments[:count], keep=lambda header: header.base_offset % 2)

    node.ask(swap)


def contiguous_from(node):
    return node.ask(lambda: node.driver.core.groups[GROUP].contiguous_from_offset)


def test_a_follower_that_lacks_what_was_cleaned_gets_segments_and_no_items(either):
    """What is behind is sent as items, and those that lack nothing go on."""
    leader = either.leader()
    wanted = []
    leader.ask(lambda: setattr(leader.driver, "on_ship", lambda *what: wanted.append(what)))
    away = next(node for node in either.up() if node is not leader)
    either.crash(away.number)
    fill_segments(either, leader)
    clean(leader)
    assert contiguous_from(leader) == 20
    either.start(away.number)
    either.until(lambda: wanted)
    assert {(group, target.node) for group, target in wanted} == {(GROUP, away.number)}
    either.produce(leader, values("more", 3))
    back = either.nodes[away.number]
    assert back.log() == {}, "not even what is still there"


def test_what_was_cleaned_is_known_after_a_start(either):
    leader = either.leader()
    fill_segments(either, leader)
    clean(leader)
    either.crash(leader.number)
    either.leader()
    either.start(leader.number)
    back = either.nodes[leader.number]
    assert contiguous_from(back) == 20
    either.produce_at_leader(values("more", 3))
    either.until(lambda: back.bounds().high_watermark >= 33)


def files_with(committed, cleaned_upto, markers=((1, 0), (2, 40))):
    """As recovery leaves a replica's: a log of 60 records."""
    config = simple([ME])
    notes = {
        epoch: encode_entry(MarkerEntry(GROUP, Marker(epoch, start_offset, config)))
        for epoch, start_offset in markers
    }  # fmt: skip
    return SimpleNamespace(
        epochs=LeaderEpochs([EpochStart(*one) for one in markers]), notes=notes, written_end_offset=60,
        log_start_offset=0, leader_epoch=2, checkpointed=SimpleNamespace(committed_end_offset=committed),
        cleaned=CleanedState(cleaned_upto, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("committed", "cleaned_upto", "hint"),
    [
        (50, 0, Position(2, 50)),
        (50, 45, Position(2, 50)),
        (10, 30, Position(1, 30)),
        (10, 40, Position(1, 40)),
        (0, 45, Position(2, 45)),
        (0, 0, START),
        (0, 99, Position(2, 60)),
    ],
)
def test_what_was_cleaned_is_committed_after_a_start(committed, cleaned_upto, hint):
    """Also where an older checkpoint than that of before the cleaning is all that is left."""
    assert checkpoint_of(GROUP, files_with(committed, cleaned_upto), None).commit_hint == hint


def test_what_was_cleaned_before_there_was_a_group_says_nothing_of_its_first_term():
    found = checkpoint_of(GROUP, files_with(0, 30, markers=((1, 40),)), None)
    assert found.commit_hint == START


def test_items_end_at_a_gap():
    batches = [Batch(1, offset + 2, offset, 100, b"") for offset in (4, 6, 10, 12)]
    assert without_gaps(batches, 4) == batches[:2]
    assert without_gaps(batches, 5) == batches[:2], "a batch that holds the offset"
    assert without_gaps([], 4) == []
    with pytest.raises(ValueError, match="offset 3 is in no batch"):
        without_gaps(batches, 3)
