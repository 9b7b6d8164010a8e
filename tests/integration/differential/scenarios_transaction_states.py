"""Each call that a producer can make, right and wrong, in each state of its transactional id; and pending offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.integration.differential.dialogue import Dialogue
from tests.integration.differential.scenarios_data import TRANSACTIONAL, a_batch, produce
from tests.integration.differential.scenarios_transactions import TRANSACTION_SCENARIOS, Id, scenario

BRIEF_MS = 300
Make = Callable[[Id, str], None]


def _unknown(one: Id, _topic: str) -> None:
    one.producer = {"ProducerId": 4242, "ProducerEpoch": 3}


def _empty(one: Id, _topic: str) -> None:
    one.init()
    one.init()


def _ongoing(one: Id, topic: str, version: int = 5) -> None:
    _empty(one, topic)
    one.add(version, {topic: [0]})


def _ended(one: Id, topic: str, *, commit: bool, added: int = 5, ended: int = 5) -> None:
    _ongoing(one, topic, added)
    one.end(ended, commit=commit)


def _fenced(one: Id, topic: str) -> None:
    """By another instance, which has nothing open: the epoch before is the fenced one's last."""
    _ongoing(one, topic)
    one.init()
    one.init()


def _timed_out(one: Id, topic: str) -> None:
    one.init(timeout_ms=BRIEF_MS)
    one.add(5, {topic: [0]})
    asked = {"TransactionalIds": [one.name]}
    one.d.until(lambda: one.guide("DescribeTransactions", 0, asked)["TransactionStates"][0]["TransactionState"]
                == "CompleteAbort")  # fmt: skip
    one.producer["ProducerEpoch"] += 1


STATES: dict[str, Make] = {
    "unknown": _unknown,
    "empty": _empty,
    "ongoing": _ongoing,
    "committed": partial(_ended, commit=True),
    "aborted": partial(_ended, commit=False),
    "committed-before-version-2": partial(_ended, commit=True, added=3, ended=3),
    "aborted-before-version-2": partial(_ended, commit=False, added=3, ended=3),
    "fenced": _fenced,
    "timed-out": _timed_out,
}

Call = Callable[[Id, str, dict[str, Any]], Any]


def _commits_offsets(version: int) -> Call:
    def call(one: Id, topic: str, producer: dict[str, Any]) -> None:
        group = f"{one.d.prefix}-g"
        one.settle()
        asked = offsets_of(one.name, group, topic, version, **producer)
        one.d.coordinator(group).ask("TxnOffsetCommit", version, asked)

    return call


def offsets_of(name: str, group: str, topic: str, version: int, offset: int = 1, **producer: Any) -> dict[str, Any]:
    """A TxnOffsetCommit of partition 0, of a group without members."""
    part = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": ""}
    asked = {"TransactionalId": name, "GroupId": group, "Topics": [{"Name": topic, "Partitions": [part]}], **producer}
    return asked | ({"GenerationId": -1, "MemberId": "", "GroupInstanceId": None} if version >= 3 else {})


def _produces(version: int) -> Call:
    def call(one: Id, topic: str, producer: dict[str, Any]) -> None:
        one.settle()
        batch_of = (producer["ProducerId"], producer["ProducerEpoch"], 0)
        records = a_batch(attributes=TRANSACTIONAL, producer=batch_of)
        produce(one.d, topic, records, version=version, partition=0, TransactionalId=one.name)

    return call


CALLS: dict[str, Call] = {
    **{f"init-{version}": (lambda one, _topic, producer, version=version: one.init(version, **producer))
       for version in (3, 4, 5)},
    **{f"add-{version}": (lambda one, topic, producer, version=version: one.add(version, {topic: [0]}, **producer))
       for version in (1, 3, 5)},
    "verify": lambda one, topic, producer: one.add(5, {topic: [0]}, verify_only=True, **producer),
    **{f"offsets-{version}": (
        lambda one, _topic, producer, version=version: one.offsets(version, f"{one.d.prefix}-g", **producer)
    ) for version in (1, 4)},
    **{f"{'commit' if commit else 'abort'}-{version}": (
        lambda one, _topic, producer, version=version, commit=commit: one.end(version, commit=commit, **producer)
    ) for version in (1, 3, 5) for commit in (True, False)},
    **{f"commit-offsets-{version}": _commits_offsets(version) for version in (2, 4, 5)},
    **{f"produce-{version}": _produces(version) for version in (9, 11, 12)},
}  # fmt: skip
WRONG: dict[str, dict[str, int]] = {
    "right": {}, "before": {"ProducerEpoch": -1}, "after": {"ProducerEpoch": 1}, "other": {"ProducerId": 100_000},
}  # fmt: skip


