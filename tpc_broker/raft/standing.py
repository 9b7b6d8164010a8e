"""Whose turn it is to stand for election: a core has only so many elections under way, the other groups wait in order.

When thousands of groups have no leader, what an election takes (requests, votes, entries of journals, the first items
of a term) is CPU time of all cores. If all of them stood at once, an answer would be seconds behind its question. By
then the campaign is given up, begun again in the next term, and asked for anew; the work grows, and nobody is elected
for as long as it does. With few at a time each is over within some turns, and the whole takes as long as the work.

How many at a time is found by how long they take: more while they are over soon, fewer when they take longer than a
message may be unanswered before it is sent again. So a machine that is slow, or has much else to do, does not choke.

A place is free again when its group leads and has its marker committed, when it stands no more, or after a while: who
waits for replicas that do not answer holds up nobody for long, and comes behind those that wait.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.raft.items import GroupId, Voter
    from tpc_broker.raft.messages import AppendEntries, RequestVote

EARLY_MAX: Final = 1_024
"""Requests for groups that are not here yet; above it the oldest ones are lost."""


# Rule: A core has only so many elections under way, and the other groups wait for their turn. Thousands that lack a
# leader get one as fast as the nodes can work, and terms do not climb. Why:
# docs/decisions/2026-11-23-many-elections.md. Held by tests/raft/test_standing.py.
class StandingOrder:
    """Of one core: `places` elections at most (least, most), each of which should be over within `pace_ms` and has its
    place for `place_ms`.
    """

    def __init__(self, places: tuple[int, int], pace_ms: int, place_ms: int) -> None:
        self._places_min, self._places_max = places
        self._pace_ms = pace_ms
        self._place_ms = place_ms
        self.places = self._places_min
        """As many as there are now."""
        self.leisure = 1
        """How many times as long as usual each has its place (`patience`)."""
        self._under_way: dict[GroupId, int] = {}
        """When they began; some may be over."""
        self._waiting: dict[GroupId, None] = {}
        self._fewer_ms = 0

    @property
    def waiting(self) -> int:
        """Groups whose turn has not come."""
        return len(self._waiting)

    def ask(self, group: GroupId, now_ms: int) -> bool:
        """Whether a group may stand now; if not, `next` names it when its turn has come."""
        self._under_way.pop(group, None)
        if self._waiting or len(self._under_way) >= self.places:
            self._waiting[group] = None
            return False
        self._under_way[group] = now_ms
        return True

    def next(self, is_under_way: Callable[[GroupId], bool], now_ms: int) -> list[GroupId]:
        """Groups whose turn it is now."""
        if not self._waiting:
            return []
        before, oldest_ms = self._under_way, now_ms - self.leisure * self._place_ms
        self._under_way = {
            group: since_ms for group, since_ms in before.items() if since_ms > oldest_ms and is_under_way(group)
        }
        self._adapt([now_ms - since_ms for group, since_ms in before.items() if group not in self._under_way], now_ms)
        chosen = list(islice(self._waiting, max(0, self.places - len(self._under_way))))
        for group in chosen:
            del self._waiting[group]
            self._under_way[group] = now_ms
        return chosen

    def _adapt(self, took_ms: list[int], now_ms: int) -> None:
        """Some are over, and took so long."""
        if not took_ms:
            return
        if sum(took_ms) <= self._pace_ms * len(took_ms):
            self.places = min(self._places_max, self.places + len(took_ms))
        elif now_ms - self._fewer_ms >= self._pace_ms:
            self._fewer_ms = now_ms
            self.places = max(self._places_min, self.places * 3 // 4)

    def forget(self, group: GroupId) -> None:
        """It is not here any more."""
        self._waiting.pop(group, None)


class EarlyRequests:
    """Requests for votes of groups that this core has not made yet, and what first leaders begin with: another core was
    faster. They are heard when the group is there, so nobody has to send again and again until then.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[GroupId, Voter], tuple[RequestVote | AppendEntries, int]] = {}

    def put(self, message: RequestVote | AppendEntries, boot_id: int) -> None:
        """The last one of each candidate counts."""
        key = message.group, message.source
        self._requests.pop(key, None)
        if len(self._requests) >= EARLY_MAX:
            del self._requests[next(iter(self._requests))]
        self._requests[key] = message, boot_id

    def take(self, group: GroupId, candidates: Iterable[Voter]) -> list[tuple[RequestVote | AppendEntries, int]]:
        """What of a group that is here now was asked before, with the start of the core that asked."""
        found = (self._requests.pop((group, voter), None) for voter in candidates) if self._requests else ()
        return [each for each in found if each is not None]
