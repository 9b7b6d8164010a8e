"""``tpc user``: list, add, password, delete: who may log in by SCRAM."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json, print_table
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.passwords import (
    PasswordError,
    credential_options,
    mechanism_option,
    password_option,
    read_password,
)
from tpc_broker.client.users import (
    MECHANISMS,
    NewCredential,
    User,
    delete_credentials,
    describe_users,
    set_credential,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.client.cluster import Cluster

SALT_BYTES = 16


@click.group()
def user() -> None:
    """Users who log in by SCRAM, and by PLAIN with the same password.

    The broker never gets the password itself, and what it keeps is not enough to log in with.
    """


@user.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@common_options
def list_users(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """List users, with the mechanisms by which each may log in and their iterations."""
    with own_client(bootstrap) as client:
        found = describe_users(client, names)
    _require(found, names)
    if as_json:
        print_json([{"user": one.name, "mechanisms": dict(one.mechanisms)} for one in found])
        return
    print_table(("User", "Mechanism", "Iterations"), [(one.name, *each) for one in found for each in _rows(one)])


def _rows(one: User) -> Iterable[tuple[str, int]]:
    return one.mechanisms.items()


@user.command()
@click.argument("name")
@credential_options
@password_option
@common_options
def add(  # noqa: PLR0913 - one parameter per option
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Make a user, who may log in by every mechanism."""
    with own_client(bootstrap) as client:
        if describe_users(client, [name]):
            fail(f"there is a user {name!r} already; `tpc user password` changes the password", Exit.CONFLICT)
        _set(client, name, mechanisms or tuple(MECHANISMS), iterations, _password(password_file, name))
    _say("added", name, as_json=as_json)


@user.command()
@click.argument("name")
@credential_options
@password_option
@common_options
def password(  # noqa: PLR0913 - one parameter per option
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Change the password of a user, of each mechanism that the user has.

    Who is logged in stays so, until the connection or its session ends.
    """
    with own_client(bootstrap) as client:
        (one,) = _require(describe_users(client, [name]), [name])
        _set(client, name, mechanisms or tuple(one.mechanisms), iterations, _password(password_file, name))
    _say("changed", name, as_json=as_json)


@user.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@mechanism_option
@common_options
def delete(names: tuple[str, ...], mechanisms: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Delete users, or with --mechanism one way for them to log in.

    Who is logged in stays so, until the connection or its session ends.
    """
    with own_client(bootstrap) as client:
        for one in _require(describe_users(client, names), names):
            gone = [each for each in one.mechanisms if not mechanisms or each in mechanisms]
            if not gone:
                fail(f"user {one.name!r} has no {' or '.join(mechanisms)}", Exit.NOT_FOUND)
            delete_credentials(client, one.name, gone)
    _say("deleted", *names, as_json=as_json)


def _set(client: Cluster, name: str, mechanisms: Iterable[str], iterations: int, password: str) -> None:
    """One after the other: a request changes a user once."""
    for mechanism in mechanisms:
        set_credential(client, NewCredential(name, mechanism, password, secrets.token_bytes(SALT_BYTES), iterations))


def _require(found: list[User], names: Iterable[str]) -> list[User]:
    there = {one.name for one in found}
    for name in names:
        if name not in there:
            fail(f"there is no user {name!r}; `tpc user list` shows those that are", Exit.NOT_FOUND)
    return found


def _password(file: str | None, name: str) -> str:
    try:
        return read_password(file, name)
    except PasswordError as error:
        fail(str(error), Exit.USAGE)


def _say(what: str, *names: str, as_json: bool) -> None:
    if as_json:
        print_json([{"user": name, "result": what} for name in names])
        return
    for name in names:
        click.echo(f"{what.capitalize()} user {name}.")
