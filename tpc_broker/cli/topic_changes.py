"""``tpc topic alter`` and ``tpc topic trim``: what changes a topic that is there."""

from __future__ import annotations

import datetime
from typing import Any

import click
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    NewPartitions,
    OffsetSpec,
)

from tpc_broker.cli.admin import Place, admin_client, list_offsets, only_result, partitions_of, result_of
from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    Exit,
    common_options,
    fail,
    print_json,
    print_table,
    split_settings,
)
from tpc_broker.cli.moments import milliseconds, parse_record_time
from tpc_broker.cli.own_client import own_client
from tpc_broker.client import configs
from tpc_broker.client.configs import Resource

TRIM_COLUMNS = ("Partition", "Log start", "New log start", "Records removed")


@click.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1, 100_000), help="So many in all; there are never fewer again.")
@click.option("--config", "given", multiple=True, metavar="NAME=VALUE", help="Set a topic setting. Repeatable.")
@click.option("--unset", "unset", multiple=True, metavar="NAME", help="Give a setting back its default. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would do it.")
@common_options
def alter(  # noqa: PLR0913 - one parameter per option
    name: str, partitions: int | None, given: tuple[str, ...], unset: tuple[str, ...], dry_run: bool,  # noqa: FBT001
    bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Change the number of partitions and the settings of a topic.

    The broker checks all of it before any of it is done. With more partitions, keys go to other partitions than
    before: their order holds only from then on.
    """
    settings = split_settings("--config", given, "retention.ms=86400000")
    changes: dict[str, str | None] = {**settings, **dict.fromkeys(unset)}
    twice = sorted(set(unset) & settings.keys())
    if twice:
        fail(f"--config and --unset both name {twice[0]}; give one of them", Exit.USAGE)
    if partitions is None and not changes:
        fail("give --partitions N, --config NAME=VALUE or --unset NAME", Exit.USAGE)
    admin = admin_client(bootstrap)
    for validate_only in (True,) if dry_run else (True, False):
        if changes:
            with own_client(bootstrap, topic=name) as cluster:
                configs.alter(cluster, Resource.TOPIC, name, changes, validate_only=validate_only)
        if partitions is not None:
            wanted = [NewPartitions(name, partitions)]
            futures = admin.create_partitions(
                wanted, validate_only=validate_only, request_timeout=REQUEST_TIMEOUT_S
            )
            only_result(futures, bootstrap, f"topic {name}", topic=name)
    if as_json:
        print_json({"topic": name, "partitions": partitions, "changed": changes, "executed": not dry_run})
    else:
        click.echo(f"{'Would alter' if dry_run else 'Altered'} topic {name}.")


@click.command()
@click.argument("name")
@click.option(
    "--before", required=True, metavar="OFFSET|TIMESTAMP|latest", help="Records before it are removed; latest: all."
)
@click.option("--partition", "chosen", type=click.IntRange(min=0), multiple=True, help="Only this one. Repeatable.")
@click.option("--execute", is_flag=True, help="Do it.")
@common_options
def trim(  # noqa: PLR0913 - one parameter per option
    name: str, before: str, chosen: tuple[int, ...], execute: bool, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Remove the oldest records of a topic for good. Nothing is removed without --execute.

    \b
    Examples:
      tpc topic trim orders --before 2026-11-01T00:00:00Z
      tpc topic trim orders --partition 0 --before 1000 --execute
    """  # noqa: D301 (click's mark for text that keeps its lines)
    place = _parse_before(before)
    admin = admin_client(bootstrap)
    present = partitions_of(admin, name, bootstrap)
    missing = sorted(set(chosen) - set(present))
    if missing:
        fail(f"{name} has no partition {missing[0]}; it has 0 to {present[-1]}", Exit.NOT_FOUND)
    where: list[Place] = [(name, index) for index in sorted(set(chosen)) or present]
    starts = list_offsets(admin, where, OffsetSpec.earliest(), bootstrap)  # type: ignore[no-untyped-call]
    wanted = _new_starts(admin, where, place, starts, bootstrap)
    if execute:
        wanted = _delete(admin, wanted, bootstrap)
    rows = [(index, starts[name, index], new, new - starts[name, index]) for (_topic, index), new in wanted.items()]
    if as_json:
        keys = ("partition", "log_start_offset", "new_log_start_offset", "offsets_removed")
        partitions = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"topic": name, "executed": execute, "partitions": partitions})
        return
    print_table(TRIM_COLUMNS, rows, title=name)
    if not execute:
        click.echo("tpc: nothing was removed; --execute does it", err=True)


def _parse_before(text: str) -> int | datetime.datetime:
    if text == "latest":
        return OFFSET_END
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return parse_record_time(text)
    except ValueError:
        allowed = "latest, an offset (a number) or an ISO 8601 timestamp of the years 1970 to 9999"
        fail(f"--before {text}: expected {allowed}", Exit.USAGE)


def _new_starts(
    admin: AdminClient, where: list[Place], place: int | datetime.datetime, starts: dict[Place, int], bootstrap: str
) -> dict[Place, int]:
    ends = list_offsets(admin, where, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    if isinstance(place, datetime.datetime):
        found = list_offsets(admin, where, OffsetSpec.for_timestamp(milliseconds(place)), bootstrap)
        return {one: ends[one] if found[one] < 0 else found[one] for one in where}
    if place == OFFSET_END:
        return ends
    for topic, index in where:
        if place > ends[topic, index]:
            fail(f"--before {place}: {topic}-{index} ends at {ends[topic, index]}", Exit.USAGE)
    return {one: max(place, starts[one]) for one in where}


def _delete(admin: AdminClient, wanted: dict[Place, int], bootstrap: str) -> dict[Place, int]:
    """The log starts that there are now."""
    asked = [TopicPartition(*place, offset) for place, offset in wanted.items()]
    futures: dict[TopicPartition, Any] = admin.delete_records(asked, request_timeout=REQUEST_TIMEOUT_S)
    return {
        (one.topic, one.partition): result_of(future, bootstrap, f"{one.topic}-{one.partition}").low_watermark
        for one, future in futures.items()
    }
