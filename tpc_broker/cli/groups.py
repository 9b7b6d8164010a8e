"""``tpc group``: list, describe, delete, and (in `group_resets`) reset-offsets."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaException
from rich.console import Group as Stacked
from rich.live import Live

from tpc_broker.cli.admin import admin_client
from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    Exit,
    common_options,
    exit_of,
    explain,
    fail,
    print_json,
    print_table,
    rich_table,
    writes_to_terminal,
)
from tpc_broker.cli.group_facts import KINDS, STATES, Group, describe_group
from tpc_broker.cli.group_resets import reset_offsets
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.groups import CONSUMER
from tpc_broker.client.groups import list_groups as listed

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITION_COLUMNS = ("Topic", "Partition", "Committed", "Log end", "Lag", "Client", "Host", "Member")
MEMBER_COLUMNS = ("Member", "Client", "Host", "Instance", "Protocol", "Epoch", "Partitions", "Target")


@click.group()
def group() -> None:
    """Consumer groups: who reads what, and how far behind."""


group.add_command(reset_offsets)


@group.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state. Repeatable.",
)  # fmt: skip
@click.option(
    "--type", "kinds", multiple=True, type=click.Choice(KINDS, case_sensitive=False),
    help="Only groups of this type: classic, or consumer (KIP-848). Repeatable.",
)  # fmt: skip
@common_options
def list_groups(states: tuple[str, ...], kinds: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """List groups with their types and states."""
    with own_client(bootstrap) as client:
        found = [
            one for one in listed(client) if (not states or one.state in states) and (not kinds or one.kind in kinds)
        ]
    if as_json:
        print_json([{"group": one.group, "type": one.kind, "state": one.state} for one in found])
        return
    print_table(("Group", "Type", "State"), [(one.group, one.kind, one.state) for one in found])


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all", "every_group", is_flag=True, help="Every group.")
@click.option("--members", "only_members", is_flag=True, help="Members and what they are assigned, without offsets.")
@click.option("--watch", is_flag=True, help="Look again and again until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS", help="Of --watch."
)
@click.option("--count", type=click.IntRange(min=1), default=None, help="Of --watch: end after so many looks.")
@common_options
def describe(  # noqa: PLR0913 - one parameter per option
    names: tuple[str, ...], every_group: bool, only_members: bool, watch: bool, interval: float,  # noqa: FBT001
    count: int | None, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Members, assignments, committed offsets and lag of groups.

    Of a group of type consumer (KIP-848) also its epochs: a member whose epoch is behind the assignment's, or whose
    partitions are not its target, has yet to take over or to give back.

    With --json each group is one object a line.
    """
    if bool(names) == every_group:
        fail("give one GROUP or more, or --all", Exit.USAGE)
    admin = admin_client(bootstrap)

    def look() -> list[Group]:
        with own_client(bootstrap) as client:
            asked = [one.group for one in listed(client) if one.kind in KINDS] if every_group else names
            found = [(name, describe_group(client, admin, name, bootstrap)) for name in asked]
        for name, told in found:
            if told is None and not every_group:  # one of all may have gone since they were listed
                fail(f"there is no group {name!r}; `tpc group list` shows those that are", Exit.NOT_FOUND)
        return [told for _name, told in found if told is not None]

    if not watch:
        _print(look(), only_members=only_members, as_json=as_json)
        return
    _watch(look, interval, count, only_members=only_members, as_json=as_json)


def _watch(
    look: Callable[[], list[Group]], interval: float, count: int | None, *, only_members: bool, as_json: bool
) -> None:
    looks = 0
    shown: Live | None = Live(auto_refresh=False) if writes_to_terminal() and not as_json else None
    if shown is not None:
        shown.start()
    try:
        while True:
            groups = look()
            if shown is None:
                _print(groups, only_members=only_members, as_json=as_json)
                sys.stdout.flush()
            else:
                tables = [rich_table(*_table(one, only_members=only_members), title=_title(one)) for one in groups]
                shown.update(Stacked(*tables), refresh=True)
            looks += 1
            if looks == count:
                return
            time.sleep(interval)
    finally:
        if shown is not None:
            shown.stop()


def _print(groups: list[Group], *, only_members: bool, as_json: bool) -> None:
    if as_json:
        for one in groups:
            print_json(one.as_json())
        return
    tables = [(one, *_table(one, only_members=only_members)) for one in groups]
    if writes_to_terminal():
        for one, columns, rows in tables:
            print_table(columns, rows, title=_title(one))
        return
    names = MEMBER_COLUMNS if only_members else PARTITION_COLUMNS
    # In a pipe, where there are no titles, each line says whose it is.
    print_table(("Group", *names), [(one.group, *row) for one, _names, rows in tables for row in rows])


def _table(one: Group, *, only_members: bool) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    if only_members:
        return MEMBER_COLUMNS, [
            (member.member_id, member.client_id, member.host, member.instance_id, member.protocol, member.epoch,
             " ".join(member.partitions), None if member.target is None else " ".join(member.target))
            for member in one.members
        ]
    return PARTITION_COLUMNS, [
        (row.topic, row.partition, row.committed_offset, row.log_end_offset, row.lag, row.client_id, row.host,
         row.member_id)
        for row in one.partitions
    ]  # fmt: skip


def _title(one: Group) -> str:
    members = f"{len(one.members)} member{'' if len(one.members) == 1 else 's'}"
    assignor = f", {one.assignor}" if one.assignor else ""
    epochs = f", epoch {one.group_epoch}, assigned {one.assignment_epoch}" if one.type == CONSUMER else ""
    who = f"{one.group} ({one.type}): {one.state}{epochs}, {members}{assignor}"
    return f"{who}, coordinator {one.coordinator}, lag {one.total_lag:,}"


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@common_options
def delete(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Delete groups that have no members, with their committed offsets."""
    admin = admin_client(bootstrap)
    wanted = list(dict.fromkeys(names))
    failures: dict[str, BaseException] = {}
    for name, future in admin.delete_consumer_groups(wanted, request_timeout=REQUEST_TIMEOUT_S).items():
        try:
            future.result(timeout=REQUEST_TIMEOUT_S * 2)
        except (KafkaException, TimeoutError) as error:
            failures[name] = error
    if as_json:
        print_json([{"group": name, "deleted": name not in failures} for name in wanted])
    for name in wanted:
        if name not in failures and not as_json:
            click.echo(f"Deleted group {name}.")
    if failures:
        said = "; ".join(f"group {name}: {_reason(failure, bootstrap)}" for name, failure in failures.items())
        fail(said, exit_of(next(iter(failures.values()))))


def _reason(error: BaseException, bootstrap: str) -> str:
    match exit_of(error):
        case Exit.CONFLICT:
            return "it has members; stop them first (`tpc group describe` shows who they are)"
        case Exit.NOT_FOUND:
            return "there is no such group"
        case _:
            return explain(error, bootstrap)
