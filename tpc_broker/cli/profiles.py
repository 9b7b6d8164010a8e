"""``tpc profile``: addresses and settings under names."""

from __future__ import annotations

from typing import Any

import click

from tpc_broker.cli.connection import Exit, fail, librdkafka_settings, print_json, print_table
from tpc_broker.cli.profile_file import Profile, ProfileError, Profiles, load_profiles, profiles_path, save_profiles

SECRETS = ("password", "secret", "jaas", "token", "key", "pem", "credential", "private", "oauth")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value for programs.")


@click.group()
def profile() -> None:
    """Addresses and settings under names, for --profile and TPC_PROFILE.

    \b
    Examples:
      tpc profile set prod --bootstrap broker.example:9092 -X security.protocol=ssl
      tpc topic list --profile prod
      tpc profile use prod                           from now on where none is named
    """  # noqa: D301 (click's mark for text that keeps its lines)


@profile.command("set")
@click.argument("name")
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Any core of any node; several with commas.")
@click.option("-X", "properties", multiple=True, metavar="NAME=VALUE", help="A setting of librdkafka. Repeatable.")
@json_option
def set_profile(name: str, bootstrap: str, properties: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """Make the profile NAME, or replace it. The file can be read by you alone; secrets in it are plain text."""
    profiles = _load()
    profiles.profiles[name] = Profile(bootstrap, librdkafka_settings(properties))
    save_profiles(profiles)
    _tell(f"Set profile {name} in {profiles_path()}.", {"profile": name, "file": str(profiles_path())}, as_json=as_json)


@profile.command()
@click.argument("name")
@json_option
def use(name: str, as_json: bool) -> None:  # noqa: FBT001
    """Mean NAME where no profile and no --bootstrap is given."""
    profiles = _load()
    _find(profiles, name)
    profiles.current = name
    save_profiles(profiles)
    _tell(f"Using profile {name}.", {"profile": name, "current": True}, as_json=as_json)


@profile.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:  # noqa: FBT001
    """Remove the profile NAME."""
    profiles = _load()
    _find(profiles, name)
    del profiles.profiles[name]
    if profiles.current == name:
        profiles.current = ""
    save_profiles(profiles)
    _tell(f"Removed profile {name}.", {"profile": name, "removed": True}, as_json=as_json)


@profile.command("list")
@json_option
def list_profiles(as_json: bool) -> None:  # noqa: FBT001
    """List profiles, without their secrets."""
    profiles = _load()
    rows = [
        {"profile": name, "current": name == profiles.current, "bootstrap": one.bootstrap, "properties": _shown(one)}
        for name, one in sorted(profiles.profiles.items())
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Profile", "Current", "Bootstrap", "Settings"),
        [
            (name, "yes" if name == profiles.current else "", one.bootstrap,
             " ".join(f"{key}={value}" for key, value in _shown(one).items()))
            for name, one in sorted(profiles.profiles.items())
        ],
    )  # fmt: skip


def _tell(text: str, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(text)


def _shown(one: Profile) -> dict[str, str]:
    return {key: "***" if _is_secret(key) else value for key, value in one.properties.items()}


def _is_secret(name: str) -> bool:
    """Where a file lies is none, whatever is in it."""
    return not name.endswith(".location") and any(word in name.lower() for word in SECRETS)


def _load() -> Profiles:
    try:
        return load_profiles()
    except ProfileError as error:
        fail(str(error), Exit.USAGE)


def _find(profiles: Profiles, name: str) -> None:
    try:
        profiles.find(name)
    except ProfileError as error:
        fail(str(error), Exit.NOT_FOUND)
