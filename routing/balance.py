"""Which partitions should go to another core, so that the cores have about the same to do.

Theory of operation
-------------------
Each step takes the core with the most to do and the one with the least, and moves the partition between them that
brings the two closest together: of those that are smaller than the difference, the one nearest to half of it. So each
move makes the larger of the two smaller, no core becomes busier than the busiest was, and it ends. It ends early where
the cores differ by less than `slack` of the mean, because every move costs clients a moment. That is no optimal plan
(a partition is as busy as it is, and none is exchanged for two), but no plan with far fewer moves does much better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

Key = TypeVar("Key")
SLACK: Final = 0.2
MOVES_MAX: Final = 32


class Shift(NamedTuple, Generic[Key]):
    """One partition to another core."""

    key: Key
    source: int
    target: int


def plan_balance(
    loads: Mapping[Key, float],
    owners: Mapping[Key, int],
    cores_count: int,
    *,
    slack: float = SLACK,
    moves_max: int = MOVES_MAX,
) -> list[Shift[Key]]:
    """Moves in their order; none where the cores are about even. `loads`: of any one unit, not negative."""
    held: list[dict[Key, float]] = [{} for _core in range(cores_count)]
    for key, owner in owners.items():
        held[owner][key] = loads.get(key, 0.0)
    totals = [sum(each.values()) for each in held]
    enough = slack * sum(totals) / cores_count
    shifts: list[Shift[Key]] = []
    while len(shifts) < moves_max:
        source = max(range(cores_count), key=totals.__getitem__)
        target = min(range(cores_count), key=totals.__getitem__)
        gap = totals[source] - totals[target]
        movable = [key for key, load in held[source].items() if 0 < load < gap]
        if gap <= enough or not movable:
            return shifts
        chosen = min(movable, key=lambda key: abs(held[source][key] - gap / 2))
        load = held[source].pop(chosen)
        held[target][chosen] = load
        totals[source] -= load
        totals[target] += load
        shifts.append(Shift(chosen, source, target))
    return shifts
