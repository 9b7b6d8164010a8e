"""``tpc quota``: list, set, remove: how much clients may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json, print_table, split_settings
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.quotas import CLIENT_ID, IP, QUOTAS, USER, alter_quotas, describe_quotas

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.quotas import ClientQuota, Entity

EXAMPLE = "producer_byte_rate=1000000"
ANY = "(any other)"
F = TypeVar("F", bound="Callable[..., Any]")


def _entity_options(command: F) -> F:
    for option in (
        click.option("--any-ip", is_flag=True, help="Of each address without a quota of its own."),
        click.option("--ip", metavar="ADDRESS", help="Of connections from an address."),
        click.option("--any-client-id", is_flag=True, help="Of each client id without a quota of its own."),
        click.option("--client-id", metavar="ID", help="Of clients with this id."),
        click.option("--any-user", is_flag=True, help="Of each user without a quota of its own."),
        click.option("--user", metavar="NAME", help="Of a user."),
    ):
        command = option(command)
    return command


def _entity(options: dict[str, Any]) -> Entity:
    entity: dict[str, str | None] = {}
    for of_type, option in ((USER, "user"), (CLIENT_ID, "client_id"), (IP, "ip")):
        name, is_any = options[option], options[f"any_{option}"]
        if name is not None and is_any:
            shown = option.replace("_", "-")
            fail(f"--{shown} {name}: and --any-{shown} is another quota; give one of them", Exit.USAGE)
        if name is not None or is_any:
            entity[of_type] = name
    return entity


def _entity_of_change(options: dict[str, Any]) -> Entity:
    entity = _entity(options)
    if not entity:
        fail("whose quota? Give --user, --client-id or both, or --ip (or one of --any-…)", Exit.USAGE)
    return entity


@click.group()
def quota() -> None:
    """Quotas: how much users, client ids and addresses may use of the brokers.

    \b
    producer_byte_rate        bytes a second that producers send
    consumer_byte_rate        bytes a second that consumers get
    request_percentage        percent of a core's time
    controller_mutation_rate  partitions a second that are made or deleted
    connection_creation_rate  new connections a second, of an address

    Each broker counts for itself. Of several quotas that fit a client the one that says most of it counts.
    """  # noqa: D301 (click's mark for text that keeps its lines)


@quota.command("list")
@_entity_options
@common_options
def list_quotas(bootstrap: str, as_json: bool, **options: Any) -> None:  # noqa: FBT001
    """List quotas: all, or those that name the user, client id or address given."""
    with own_client(bootstrap) as client:
        found = describe_quotas(client, _entity(options))
    if as_json:
        print_json([{"entity": dict(one.entity), "quotas": dict(one.values)} for one in found])
        return
    rows = [(*_names(one), key, f"{value:.15g}") for one in found for key, value in one.values.items()]
    print_table(("User", "Client id", "Address", "Quota", "A second"), rows)


def _names(one: ClientQuota) -> tuple[str, ...]:
    return tuple((one.entity[each] or ANY) if each in one.entity else "" for each in (USER, CLIENT_ID, IP))


@quota.command("set")
@click.argument("quotas", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@_entity_options
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would take them.")
@common_options
def set_quotas(quotas: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool, **options: Any) -> None:  # noqa: FBT001
    """Set quotas of a user, a client id, both, or an address: all of them or none."""
    changes: dict[str, float | None] = {}
    for name, text in split_settings("QUOTA=VALUE", quotas, EXAMPLE).items():
        _check_name(name)
        try:
            changes[name] = float(text)
        except ValueError:
            fail(f"{name}={text}: expected a number a second, for example {EXAMPLE}", Exit.USAGE)
    _alter(_entity_of_change(options), changes, bootstrap, dry_run=dry_run, as_json=as_json)


@quota.command()
@click.argument("quotas", metavar="[QUOTA]...", nargs=-1)
@_entity_options
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would do it.")
@common_options
def remove(quotas: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool, **options: Any) -> None:  # noqa: FBT001
    """Remove quotas of a user, a client id, both, or an address: those named, or all that it has."""
    entity = _entity_of_change(options)
    for name in quotas:
        _check_name(name)
    with own_client(bootstrap) as client:
        has = {key for one in describe_quotas(client, entity) if one.entity == entity for key in one.values}
    missing = [name for name in quotas if name not in has]
    if missing or not has:
        fail(f"there is no {missing[0] if missing else 'quota'} of that; `tpc quota list` shows those there are",
             Exit.NOT_FOUND)  # fmt: skip
    _alter(entity, dict.fromkeys(quotas or sorted(has)), bootstrap, dry_run=dry_run, as_json=as_json)


def _check_name(name: str) -> None:
    if name not in QUOTAS:
        fail(f"{name}: there are {', '.join(QUOTAS)}", Exit.USAGE)


def _alter(
    entity: Entity, changes: dict[str, float | None], bootstrap: str, *, dry_run: bool, as_json: bool
) -> None:
    with own_client(bootstrap) as client:
        alter_quotas(client, entity, changes, validate_only=dry_run)
    if as_json:
        print_json({"entity": dict(entity), "changed": changes, "executed": not dry_run})
        return
    shown = ", ".join(f"{of_type} {name or ANY}" for of_type, name in entity.items())
    click.echo(f"{'Would change' if dry_run else 'Changed'} {shown}: {', '.join(changes)}.")
