"""``tpc acl``: list, add and remove rules of access."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json, print_table
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.acls import (
    ANY,
    CLUSTER_NAME,
    LITERAL,
    OPERATIONS,
    PATTERNS,
    PREFIXED,
    Acl,
    AclFilter,
    add_acls,
    list_acls,
    remove_acls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tpc_broker.cli.connection import Command

COLUMNS = ("Resource", "Name", "Pattern", "Principal", "Host", "Operation", "Permission")
MEANT = {
    "topic": {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"},
    "group": {"READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"},
    "cluster": {
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "ALL",
    },
    "transactional-id": {"WRITE", "DESCRIBE", "TWO_PHASE_COMMIT", "ALL"},
    "user": {"CREATE_TOKENS", "DESCRIBE_TOKENS", "ALL"},
}  # fmt: skip
"""Operations that anything asks for, by what they are on."""
PRODUCER = {"topic": ("WRITE", "DESCRIBE", "CREATE"), "transactional-id": ("WRITE", "DESCRIBE")}
CONSUMER = {"topic": ("READ", "DESCRIBE"), "group": ("READ",)}

Resource = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of `add` and `remove` say."""

    resources: tuple[Resource, ...]
    pattern: str
    principals: tuple[tuple[str, str], ...]
    """With the permission of each."""
    hosts: tuple[str, ...]
    operations: tuple[str, ...]
    producer: bool
    consumer: bool

    def operations_on(self, kind: str) -> tuple[str, ...]:
        """Once each."""
        shortcuts = (PRODUCER if self.producer else {}, CONSUMER if self.consumer else {})
        more = (each for table in shortcuts for each in table.get(kind, ()))
        return tuple(dict.fromkeys((*self.operations, *more)))


def _resource_options(command: Command) -> Command:
    for kind in ("user", "transactional-id", "group", "topic"):
        names, what = f"{kind.replace('-', '_')}s", f"On this {kind}. Repeatable."
        command = click.option(f"--{kind}", names, multiple=True, metavar="NAME", help=what)(command)
    return click.option("--cluster", "of_cluster", is_flag=True, help="On the cluster.")(command)


