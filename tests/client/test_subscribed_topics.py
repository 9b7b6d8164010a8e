"""Which topics a subscription finds, whatever else the cluster tells of."""

from __future__ import annotations

from typing import Any

from tests.support.both_loops import on_both_loops
from tpc_broker.client.membership.settings import Subscription
from tpc_broker.client.membership.topics import counts_found, counts_of
from tpc_broker.client.requests import ClusterFacts, TopicFacts


class Talkative:
    """A fleet whose answers tell of topics that others have asked for at the same time."""

    async def metadata_once(self, _names: list[str] | None) -> ClusterFacts:
        counts = {"orders": 2, "orders.dlq": 1, "other": 3}
        topics = {name: TopicFacts(b"", False, dict.fromkeys(range(n), 1), {}) for name, n in counts.items()}
        return ClusterFacts({}, topics, {"missing"}, {})


@on_both_loops
async def test_only_what_was_asked_for_is_read() -> None:
    fleet: Any = Talkative()
    assert await counts_of(fleet, ["orders.dlq", "missing"]) == {"orders.dlq": 1}
    assert await counts_found(fleet, Subscription(("orders",))) == {"orders": 2}
    assert await counts_found(fleet, Subscription((), "orders.*")) == {"orders": 2, "orders.dlq": 1}
