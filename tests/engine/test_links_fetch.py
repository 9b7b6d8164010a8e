"""Fetches over the links between cores. With all features and with 5.8's."""

import pytest

from tests.engine.test_plane_fetch import LONG_MS, asks, parts_of, read_answer, values_of
from tests.support.plane_bench import records_of
from tests.support.record_batches import TRANSACTIONAL
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E


def fill(node, topic, owners, count=1, value=b"value"):
    """One batch for each partition, by its owner's own clients."""
    for index, owner in enumerate(owners):
        core = node.cores[owner]
        core.fill(core.connect(), topic, index, [count], value)


def wait_parked(node, count):
    node.cores[0].until(lambda: sum(core.fetch_counts().parked_now for core in node.cores) == count)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_is_put_together_from_its_owners(node, version):
    owners = [1, 0, 1]
    node.make("t", owners)
    node.make("u", [1])
    fill(node, "t", owners, 2)
    fill(node, "u", [1], 1, bytes(5000))
    front = node.cores[0]
    asked = asks(("t", 2, 0), ("u", 0, 0), ("t", 0, 1), ("t", 1, 0), ("u", 0, 7), version=version)
    answer = front.fetch(front.connect(), version, asked)
    got = [(part["PartitionIndex"], part["ErrorCode"], part["HighWatermark"], len(values_of(part)))
           for part in parts_of(answer)]  # fmt: skip
    out_of_range = (0, E.OFFSET_OUT_OF_RANGE, -1, 0)
    assert sorted(got) == sorted([(2, 0, 2, 2), (0, 0, 2, 2), (1, 0, 2, 2), (0, 0, 1, 1), out_of_range])
    assert (front.forward_counts()["fetches"], front.forward_counts()["under_way"]) == (1, 0)
    assert front.handled == 0


def test_large_records_leave_from_the_frames_they_came_in(node):
    node.make("t", [1])
    fill(node, "t", [1], 3, bytes(300_000))
    front = node.cores[0]
    (part,) = parts_of(front.fetch(front.connect(), 12, asks(("t", 0, 0))))
    assert [len(value) for value in values_of(part)] == [300_001] * 3
    front.until(lambda: front.connections.statistics().answer_bytes_held == 0)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_what_was_aborted_comes_from_each_owner(node, version):
    owners = [1, 0, 1]
    for index, handle in enumerate(node.make("t", owners)):
        plane = node.cores[owners[index]].plane
        for producer_id in range(index):
            plane.append(handle, records_of(1, attributes=TRANSACTIONAL, producer=(producer_id, 0, 0)))
        for producer_id in range(index):
            plane.append_marker(handle, (producer_id, 1), 0, commits=False)
        plane.append(handle, records_of(1, attributes=TRANSACTIONAL, producer=(9, 0, 0)))
    for core in node.cores:
        core.settle()
    front = node.cores[0]
    asked = asks(("t", 0, 0), ("t", 1, 0), ("t", 2, 0), version=version, bytes_min=0) | {"IsolationLevel": 1}
    told = {
        part["PartitionIndex"]: (
            part["LastStableOffset"], len(part["Records"] or b"") > 0,
            [(one["ProducerId"], one["FirstOffset"]) for one in part["AbortedTransactions"]],
        )
        for part in parts_of(front.fetch(front.connect(), version, asked))
    }  # fmt: skip
    assert told == {0: (0, False, []), 1: (2, True, [(0, 0)]), 2: (4, True, [(0, 0), (1, 1)])}
    assert sum(core.handled for core in node.cores) == 0


def test_a_long_poll_ends_when_one_owner_has_something(make_node):
    node = make_node(3)
    node.make("t", [1, 2, 0])
    front = node.cores[0]
    client = front.connect()
    for index, owner in ((1, 2), (0, 1), (2, 0)):
        offsets = [("t", other, node.cores[o].plane.state(node.cores[o].partitions["t", other].handle).log_end_offset)
                   for other, o in enumerate([1, 2, 0])]  # fmt: skip
        front.send_fetch(client, 12, asks(*offsets, wait_ms=LONG_MS))
        wait_parked(node, 3)
        core = node.cores[owner]
        core.fill(core.connect(), "t", index, [2])
        got = [(part["PartitionIndex"], len(values_of(part))) for part in parts_of(read_answer(front, client))]
        assert sorted(got) == [(other, 2 if other == index else 0) for other in range(3)]
        wait_parked(node, 0)


def test_a_long_poll_ends_with_its_time(node):
    node.make("t", [1, 0])
    front = node.cores[0]
    client = front.connect()
    answer = front.fetch(client, 12, asks(("t", 0, 0), ("t", 1, 0), wait_ms=60))
    assert [(part["ErrorCode"], values_of(part)) for part in parts_of(answer)] == [(0, []), (0, [])]


