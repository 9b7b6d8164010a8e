"""``tpc config``: settings of topics, brokers, groups and client metrics, each with its explanation."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json, print_table, split_settings
from tpc_broker.cli.own_client import own_client
from tpc_broker.client import configs
from tpc_broker.client.configs import Resource, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_BROKERS = "all"
COLUMNS = ("Setting", "Value", "From", "Default")

KINDS = {
    "topic": Resource.TOPIC, "broker": Resource.BROKER, "group": Resource.GROUP,
    "client-metrics": Resource.CLIENT_METRICS,
}  # fmt: skip

kind_argument = click.argument("kind", metavar="|".join(KINDS), type=click.Choice(list(KINDS)))
name_argument = click.argument("name")


@click.group()
def config() -> None:
    """Settings of topics, brokers, groups and subscriptions to client metrics.

    \b
    Examples:
      tpc config get topic orders                    what differs from the default
      tpc config get topic orders retention.ms       one setting, with its explanation
      tpc config get broker 0 --all --explain        everything about a broker
      tpc config set topic orders retention.ms=86400000
      tpc config set broker all log.retention.ms=86400000
      tpc config unset topic orders retention.ms
      tpc config set group billing consumer.session.timeout.ms=60000
      tpc config set client-metrics all 'metrics=*' interval.ms=60000
    """  # noqa: D301 (click's mark for text that keeps its lines)


@config.command()
@kind_argument
@name_argument
@click.argument("settings", metavar="[SETTING]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Also what has its default.")
@click.option("--explain", is_flag=True, help="What each setting does; so for settings that are named, too.")
@common_options
def get(  # noqa: PLR0913 - one parameter per option
    kind: str, name: str, settings: tuple[str, ...], everything: bool, explain: bool, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Show settings of the topic, group or subscription NAME, or of the broker with that id (`all`: what was altered
    for all brokers).
    """
    with own_client(bootstrap, topic=name if kind == "topic" else "") as cluster:
        found = configs.describe(cluster, KINDS[kind], _resource_name(kind, name))
    known = {one.name: one for one in found}
    for asked in settings:
        if asked not in known:
            fail(f"{kind} {name} has no setting {asked}{_meant(asked, known)}", Exit.NOT_FOUND)
    shown = [known[asked] for asked in settings] or [one for one in found if everything or one.source != "default"]
    if as_json:
        print_json({kind: name, "settings": [asdict(one) for one in shown]})
        return
    _print(shown, explain=explain or bool(settings), title=f"{kind} {name}")


def _print(shown: list[Setting], *, explain: bool, title: str) -> None:
    columns = (*COLUMNS, "Explanation") if explain else COLUMNS
    rows = [
        (one.name, one.value, one.source, one.default, *([_explained(one)] if explain else [])) for one in shown
    ]
    print_table(columns, rows, title=title)


def _explained(one: Setting) -> str:
    return f"{one.documentation} Fixed at the start.".strip() if one.read_only else one.documentation


def _meant(asked: str, known: Mapping[str, Setting]) -> str:
    close = difflib.get_close_matches(asked, list(known), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


@config.command("set")
@kind_argument
@name_argument
@click.argument("settings", metavar="SETTING=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would take them.")
@common_options
def set_settings(  # noqa: PLR0913 - one parameter per option
    kind: str, name: str, settings: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Set settings of a topic, group, subscription or broker, or (`broker all`) of all brokers: all of them or none."""
    changes: dict[str, str | None] = dict(split_settings("SETTING=VALUE", settings, "retention.ms=86400000"))
    _alter(kind, name, changes, bootstrap, dry_run=dry_run, as_json=as_json)


@config.command()
@kind_argument
@name_argument
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only ask the broker whether it would do it.")
@common_options
def unset(  # noqa: PLR0913 - one parameter per option
    kind: str, name: str, settings: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Give settings back the value that they have without: the broker's, or the default."""
    for setting in settings:
        if "=" in setting:
            fail(f"{setting}: only the name of a setting, without a value", Exit.USAGE)
    _alter(kind, name, dict.fromkeys(settings), bootstrap, dry_run=dry_run, as_json=as_json)


def _alter(  # noqa: PLR0913 - what both commands were given
    kind: str, name: str, changes: Mapping[str, str | None], bootstrap: str, *, dry_run: bool, as_json: bool
) -> None:
    with own_client(bootstrap, topic=name if kind == "topic" else "") as cluster:
        configs.alter(cluster, KINDS[kind], _resource_name(kind, name), changes, validate_only=dry_run)
    if as_json:
        print_json({kind: name, "changed": changes, "executed": not dry_run})
        return
    click.echo(f"{'Would change' if dry_run else 'Changed'} {kind} {name}: {', '.join(changes)}.")


def _resource_name(kind: str, name: str) -> str:
    if kind != "broker":
        return name
    if name != ALL_BROKERS and not (name.isascii() and name.isdecimal()):
        fail(f"broker {name}: expected a broker's id (`tpc info` shows them), or all", Exit.USAGE)
    return "" if name == ALL_BROKERS else name
