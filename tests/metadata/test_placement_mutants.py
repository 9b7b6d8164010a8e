"""Bugs planted into placement: each must be caught by a property of `test_placement`, as it stands there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.metadata import test_placement as properties
from tpc_broker.metadata.placement import leaders, moves
from tpc_broker.metadata.placement.model import PlacementNode, Shares
from tpc_broker.metadata.placement.replicas import _Table

_fill = _Table.fill
_shares = Shares.__init__


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is wrong, where it is planted, and the property that says so."""

    name: str
    owner: object
    attribute: str
    replacement: object
    caught_by: Callable[[], None]


def _twice_on_a_node(self: Any, index: int) -> None:
    _fill(self, index)
    held = self._held[index]
    if len(held) > 1:
        self._move(index, held[-1], held[0])


def _limits_without_racks(self: Any, index: int) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(self._racks.values(), (0, self._partitions[index].replication_factor))


def _emptiest_by_count(self: Any, nodes: Any) -> Any:
    return min(nodes, key=lambda node: (self.excess(node), node))


def _shares_alike(self: Any, nodes: Any) -> None:
    _shares(self, [PlacementNode(node=node.node) for node in nodes])


def _placed_without_the_stranded(self: Any, index: int) -> Any:
    return tuple(self._held[index])


class _Never:
    """A field that stays False, whatever is written to it."""

    def __get__(self, _instance: object, _owner: object) -> bool:
        return False

    def __set__(self, _instance: object, _value: object) -> None: ...


def _nothing(*_arguments: Any) -> None:
    return None


_M, _P = Mutant, properties
MUTANTS = (
    _M("two replicas on a node", _Table, "fill", _twice_on_a_node,
        _P.test_after_any_joins_and_leaves_nodes_differ_by_at_most_one),
    _M("racks play no part in what is filled", _Table, "_limits", _limits_without_racks,
        _P.test_racks_of_one_size_are_even_and_hold_one_replica_each),
    _M("racks play no part in what is moved", _Table, "_may_move", lambda *_arguments: True,
        _P.test_any_present_placement_becomes_the_most_even_one_with_near_the_fewest_moves),
    _M("what is there does not stay", _Table, "keep", _nothing,
        _P.test_a_node_that_joins_gets_its_share_and_nothing_else_moves),
    _M("nothing is levelled", _Table, "level", lambda _self: False,
        _P.test_after_any_joins_and_leaves_nodes_differ_by_at_most_one),
    _M("no chains", _Table, "_chain", lambda *_arguments: False,
        _P.test_any_present_placement_becomes_the_most_even_one_with_near_the_fewest_moves),
    _M("what cannot be replaced is given up", _Table, "placed", _placed_without_the_stranded,
        _P.test_a_partition_keeps_what_cannot_be_replaced),
    _M("loads play no part", Shares, "emptiest", _emptiest_by_count,
        _P.test_of_nodes_with_as_many_replicas_the_least_loaded_gets_the_next),
    _M("all nodes have one share", Shares, "__init__", _shares_alike, _P.test_shares_are_by_cores),
    _M("a draining node keeps what it has", PlacementNode, "is_draining", _Never(),
        _P.test_a_node_that_drains_gives_up_what_it_holds_and_little_else_moves),
    _M("leaders are bunched", leaders, "_level", _nothing, _P.test_leaders_are_as_even_as_replicas_allow),
    _M("a chain of leaders is left out", leaders, "_chain", lambda *_arguments: [],
        _P.test_leaders_are_as_even_as_replicas_allow),
    _M("all nodes of a partition change at once", moves, "_width", lambda *_arguments: 9,
        _P.test_five_replicas_move_one_at_a_time_and_three_at_once),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught_by_its_property(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = getattr(mutant.caught_by, "_hypothesis_internal_use_settings", None)
    if chosen is not None:  # no search for the smallest case, and none that is kept for the sound code
        quick = settings(chosen, phases=(Phase.generate,), database=None, derandomize=True)
        monkeypatch.setattr(mutant.caught_by, "_hypothesis_internal_use_settings", quick)
    mutant.caught_by()
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.replacement)
    with pytest.raises((AssertionError, ExceptionGroup)):
        mutant.caught_by()


def test_no_two_mutants_are_the_same() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 6
