"""Local health and suspicion time-outs: what Lifeguard adds to SWIM (Dadgar, Phillips, Currey: "Lifeguard: Local Health
Awareness for More Accurate Failure Detection", DSN 2018).

SWIM's false suspicions come, in practice, from the *suspecting* node: it is slow, so answers come late or are read
late. Lifeguard's three parts:

* *Local health aware probe* (IV-A). A node counts signs that it is itself the slow one. The count makes its period and
  its time-outs longer, so that it asks others less and gives them more time. A healthy node's helpers say NACK where
  they got no answer; a helper that says nothing is a sign that our own network or processor is at fault.
* *Local health aware suspicion* (IV-B). The time-out begins long (beta times the least) and falls with the logarithm of
  the number of *independent* suspicions. A slow node, whose messages nobody confirms, then has the long time-out; a
  real death is confirmed by many and has the short one.
* *Buddy system* (IV-C). Who pings a suspected member tells it so in that very ping, so that it can refute as soon as it
  can do anything. The machine does this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpc_broker.model import NodeId
    from tpc_broker.swim.model import Settings


class LocalHealth:
    """A saturating counter between 0 (healthy) and `maximum` (IV-A)."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.score = 0

    def worse(self, by: int = 1) -> None:
        """A probe failed, a helper stayed silent, a suspicion of oneself had to be refuted."""
        self.score = min(self._maximum, self.score + by)

    def better(self) -> None:
        """A probe was answered."""
        self.score = max(0, self.score - 1)

    def scaled(self, duration_ms: int) -> int:
        """`duration_ms` as long as this node's health makes it."""
        return duration_ms * (self.score + 1)


def suspicion_timeout_ms(settings: Settings, members_count: int, confirmations: int, health: int = 0) -> int:
    """How long a suspicion stands before it is a burial, with so many independent confirmations (IV-B).

    The least is alpha log10(n) periods, the longest beta times that; between them, with K confirmations wanted,
    max - (max - min) log(C + 1) / log(K + 1). A cluster too small for K others wants as many as there are.

    Of two members nobody else can confirm, or ask for the other. There the least is stretched by the accuser's
    `health`, as its periods are: otherwise a few datagrams that are lost in a row, of ever fewer, bury a member.
    """
    least = settings.suspicion_alpha * max(1.0, math.log10(max(1, members_count))) * settings.period_ms
    wanted = min(settings.suspicion_confirmations, members_count - 2)  # neither the suspect nor the first accuser
    longest = settings.suspicion_beta * least
    if wanted < 1:
        return round(min(longest, least * (health + 1)))
    share = math.log(confirmations + 1) / math.log(wanted + 1)
    return round(max(least, longest - (longest - least) * share))


@dataclass(slots=True)
class Suspicion:
    """An open suspicion. `accusers` has the first one and everybody who confirmed it independently, at most K + 1."""

    started_ms: int
    members_count: int
    health: int = 0
    """The score of `LocalHealth` of who suspects."""
    deadline_ms: int = 0
    accusers: set[NodeId] = field(default_factory=set)

    def confirm(self, accuser: NodeId, settings: Settings) -> bool:
        """Another member suspects the same: whether that is new and counts, so that it should be told on (IV-B)."""
        if accuser in self.accusers or len(self.accusers) > settings.suspicion_confirmations:
            return False
        self.accusers.add(accuser)
        timeout_ms = suspicion_timeout_ms(settings, self.members_count, len(self.accusers) - 1, self.health)
        self.deadline_ms = self.started_ms + timeout_ms
        return True
