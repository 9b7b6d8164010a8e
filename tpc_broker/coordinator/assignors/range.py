"""The assignor `range`: every member gets one run of each topic's partitions, the same run of topics that are alike.

Members with an instance id come first, in the order of these, then the others in the order of their member ids. Each
topic is cut for its subscribers in this order, into runs of `partitions // subscribers`; the first ones get one more,
as many as it takes. So topics with as many partitions and the same subscribers are cut alike (what has one key is in
one member's hands), and a static member that comes back under another member id gets its runs again.

Nothing is kept for its own sake: the answer follows from members and topics, whatever they had. Apache Kafka 4.3.1 does
this, partition for partition, and looks at no rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.assignors.numbered import Holding, Pace, in_order, number, targets_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from tpc_broker.coordinator.assignors.spec import GroupSpec, Partitions


def assign_range(spec: GroupSpec) -> Generator[None, None, dict[str, Partitions]]:
    """The targets of all members; see `spec.Assignor`."""

    def precedence(member_id: str) -> tuple[bool, str, str]:
        instance_id = spec.members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    pace = Pace()
    member_ids = yield from in_order(spec.members, precedence, pace)
    group = yield from number(spec, member_ids, pace)
    of_members: list[Holding] = [[] for _member in member_ids]
    for topic, count in enumerate(group.partitions_counts):
        subscribers = group.subscribers[topic]
        least, more = divmod(count, len(subscribers))
        begin = 0
        for place in range(min(count, len(subscribers))):
            end = begin + least + (place < more)
            of_members[subscribers[place]].append((topic, frozenset(range(begin, end))))
            begin = end
            if pace.is_due():
                yield
        if pace.is_due():
            yield
    return (yield from targets_of(group, of_members, pace))
