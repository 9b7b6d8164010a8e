"""What a member of a group commits: what was printed, of partitions that are its own, and each offset once."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tpc_broker.cli import consume


class FakeConsumer:
    def __init__(self) -> None:
        self.commits: list[tuple[dict[int, int], bool]] = []
        self.fails = False

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.commits.append(({one.partition: one.offset for one in offsets}, asynchronous))
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.fixture
def consumer() -> FakeConsumer:
    return FakeConsumer()


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(consume.time, "monotonic", lambda: now_s[0])
    return now_s


@pytest.fixture
def commits(consumer: FakeConsumer, now_s: list[float], monkeypatch: pytest.MonkeyPatch) -> consume.Commits:
    monkeypatch.setattr(consume, "take_time_to_finish", lambda: None)
    return consume.Commits(consumer)  # type: ignore[arg-type]


def printed(commits: consume.Commits, partition: int, offset: int) -> None:
    one: Any = SimpleNamespace(topic=lambda: "t", partition=lambda: partition, offset=lambda: offset)
    commits.printed(one)


def test_it_commits_now_and_then_and_only_what_is_new(
    consumer: FakeConsumer, commits: consume.Commits, now_s: list[float]
) -> None:
    printed(commits, 0, 4)
    commits.flushed()
    assert not consumer.commits
    now_s[0] += consume.COMMIT_S
    commits.flushed()
    commits.flushed()
    assert consumer.commits == [({0: 5}, True)], "the coordinator is not waited for"
    now_s[0] += consume.COMMIT_S
    commits.flushed()
    assert len(consumer.commits) == 1
    printed(commits, 1, 0)
    commits.flushed()
    assert consumer.commits[1:] == [({0: 5, 1: 1}, True)]


def test_what_did_not_leave_is_not_committed(
    consumer: FakeConsumer, commits: consume.Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise BrokenPipeError

    printed(commits, 0, 4)
    commits.flushed()
    printed(commits, 0, 5)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=broken))
    commits.end()
    assert consumer.commits == [({0: 5}, False)]


def test_a_commit_that_failed_is_told_once_and_not_repeated(consumer: FakeConsumer, commits: consume.Commits) -> None:
    printed(commits, 0, 4)
    commits.flushed()
    consumer.fails = True
    with pytest.raises(KafkaException):
        commits.commit()
    commits.end()
    assert len(consumer.commits) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_partition_that_is_anothers_is_committed_before_and_not_after(
    consumer: FakeConsumer, commits: consume.Commits, *, is_lost: bool
) -> None:
    printed(commits, 0, 3)
    commits.flushed()
    printed(commits, 0, 4)
    printed(commits, 1, 7)
    (commits.lost if is_lost else commits.revoked)(consumer, [TopicPartition("t", 0)])  # type: ignore[arg-type]
    commits.end()
    assert consumer.commits == ([({1: 8}, False)] if is_lost else [({0: 5, 1: 8}, False)])
