"""``tpc-broker user add``: users made while no broker runs on a data directory (`pending_users`)."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpc_broker.auth.credentials import (
    SALT_BYTES,
    ScramMechanism,
    credential_of_password,
    user_name_fault,
)
from tpc_broker.cli.passwords import PasswordError, credential_options, password_option, read_password
from tpc_broker.engine.data_directory import DataDirectory
from tpc_broker.metadata.records import credential_changed
from tpc_broker.node.membership.identity import is_in_cluster
from tpc_broker.operations.data_commands import refuse
from tpc_broker.operations.pending_users import PendingUsers
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

MECHANISMS: Final = {each.sasl_name: each for each in ScramMechanism}


@click.group()
def user() -> None:
    """Users who log in by SCRAM, made while the broker does not run."""


@user.command()
@click.argument("name")
@click.option("--data", default="./data", show_default=True, help="Directory of the log; it need not exist yet.")
@credential_options
@password_option
def add(name: str, data: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None) -> None:
    """Make a user before the broker's first start, or give one a new password while it is stopped.

    The next start takes it, before anybody is answered. Of a cluster, give it to one of the nodes that found it, before
    its first start; later `tpc user` makes users while the cluster runs.
    """
    try:
        make_user(Path(data).expanduser().resolve(), name, mechanisms, iterations, password_file)
    except (StartError, PasswordError) as error:
        refuse(str(error))
    click.echo(f"User {name} is there from the next start on: tpc-broker serve --data {data}")


def make_user(data: Path, name: str, mechanisms: Iterable[str], iterations: int, password_file: str | None) -> None:
    """StartError: a broker runs, or the directory or the name cannot be used. PasswordError: there is none."""
    fault = user_name_fault(name)
    if fault is not None:
        raise StartError(fault)
    with DataDirectory.open(data):
        if is_in_cluster(data):
            raise StartError(f"{data} is a node's of a cluster, which has its users; start it, and see: tpc user add")
        password = read_password(password_file, name)
        records = [
            credential_changed(
                name, mechanism,
                credential_of_password(mechanism, password, secrets.token_bytes(SALT_BYTES), iterations),
            )
            for mechanism in ([MECHANISMS[each] for each in mechanisms] or ScramMechanism)
        ]
        PendingUsers(data).add(records)
