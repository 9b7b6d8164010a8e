"""What `tpc partition list` shows of internal topics."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tpc_broker.cli import partition_list
from tpc_broker.cli.main import main
from tpc_broker.kafka import messages

Topic = messages.MetadataResponse.MetadataResponseTopic
Partition = messages.MetadataResponse.MetadataResponsePartition


def topic(name: str, *, is_internal: bool) -> Topic:
    """Partition 0 is well, 1 lacks a replica, 2 has no leader."""
    well = Partition(partition_index=0, leader_id=1024, replica_nodes=[1024, 2048], isr_nodes=[1024, 2048])
    lacking = Partition(partition_index=1, leader_id=1024, replica_nodes=[1024, 2048], isr_nodes=[1024])
    leaderless = Partition(partition_index=2, leader_id=-1, replica_nodes=[1024, 2048], isr_nodes=[2048])
    return Topic(name=name, is_internal=is_internal, partitions=[well, lacking, leaderless])


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["t-0", "t-1", "t-2"]),
        (["--internal"], ["__consumer_offsets-0", "__consumer_offsets-1", "__consumer_offsets-2", "t-0", "t-1", "t-2"]),
        (["--under-replicated"], ["__consumer_offsets-1", "__consumer_offsets-2", "t-1", "t-2"]),
        (["--leaderless"], ["__consumer_offsets-2", "t-2"]),
        (["--leaderless", "--broker", "4096"], []),
        (["--broker", "2048"], ["t-0", "t-1", "t-2"]),
    ],
)
def test_what_is_not_well_is_shown_of_internal_topics_too(monkeypatch, options, shown):
    """An empty list means that the next node may be stopped."""
    topics = [topic("t", is_internal=False), topic("__consumer_offsets", is_internal=True)]
    answer = messages.MetadataResponse(topics=topics)
    connection = SimpleNamespace(call=lambda _key, _make: answer)
    client = SimpleNamespace(any_connection=lambda: connection)
    monkeypatch.setattr(partition_list, "own_client", lambda _bootstrap: contextlib.nullcontext(client))
    done = CliRunner().invoke(main, ["partition", "list", *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == (["Partition", *shown] if shown else [])
