"""Waiting for moves of partitions, between nodes or between the cores of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.cluster import Cluster

Place = tuple[str, int]
"""A partition: topic and number."""

REQUEST_TIMEOUT_MS: Final = 60_000
LOOK_S: Final = 0.1
HEARD_S: Final = 5.0
"""A node hears of a move's beginning and end a moment later than the metadata's leader."""


def listed_moves(client: Cluster) -> list[tuple[str, Any]]:
    """What is under way, as the leader of the metadata says: a topic, and the row of one of its partitions."""
    request = messages.ListPartitionReassignmentsRequest(timeout_ms=REQUEST_TIMEOUT_MS, topics=None)
    answer = client.any_connection().call(ApiKey.LIST_PARTITION_REASSIGNMENTS, in_any_version(request))
    if answer.error_code:
        raise RefusedError(answer.error_code, answer.error_message or "asking which partitions move")
    return [(topic.name, one) for topic in answer.topics for one in topic.partitions]


def until_led(client: Cluster, ask: Callable[[], None]) -> None:
    """Again while nobody leads the metadata."""
    for failed in client.attempts():
        try:
            ask()
        except ClientError as error:
            failed(error)
            continue
        return


def wait_moved(
    client: Cluster,
    places: Collection[Place],
    astray: Callable[[], Mapping[Place, str]],
    *,
    gives_up_s: float | None = None,
) -> None:
    """Until none of these partitions is under way or astray. ClientError: one is astray, and not on its way any more;
    or it takes too long.

    `astray`: those that are not where they should be, and what is said of one that stays so. `gives_up_s`: so long they
    may be under way; None: as long as copying takes, of which it is told how far it is.
    """
    began_s = quiet_s = time.monotonic()
    told = -1
    while True:
        moving = _moving(client) & set(places)  # before the places: what ends in between is there
        left, now_s = astray(), time.monotonic()
        if moving:
            quiet_s = now_s
        elif not left:
            return
        elif now_s >= quiet_s + HEARD_S:
            topic, index = min(left)
            raise ClientError(f"{topic}-{index} {left[topic, index]}")
        count = len(moving | left.keys())
        if gives_up_s is not None and moving and now_s >= began_s + gives_up_s:
            raise ClientError(f"{len(moving)} partitions are still on their way after {gives_up_s:.0f} s; they go on")
        if gives_up_s is None and count != told:
            told = count
            click.echo(f"{told} of {len(places)} partitions on their way ...", err=True)
        time.sleep(LOOK_S)


def _moving(client: Cluster) -> set[Place]:
    found: set[Place] = set()
    until_led(client, lambda: found.update((name, one.partition_index) for name, one in listed_moves(client)))
    return found
