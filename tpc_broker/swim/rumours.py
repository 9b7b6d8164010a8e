"""News to be told: each rides on other messages, at most λ log n times, those told least often first.

SWIM, section 4.1: updates travel piggybacked on pings and their answers, as infections do, and reach n members in
O(log n) periods. A bounded number of repetitions (λ log n) suffices with high probability; what it misses the periodic
exchange of the whole state finds. Of those told equally often the newest goes first: a burst of old news (many members
at once) does not hold up a fresh suspicion.

A member has one rumour, the latest, because a later claim makes all earlier ones worthless. Only independent suspicions
of the same incarnation stand beside each other, since Lifeguard counts them. So the memory is bounded by the table of
members, times K + 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tpc_broker.swim.model import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.model import NodeId
    from tpc_broker.swim.model import Update

_Key = tuple["NodeId", "NodeId | None"]

LOOKS_MAX: Final = 64
"""Rumours looked at for one datagram: one that is too large must not cost a walk over all."""


class Rumours:
    """The queue. `update_bytes` says what an update takes in a datagram; the codec knows."""

    def __init__(self, update_bytes: Callable[[Update], int]) -> None:
        self._update_bytes = update_bytes
        self._told: list[dict[_Key, tuple[Update, int]]] = [{}]
        """By how often they were told: updates with their bytes, the newest last."""
        self._keys: dict[NodeId, dict[_Key, int]] = {}
        """Of a member: the keys of its rumours, and how often each was told."""

    def __len__(self) -> int:
        return sum(map(len, self._told))

    def __contains__(self, node: NodeId) -> bool:
        return node in self._keys

    def add(self, update: Update) -> None:
        """Tell this from now on, and nothing older of that member."""
        kept = {}
        for key, told in self._keys.get(update.node, {}).items():
            other = self._told[told][key][0]
            if other.rank == update.rank and other.source != update.source and update.state is State.SUSPECT:
                kept[key] = told
            else:
                del self._told[told][key]
        key = (update.node, update.source if update.state is State.SUSPECT else None)
        self._told[0][key] = (update, self._update_bytes(update))
        kept[key] = 0
        self._keys[update.node] = kept

    def forget(self, node: NodeId) -> None:
        """Tell nothing of that member any more."""
        for key, told in self._keys.pop(node, {}).items():
            del self._told[told][key]

    def take(self, room_bytes: int, times_max: int) -> list[Update]:
        """As many as fit, each now told once more; those told `times_max` times are dropped."""
        chosen: list[tuple[_Key, Update, int, int]] = []
        looks = 0
        for told, rumours in enumerate(self._told):
            for key in reversed(rumours):
                if looks == LOOKS_MAX or room_bytes <= 0:
                    break
                looks += 1
                update, size = rumours[key]
                if size <= room_bytes:
                    room_bytes -= size
                    chosen.append((key, update, size, told))
        for key, update, size, told in chosen:
            self._told_once_more(key, update, size, told, times_max)
        return [update for _key, update, _size, _told in chosen]

    def _told_once_more(self, key: _Key, update: Update, size: int, told: int, times_max: int) -> None:
        del self._told[told][key]
        keys = self._keys[update.node]
        if told + 1 >= times_max:
            del keys[key]
            if not keys:
                del self._keys[update.node]
            return
        if told + 1 == len(self._told):
            self._told.append({})
        self._told[told + 1][key] = (update, size)
        keys[key] = told + 1


def retransmissions_max(retransmit_lambda: int, members_count: int) -> int:
    """How often a rumour is told by one member: ceil(λ ln(n + 1)).

    Often enough in a small cluster too, where a rumour has few ways: with λ ceil(log10(n + 1)), that is four times
    among eight members, and 30 % of loss the simulator saw members buried who had refuted in time.
    """
    return math.ceil(retransmit_lambda * math.log(members_count + 1))