def _in_state(d: Dialogue, name: str) -> None:
    """Each cell has an id of its own, as many calls change the state."""
    topic = d.topic("data")
    d.coordinator(f"{d.prefix}-g")
    for call_name, call in CALLS.items():
        for wrong, by in WRONG.items():
            one = Id(d, f"{call_name}-{wrong}")
            STATES[name](one, topic)
            call(one, topic, {key: one.producer[key] + by.get(key, 0) for key in ("ProducerId", "ProducerEpoch")})
            one.describe()


for _name in STATES:
    TRANSACTION_SCENARIOS[f"each-call-in-the-state-{_name}"] = partial(_in_state, name=_name)


class Pending:
    """A group without members that has an offset of 1, and one of 5 that is pending in a transaction."""

    def __init__(self, d: Dialogue, name: str, *, with_plain: bool = True) -> None:
        self.d, self.group, self.topic = d, f"{d.prefix}-{name}-g", d.topic(name)
        self.line = d.coordinator(self.group)
        if with_plain:
            self.commit(1)
        self.one = Id(d, name)
        self.one.init()
        self.add(5)

    def add(self, offset: int) -> None:
        self.line.ask(
            "TxnOffsetCommit", 5, offsets_of(self.one.name, self.group, self.topic, 5, offset, **self.one.producer)
        )

    def commit(self, offset: int) -> None:
        part = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": ""}
        who = {"GroupId": self.group, "GenerationIdOrMemberEpoch": -1, "MemberId": ""}
        topics = [{"Name": self.topic, "Partitions": [part]}]
        self.line.ask("OffsetCommit", 8, {**who, "GroupInstanceId": None, "Topics": topics})

    def fetch(self) -> None:
        for stable in (True, False):
            for topics in ([{"Name": self.topic, "PartitionIndexes": [0]}], None):
                asked = {"Groups": [{"GroupId": self.group, "Topics": topics}], "RequireStable": stable}
                self.line.ask("OffsetFetch", 8, asked)

    def end(self, *, commit: bool) -> None:
        self.one.end(5, commit=commit)
        self.one.settle()
        self.fetch()


@scenario
def offsets_that_are_pending(d: Dialogue) -> None:
    for commit in (True, False):
        for with_plain in (True, False):
            one = Pending(d, f"{commit}-{with_plain}".lower(), with_plain=with_plain)
            one.fetch()
            one.end(commit=commit)
        outdone = Pending(d, f"outdone-{commit}".lower())
        outdone.commit(7)
        outdone.fetch()
        outdone.end(commit=commit)
        again = Pending(d, f"again-{commit}".lower())
        again.add(6)
        again.end(commit=commit)


@scenario
def a_group_with_pending_offsets_that_is_deleted(d: Dialogue) -> None:
    for with_plain in (True, False):
        one = Pending(d, f"{with_plain}".lower(), with_plain=with_plain)
        one.line.ask("DeleteGroups", 2, {"GroupsNames": [one.group]})
        one.end(commit=True)
        one.line.ask("DeleteGroups", 2, {"GroupsNames": [one.group]})


@scenario
def pending_offsets_that_are_deleted(d: Dialogue) -> None:
    one = Pending(d, "one")
    asked = {"GroupId": one.group, "Topics": [{"Name": one.topic, "Partitions": [{"PartitionIndex": 0}]}]}
    one.line.ask("OffsetDelete", 0, asked)
    one.end(commit=True)
    one.line.ask("OffsetDelete", 0, asked)
