"""Who gets which partitions of a consumer group whose assignment the broker makes (KIP-848).

Purpose: from a `GroupSpec` (members, what they subscribe to and were given before; topics) the target of every member.
API: `ASSIGNORS` by the name that a member asks for, and `assign`. Invariants: every partition of a topic that somebody
subscribes to has one owner, who does; the answer depends on the `GroupSpec` alone, not on the order of its mappings.

An assignor is a generator that yields every few hundred operations, so that a group of thousands of members does not
keep a core's other groups waiting. It reads the `GroupSpec` until it has returned: whoever drives it gives it one that
nobody changes. No clock, no randomness, no I/O.

`uniform` and `range` are the rules, `numbered` what they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.assignors.range import assign_range
from tpc_broker.coordinator.assignors.spec import Assignor, GroupSpec, MemberSpec, Partitions, TopicSpec
from tpc_broker.coordinator.assignors.uniform import assign_uniform

if TYPE_CHECKING:
    from tpc_broker.model import TopicId

__all__ = ["ASSIGNORS", "Assignor", "GroupSpec", "MemberSpec", "Partitions", "TopicSpec", "assign"]

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that Kafka has for them; the first is the default."""


def assign(name: str, spec: GroupSpec) -> dict[str, Partitions]:
    """Run an assignor to its end at once."""
    steps = ASSIGNORS[name](spec)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            targets: dict[str, dict[TopicId, frozenset[int]]] = done.value
            return targets
