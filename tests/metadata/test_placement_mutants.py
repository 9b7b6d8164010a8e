"""Bugs planted into placement and into what uses it: each must be caught by a property, as it stands in its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.metadata import test_cluster_of_nodes as assignments
from tests.metadata import test_placement as properties
from tests.metadata import test_rebalance as plans
from tpc_broker.metadata import node_assignment
from tpc_broker.metadata.placement.model import PlacementNode, Shares
from tpc_broker.metadata.placement.replicas import _Table
from tpc_broker.metadata.rebalance import _Planner
from tpc_broker.model import CoreId, Replica

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


def _put_without_leader(self: Any, replicas: Any) -> None:
    for replica in replicas:
        self._on_cores[replica] += 1
        self._held.append(replica.node)


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
    _M("preferred leaders are bunched", _Planner, "_in_order", lambda _self, nodes, _preferred: list(nodes),
        plans.test_nodes_that_join_get_their_share_and_no_more_moves_than_that),
    _M("one core gets all that comes to a node", _Planner, "_core", lambda _self, _key, node: Replica(node, CoreId(0)),
        plans.test_a_core_of_a_node_gets_as_many_as_another),
    _M("leaders of new partitions are not counted", node_assignment._Table, "_put", _put_without_leader,
        assignments.test_replicas_are_on_nodes_racks_and_cores_and_leaders_everywhere),
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
