"""Transfers between accounts, one transaction each, and what every reader of committed records must see of them.

An account is a partition. A transfer writes one leg into each of several accounts, and its legs sum up to nothing. So
whatever failed meanwhile: a transfer whose commit was acknowledged is there once and whole, one that was never asked to
commit is nowhere, any other is whole or nowhere. A reader of committed records is told a last stable offset; below it,
it must see exactly what the account has there in the end, whichever way it reads: then the sum of each account at each
last stable offset is one and the same for all of them, and the sum of all accounts stays nothing.

The module does no I/O: tests of real brokers and of simulated ones fill the same ledger and are judged alike.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

FIRST_OF_A_REQUEST: Final = "request"
"""Begins the names of transfers that were asked for in a record of another topic."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One record of a transfer; `legs`: how many it has."""

    transfer: str
    legs: int
    amount: int

    def encode(self, padding: int = 0) -> bytes:
        """With so many bytes more, so that logs get segments."""
        return json.dumps([self.transfer, self.legs, self.amount]).encode() + b" " * padding

    @classmethod
    def decode(cls, value: bytes) -> Leg:
        return cls(*json.loads(value))


Statement = list[tuple[int, Leg]]
"""Of one account: offsets and legs, ascending."""


def transfer_between(name: str, accounts: int, chance: Random) -> dict[int, Leg]:
    """By account: two legs, sometimes three."""
    chosen = chance.sample(range(accounts), 2 if accounts < 3 or chance.random() < 0.8 else 3)
    amounts = [chance.randint(1, 1_000) for _ in chosen[1:]]
    return {
        account: Leg(name, len(chosen), amount)
        for account, amount in zip(chosen, [-sum(amounts), *amounts], strict=True)
    }


def request_name(partition: int, offset: int, attempt: str) -> str:
    """Of a transfer that a record asked for."""
    return f"{FIRST_OF_A_REQUEST}/{partition}/{offset}/{attempt}"


class Told(StrEnum):
    """The last that a producer knew of a transfer."""

    BEGUN = "begun"
    """No commit was asked for: it must be nowhere."""
    ASKED = "asked"
    """To commit, and no answer came: whole or nowhere."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class View:
    """What one reader was shown of an account: all committed legs in [first_offset, last_stable_offset)."""

    reader: str
    account: int
    first_offset: int
    last_stable_offset: int
    legs: Statement


@dataclass
class Ledger:
    """What producers were told of their transfers, and what readers were shown meanwhile."""

    told: dict[str, Told] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)

    def note(self, transfer: str, told: Told) -> None:
        self.told[transfer] = told

    def count(self, told: Told) -> int:
        return sum(each is told for each in self.told.values())

    def problems(
        self, final: Mapping[int, Statement], committed_requests: Mapping[int, int] | None = None
    ) -> list[str]:
        """`final`: each account whole, read after everything was over; `committed_requests`: of each partition of
        requests the offset that its group has committed.
        """
        return [
            *wrong_transfers(self.told, final), *wrong_views(self.views, final),
            *wrong_requests(committed_requests or {}, final),
        ]  # fmt: skip


def wrong_transfers(told: Mapping[str, Told], final: Mapping[int, Statement]) -> list[str]:
    """Torn, twice, lost, invented, or there although aborted."""
    places: dict[str, list[tuple[int, int, Leg]]] = defaultdict(list)
    for account, statement in final.items():
        for offset, leg in statement:
            places[leg.transfer].append((account, offset, leg))
    found = []
    for transfer, there in places.items():
        accounts = Counter(account for account, _offset, _leg in there)
        wanted, where = there[0][2].legs, [(account, offset) for account, offset, _leg in there]
        if max(accounts.values()) > 1:
            found.append(f"{transfer}: twice in an account: {where}")
        elif len(accounts) != wanted:
            found.append(f"{transfer}: torn, {len(accounts)} legs of {wanted}: {where}; told: {told.get(transfer)}")
        elif total := sum(leg.amount for _account, _offset, leg in there):
            found.append(f"{transfer}: sums up to {total}")
        if transfer not in told:
            found.append(f"{transfer}: nobody has begun it: {where}")
        elif told[transfer] in (Told.BEGUN, Told.ABORTED):
            found.append(f"{transfer}: {told[transfer]}, and there: {where}")
    found += [
        f"{transfer}: lost, its commit was acknowledged"
        for transfer, last in told.items()
        if last is Told.COMMITTED and transfer not in places
    ]
    if total := sum(leg.amount for statement in final.values() for _offset, leg in statement):
        found.append(f"all accounts sum up to {total}")
    return found


def wrong_views(views: Iterable[View], final: Mapping[int, Statement]) -> list[str]:
    """What was shown below a last stable offset, and is not what the account has there."""
    found = []
    for view in views:
        wanted = between(final[view.account], view.first_offset, view.last_stable_offset)
        if wanted != view.legs:
            more = [each for each in view.legs if each not in wanted]
            missing = [each for each in wanted if each not in view.legs]
            found.append(
                f"{view.reader}: account {view.account} [{view.first_offset}, {view.last_stable_offset}): "
                f"{_sum(view.legs)} and not {_sum(wanted)}; shown too much {more[:3]}, not shown {missing[:3]}"
            )
    return found


def between(statement: Statement, first_offset: int, end_offset: int) -> Statement:
    return [each for each in statement if first_offset <= each[0] < end_offset]


def _sum(statement: Statement) -> int:
    return sum(leg.amount for _offset, leg in statement)


def wrong_requests(committed: Mapping[int, int], final: Mapping[int, Statement]) -> list[str]:
    """Requests are done once each: those below the committed offset, and no other."""
    done: dict[tuple[int, int], set[str]] = defaultdict(set)
    for statement in final.values():
        for _offset, leg in statement:
            if leg.transfer.startswith(FIRST_OF_A_REQUEST + "/"):
                _, partition, offset, _attempt = leg.transfer.split("/")
                done[int(partition), int(offset)].add(leg.transfer)
    found = [f"request {place} was done {len(names)} times: {sorted(names)}" for place, names in done.items()
             if len(names) > 1]  # fmt: skip
    for partition, end in committed.items():
        offsets = {offset for where, offset in done if where == partition}
        missing, early = sorted(set(range(end)) - offsets), sorted(offset for offset in offsets if offset >= end)
        if missing:
            found.append(f"requests {partition}: offset {end} is committed, and not done are {missing[:5]}")
        if early:
            found.append(f"requests {partition}: only offset {end} is committed, and done are {early[:5]}")
    return found


def committed_legs(
    records: Iterable[tuple[int, int, bytes]], aborted: Iterable[tuple[int, int]], aborts: Iterable[tuple[int, int]]
) -> Statement:
    """As a consumer leaves out aborted records. `records`: offset, producer id, value; `aborted`: producer id, first
    offset; `aborts`: offset and producer id of markers.
    """
    begins = [(offset, 0, producer_id, b"") for producer_id, offset in aborted]
    ends = [(offset, 1, producer_id, b"") for offset, producer_id in aborts]
    shown = [(offset, 2, producer_id, value) for offset, producer_id, value in records]
    gone, found = set(), []
    for offset, kind, producer_id, value in sorted([*begins, *ends, *shown]):
        if kind == 0:
            gone.add(producer_id)
        elif kind == 1:
            gone.discard(producer_id)
        elif producer_id not in gone:
            found.append((offset, Leg.decode(value)))
    return found