@pytest.mark.parametrize("core", [0, 1], ids=["at its client's core", "at an owner"])
def test_a_long_poll_of_many_partitions_does_not_wait_without_memory(node, core):
    node.make("t", [1, 0])
    lib.tpc_plane_set_fetch_session_bytes(node.cores[core].plane.pointer, 1)
    front = node.cores[0]
    answer = front.fetch(front.connect(), 12, asks(*[("t", 0, 0), ("t", 1, 0)] * 65, wait_ms=LONG_MS))
    assert len(parts_of(answer)) == 130
    assert sum(each.fetch_counts().hurried for each in node.cores) >= 1


def test_one_that_is_left_to_python_without_memory_counts_once(node):
    front = node.cores[0]
    lib.tpc_plane_set_fetch_session_bytes(front.plane.pointer, 1)
    answer = front.fetch(front.connect(), 12, asks(*[("absent", 0, 0)] * 65, wait_ms=LONG_MS))
    assert {part["ErrorCode"] for part in parts_of(answer)} == {E.UNKNOWN_TOPIC_OR_PARTITION}
    assert (front.handled, front.fetch_counts().hurried) == (1, 1)
    wait_parked(node, 0)
    node.cores[0].until(lambda: not any(each.fetch_counts().waiting_bytes for each in node.cores))


def test_the_produce_behind_a_long_poll_is_answered_behind_it(node):
    node.make("t", [1, 1])
    front = node.cores[0]
    client = front.connect()
    front.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=LONG_MS), correlation_id=1)
    wait_parked(node, 1)
    front.send(client, [("t", 1, records_of(1))], correlation_id=2)
    other = front.connect()
    assert front.produce(other, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert [int.from_bytes(front.read_frame(client)[:4]) for _ in range(2)] == [1, 2]


def test_the_session_stays_where_its_client_is(node):
    node.make("t", [1, 0, 1])
    front, owner = node.cores
    client = front.connect()
    first = front.fetch(client, 12, asks(("t", 0, 0), ("t", 1, 0), ("t", 2, 0), SessionEpoch=0))
    session = first["SessionId"]
    assert session != 0
    assert len(parts_of(first)) == 3
    fill(node, "t", [1, 0], 1)
    news = front.fetch(client, 12, asks(SessionId=session, SessionEpoch=1))
    assert sorted((part["PartitionIndex"], len(values_of(part))) for part in parts_of(news)) == [(0, 1), (1, 1)]
    nothing = front.fetch(client, 12, asks(("t", 0, 1), ("t", 1, 1), SessionId=session, SessionEpoch=2))
    assert parts_of(nothing) == []
    assert (front.fetch_counts().sessions, owner.fetch_counts().sessions) == (1, 0)


def test_the_limits_are_those_of_the_whole_answer(make_node):
    node = make_node(3)
    owners = [0, 1, 2]
    node.make("t", owners)
    fill(node, "t", owners, 1, bytes(3000))
    front = node.cores[0]
    client = front.connect()
    everything = [("t", index, 0) for index in range(3)]

    def lengths(bytes_max):
        answer = front.fetch(client, 12, asks(*everything) | {"MaxBytes": bytes_max})
        return [len(values_of(part)) for part in parts_of(answer)]

    assert lengths(1 << 20) == [1, 1, 1]
    assert lengths(1) == [1, 0, 0], "the first batch comes whatever its size, and only that one"
    assert lengths(6500) == [1, 1, 0]


def test_an_owner_that_dies_ends_the_long_poll(node):
    node.make("t", [1, 0])
    front, owner = node.cores
    client = front.connect()
    front.send_fetch(client, 12, asks(("t", 0, 0), ("t", 1, 0), wait_ms=LONG_MS))
    wait_parked(node, 2)
    owner.connections.close_all()
    answer = read_answer(front, client)
    assert [part["ErrorCode"] for part in parts_of(answer)] == [E.NOT_LEADER_OR_FOLLOWER, 0]
    assert front.forward_counts()["not_available"] == 1


def test_a_client_that_goes_ends_its_waits_everywhere(node):
    node.make("t", [1, 0])
    front = node.cores[0]
    client = front.connect()
    front.send_fetch(client, 12, asks(("t", 0, 0), ("t", 1, 0), wait_ms=LONG_MS))
    wait_parked(node, 2)
    client.close()
    front.until(lambda: front.forward_counts()["under_way"] == 0)
    wait_parked(node, 0)


def test_what_the_owner_leaves_to_python_comes_the_same_way(node):
    node.make("t", [1, 0])
    front, owner = node.cores
    lib.tpc_partition_withdraw(owner.plane.pointer, owner.partitions.pop(("t", 0)).handle)
    (gone, here) = parts_of(front.fetch(front.connect(), 12, asks(("t", 0, 0), ("t", 1, 0))))
    assert (gone["ErrorCode"], here["ErrorCode"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert (owner.handled, front.handled) == (1, 0)
