"""``tpc cluster health``: whether a cluster is as it should be, for scripts; and waiting for it, and for a drain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.cluster_facts import asked_facts
from tpc_broker.cli.connection import Exit, common_options, print_json
from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.own_client import own_client, patient_client
from tpc_broker.cli.partition_list import lacks_replicas, partition_rows
from tpc_broker.client.errors import AuthenticationError, ClientError
from tpc_broker.client.requests import in_any_version, metadata_request
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOOK_S: Final = 0.5
NAMES_MAX: Final = 3
WELL: Final = frozenset({"alive", "draining"})


@click.command()
@click.option("--wait", "wait_s", type=click.FloatRange(0), metavar="SECONDS", default=0.0,
              help="Wait so long for it to become healthy.")  # fmt: skip
@common_options
def health(wait_s: float, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """One line, and exit code 0 when all is well: every node is alive and not full, the metadata have a leader, every
    partition has one, and all its replicas are in sync. Else exit code 1, and the reasons. Of a broker alone, and of
    Apache Kafka, what holds of partitions.

    \b
    Examples:
      tpc cluster health
      tpc cluster health --wait 60      before the next node of a rolling restart
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if wait_s:
        reasons = waited(bootstrap, wait_s, lambda client: reasons_of(*_looked(client)))
    else:
        with own_client(bootstrap) as client:
            reasons = reasons_of(*_looked(client))
    if as_json:
        print_json({"healthy": not reasons, "reasons": reasons})
    else:
        click.echo(f"not healthy: {'; '.join(reasons)}" if reasons else "healthy")
    if reasons:
        raise SystemExit(int(Exit.FAILED))


def waited(bootstrap: str, wait_s: float | None, look: Callable[[Any], list[str]]) -> list[str]:
    """What is still missing after so long; None: as long as it takes. A broker that does not answer may be starting."""
    give_up_at = None if wait_s is None else time.monotonic() + wait_s
    while True:
        try:
            with patient_client(bootstrap) as client:
                missing = look(client)
        except AuthenticationError:
            raise
        except ClientError as error:
            missing = [str(error)]
        if not missing or (give_up_at is not None and time.monotonic() >= give_up_at):
            return missing
        time.sleep(LOOK_S)


def _looked(client: Any) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    _answer, facts = asked_facts(client)
    return facts, partitions_of(client)


def partitions_of(client: Any) -> list[dict[str, Any]]:
    request = metadata_request(None)
    answer = client.any_connection().call(ApiKey.METADATA, in_any_version(request))
    return list(partition_rows(answer.topics, internal=True))


def reasons_of(facts: dict[str, Any] | None, partitions: Sequence[dict[str, Any]]) -> list[str]:
    """Why a cluster is not healthy. `facts`: None of what is no node of a cluster."""
    reasons = []
    for row in () if facts is None else facts["nodes"]:
        if row["state"] not in WELL:
            reasons.append(f"node {row['node']} is {row['state']}")
        elif row.get("full"):
            reasons.append(f"node {row['node']} is full")
    if facts is not None and facts["controller"] is None:
        reasons.append(f"no node leads the metadata, as node {facts['asked']} knows")
    leaderless = [row for row in partitions if row["leader"] is None]
    lacking = [row for row in partitions if row["leader"] is not None and lacks_replicas(row)]
    reasons += [_said(leaderless, "no leader")] if leaderless else []
    reasons += [_said(lacking, "replicas that are not in sync")] if lacking else []
    return reasons


def left_on(number: int, facts: dict[str, Any] | None, partitions: Sequence[dict[str, Any]]) -> list[str]:
    """What a node that drains still leads, and which replicas are to go from it to nodes that can have them."""
    led = [row for row in partitions if row["leader"] is not None and row["leader"] // CORES_PER_NODE == number]
    nodes, moves = (facts or {}).get("nodes", ()), (facts or {}).get("moves", ())
    others = {row["node"] for row in nodes if row["state"] == "alive" and not row.get("full")}
    moving = {(move["topic"], move["partition"]) for move in moves if number in move["removing"]}
    going = [
        row for row in partitions
        if number in (on := _nodes_of(row)) and (others - on - {number} or (row["topic"], row["partition"]) in moving)
    ]  # fmt: skip
    missing = [_said(led, f"its leader on node {number}")] if led else []
    return missing + ([_said(going, f"a replica on node {number}")] if going else [])


def _nodes_of(row: dict[str, Any]) -> set[int]:
    return {broker // CORES_PER_NODE for broker in row["replicas"]}


def _said(rows: Sequence[dict[str, Any]], what: str) -> str:
    names = [f"{row['topic']}-{row['partition']}" for row in rows[:NAMES_MAX]]
    more = f" and {len(rows) - NAMES_MAX} more" if len(rows) > NAMES_MAX else ""
    count = "1 partition has" if len(rows) == 1 else f"{len(rows)} partitions have"
    return f"{count} {what} ({', '.join(names)}{more})"
