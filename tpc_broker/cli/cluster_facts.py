"""What a node of a cluster tells of it, beside what Kafka's DescribeCluster has: in a tagged field of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpc_broker.cli.connection import Exit, fail
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.told_facts import facts_told
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

NODES_TAG: Final = 10_000
BAR_WIDTH: Final = 20
MOVE_COLUMNS: Final = ("Partition", "To nodes", "From nodes", "Why", "State", "Records", "Progress")


def cluster_facts(bootstrap: str) -> tuple[Any, dict[str, Any]]:
    """DescribeCluster's answer, and what the node knows. Ends the command where it is no node of a cluster."""
    with own_client(bootstrap) as client:
        answer, facts = asked_facts(client)
    if facts is None:
        fail("this broker is not a node of a cluster (tpc-broker serve --cluster); `tpc info` shows it", Exit.NOT_FOUND)
    return answer, facts


def asked_facts(client: Cluster) -> tuple[Any, dict[str, Any] | None]:
    """The same; None of what is no node of a cluster."""
    answer, frame = client.any_connection().call_whole(ApiKey.DESCRIBE_CLUSTER, _asked)
    facts = facts_told(frame, NODES_TAG)
    if facts is not None:
        facts.setdefault("moves", [])  # an earlier release tells nothing of them
    return answer, facts


def _asked(_version: int) -> Any:
    return messages.DescribeClusterRequest()


def move_rows(moves: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Moves under way as rows of `MOVE_COLUMNS`."""
    rows = []
    for move in moves:
        held, total = move["records"], move["records_total"]
        records = "" if total is None else f"{held:,} of {total:,}"
        cores = move.get("between_cores")  # an earlier release tells nothing of them
        coming, going = _nodes(move["adding"]), _nodes(move["removing"])
        if cores is not None:
            coming, going = (f"{cores['node']}, core {cores[end]}" for end in ("to", "from"))
        rows.append((
            f"{move['topic']}-{move['partition']}", coming, going, move["reason"],
            move["state"], records, "" if total is None else bar(held, total),
        ))  # fmt: skip
    return rows


def _nodes(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def bar(done: int, total: int) -> str:
    """In blocks, with a percentage; of nothing everything is done."""
    share = min(1.0, done / total) if total else 1.0
    full = round(share * BAR_WIDTH)
    return f"{'█' * full}{'░' * (BAR_WIDTH - full)} {share:.0%}"
