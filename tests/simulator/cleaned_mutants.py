"""Faults planted into cleaning under replication, each of which the simulator of cleaned logs must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulator.cleaned_replica import Replica
from tpc_broker.log.cleaning import Cleaning
from tpc_broker.node.replicas import filling
from tpc_broker.node.replicas.offers import Offer
from tpc_broker.storage.replicas import filled_logs

_write_seal = filled_logs.write_seal
_ends_nothing = Cleaning._ends_nothing


@dataclass(frozen=True)
class Mutant:
    """`changes`: owner, name and what takes its place; `first_seed`: of the run that finds it, as the code is now."""

    name: str
    changes: tuple[tuple[object, str, object], ...]
    first_seed: int = 1

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(mock.patch.object(*change))
            yield


def _has_front(offer: Offer, first_own_offset: int, own_offset: int) -> bool:
    return first_own_offset < offer.first_offset <= own_offset


def _by_own_position(offer: Offer, first_own_offset: int, own_offset: int) -> bool:
    return _has_front(offer, first_own_offset, own_offset) and own_offset >= offer.removed_upto


async def _as_it_was(disk: Any, path: Any, seal: Any, _first_dirty_offset: int) -> None:
    await _write_seal(disk, path, seal, 1 << 62)


def _entries_do_not_count(self: Any, header: Any, data: Any) -> bool:
    before = self._c.removed_upto
    found = _ends_nothing(self, header, data)
    self._c.removed_upto = before
    return found


async def _no_seal(disk: Any, path: Any, seal: Any, first_dirty_offset: int) -> None:
    if seal.replaced != (seal.base_offset,):
        await _write_seal(disk, path, seal, first_dirty_offset)


_everything: Callable[[Any], int] = lambda _self: 0  # noqa: E731
MUTANTS = (
    Mutant("the own front is kept whatever was removed behind it", ((Offer, "continues", _has_front),)),
    Mutant("the own position says whether the front is kept", ((Offer, "continues", _by_own_position),)),
    Mutant("who lacks what was cleaned gets items", ((Replica, "contiguous_from_offset", property(_everything)),), 3),
    Mutant(
        "of two parts each was looked through for the other's keys",
        ((filling, "write_seal", _as_it_was), (filled_logs, "write_seal", _as_it_was)),
        6,
    ),
    Mutant(
        "an entry of an aborted transaction goes unnoticed", ((Cleaning, "_ends_nothing", _entries_do_not_count),), 5
    ),
    Mutant("a part that was cut off a cleaned segment has no seal", ((filled_logs, "write_seal", _no_seal),)),
)