def _rule_options(command: Command) -> Command:
    """Of `add` and `remove`."""
    options: tuple[Callable[[Command], Command], ...] = (
        click.option("--allow-principal", "allowed", multiple=True, metavar="User:NAME", help="Who may. Repeatable."),
        click.option("--deny-principal", "denied", multiple=True, metavar="User:NAME", help="Who may not. Repeatable."),
        click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="Only from there. Repeatable."),
        click.option(
            "--operation", "operations", multiple=True, type=click.Choice(list(OPERATIONS), case_sensitive=False),
            help="Repeatable.",
        ),
        click.option("--producer", is_flag=True, help="What a producer needs of topics and transactional ids."),
        click.option("--consumer", is_flag=True, help="What a consumer needs of topics and groups."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return _resource_options(command)


@click.group()
def acl() -> None:
    """Rules of access: who may do what with which topics, groups and transactional ids.

    They decide where the broker has an authorizer. A name that ends nowhere is meant as it is; with `--pattern
    prefixed` the rule is on all names that begin with it, and the name `*` is every name. What is denied is denied,
    whatever else is allowed.
    """


@acl.command("list")
@_resource_options
@click.option("--principal", default=None, metavar="User:NAME", help="Only rules that name this principal.")
@click.option(
    "--pattern", type=click.Choice(list(PATTERNS)), default=ANY, show_default=True,
    help="Only such rules; `match`: whatever covers the name.",
)  # fmt: skip
@common_options
def list_rules(principal: str | None, pattern: str, bootstrap: str, as_json: bool, **named: Any) -> None:  # noqa: FBT001
    """List rules: all of them, or those on what is named."""
    resources = _resources(**named)
    with own_client(bootstrap) as client:
        wanted = [AclFilter(kind, name, pattern, principal) for kind, name in resources]
        wanted = wanted or [AclFilter(pattern=pattern, principal=principal)]
        found = sorted({rule for one in wanted for rule in list_acls(client, one)})
    _print(found, as_json=as_json)


@acl.command()
@_rule_options
@click.option(
    "--pattern", type=click.Choice([LITERAL, PREFIXED]), default=LITERAL, show_default=True,
    help="On the very name, or on all that begin with it.",
)  # fmt: skip
@common_options
def add(bootstrap: str, as_json: bool, **options: Any) -> None:  # noqa: FBT001
    """Add a rule for each principal, host, operation and resource that is named.

    What is there already stays as it is. It acts at once, on open connections too.
    """
    asked = _asked(**options)
    if not asked.principals:
        fail("a rule is for somebody: --allow-principal User:NAME, or --deny-principal", Exit.USAGE)
    rules = sorted(set(_rules(asked)))
    with own_client(bootstrap) as client:
        add_acls(client, rules)
    _print(rules, as_json=as_json)


@acl.command()
@_rule_options
@click.option(
    "--pattern", type=click.Choice(list(PATTERNS)), default=LITERAL, show_default=True,
    help="Only such rules; `match`: whatever covers the name.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Whatever is found, where not all of a rule is named.")
@common_options
def remove(bootstrap: str, as_json: bool, yes: bool, **options: Any) -> None:  # noqa: FBT001
    """Remove the rules that are named, and show them; without --host, those for any host.

    Where principals or operations are left out, rules with any are meant: they are only shown, until --yes is given.
    """
    asked = _asked(**options)
    filters = list(_filters(asked))
    is_named = all(None not in (one.principal, one.operation) for one in filters)
    with own_client(bootstrap) as client:
        if not is_named and not yes:
            found = sorted({rule for one in filters for rule in list_acls(client, one)})
            _print(found, as_json=as_json)
            fail(f"nothing was removed: {len(found)} rules are meant; --yes removes them", Exit.USAGE)
        removed = remove_acls(client, filters)
    if not removed:
        fail("there is no such rule; `tpc acl list` shows those that are", Exit.NOT_FOUND)
    _print(removed, as_json=as_json)


def _asked(  # noqa: PLR0913 - one parameter per option
    allowed: Iterable[str], denied: Iterable[str], hosts: tuple[str, ...], operations: tuple[str, ...], pattern: str,
    *, producer: bool, consumer: bool, **named: Any,
) -> Asked:  # fmt: skip
    principals = tuple((each, "ALLOW") for each in allowed) + tuple((each, "DENY") for each in denied)
    for principal, _permission in principals:
        if not all(principal.partition(":")):
            fail(f"{principal}: expected a principal such as User:alice, or User:* for everybody", Exit.USAGE)
    asked = Asked(_resources(**named), pattern, principals, hosts, operations, producer, consumer)
    if not asked.resources:
        fail("a rule is on something: --topic, --group, --transactional-id, --user or --cluster", Exit.USAGE)
    kinds = {kind for kind, _name in asked.resources}
    for shortcut, table in (("--producer", PRODUCER if producer else {}), ("--consumer", CONSUMER if consumer else {})):
        if table and not kinds & table.keys():
            fail(f"{shortcut} goes with --{' or --'.join(table)}", Exit.USAGE)
    for kind in sorted(kinds):
        for operation in asked.operations:
            if operation not in MEANT[kind]:
                those = ", ".join(sorted(MEANT[kind]))
                fail(f"--operation {operation} means nothing on a {kind}; there are {those}", Exit.USAGE)
    return asked


def _resources(
    topics: Iterable[str], groups: Iterable[str], transactional_ids: Iterable[str], users: Iterable[str],
    *, of_cluster: bool,
) -> tuple[Resource, ...]:  # fmt: skip
    named = (("topic", topics), ("group", groups), ("transactional-id", transactional_ids), ("user", users))
    found = [(kind, name) for kind, names in named for name in names]
    return (*found, ("cluster", CLUSTER_NAME)) if of_cluster else tuple(found)


def _rules(asked: Asked) -> Iterator[Acl]:
    for kind, name in asked.resources:
        operations = asked.operations_on(kind)
        if not operations:
            fail(f"what on {kind} {name}? --operation NAME, --producer or --consumer", Exit.USAGE)
        for principal, permission in asked.principals:
            for host in asked.hosts or ("*",):
                for operation in operations:
                    pattern = LITERAL if kind == "cluster" else asked.pattern
                    yield Acl(kind, name, pattern, principal, host, operation, permission)


def _filters(asked: Asked) -> Iterator[AclFilter]:
    for kind, name in asked.resources:
        for principal, permission in asked.principals or ((None, None),):
            for host in asked.hosts or (None,):
                for operation in asked.operations_on(kind) or (None,):
                    pattern = LITERAL if kind == "cluster" else asked.pattern
                    yield AclFilter(kind, name, pattern, principal, host, operation, permission)


def _print(rules: Iterable[Acl], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(one) for one in rules])
        return
    print_table(
        COLUMNS,
        [
            (one.resource, one.name, one.pattern, one.principal, one.host, one.operation, one.permission)
            for one in rules
        ],
    )
