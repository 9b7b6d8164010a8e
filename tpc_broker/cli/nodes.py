"""``tpc node``: a node of a cluster is to be emptied, or is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.cluster_facts import asked_facts
from tpc_broker.cli.connection import CommandGroup, Exit, common_options, fail, print_json
from tpc_broker.cli.health import left_on, partitions_of, waited
from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.configs import Resource
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.cluster import Cluster
    from tpc_broker.client.connection import Connection

NODE_ID_MAX: Final = (2**31 - 1) // CORES_PER_NODE - 1
ACCEPT_LOSS_TAG: Final = 10_000
DRAINING: Final = "node.draining"
SET, DELETE = 0, 1

node_argument = click.argument("number", metavar="ID", type=click.IntRange(0, NODE_ID_MAX))


@click.group(cls=CommandGroup)
def node() -> None:
    """Nodes that are to leave their cluster; `tpc cluster` shows all.

    \b
    Examples:
      tpc node drain 3              node 3 gets nothing new, and hands over what it leads
      tpc node drain 3 --wait       the same, and until others lead and have what can be elsewhere
      tpc node drain 3 --cancel     it is a node like the others again
      tpc node remove 3             it is gone for good: nobody counts on it any more
    """  # noqa: D301 (click's mark for text that keeps its lines)


@node.command()
@node_argument
@click.option("--cancel", is_flag=True, help="Not any more.")
@click.option("--wait", is_flag=True, help="Until it leads nothing, and has no replica that another node could have.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="SECONDS", help="Of --wait; default: none.")
@common_options
def drain(  # noqa: PLR0913 (click hands each option over by name)
    number: int,
    cancel: bool,  # noqa: FBT001
    wait: bool,  # noqa: FBT001
    timeout_s: float | None,
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Let others lead what the node ID leads, and give it nothing new. It holds until it is cancelled, also over
    restarts.
    """
    if cancel and wait:
        fail("--wait is for a drain, not for its end", Exit.USAGE)
    if timeout_s is not None and not wait:
        fail("--timeout is for --wait", Exit.USAGE)
    request = messages.IncrementalAlterConfigsRequest
    change = request.AlterableConfig(
        name=DRAINING, config_operation=DELETE if cancel else SET, value=None if cancel else "true"
    )
    resource = request.AlterConfigsResource(
        resource_type=int(Resource.BROKER), resource_name=str(number * CORES_PER_NODE), configs=[change]
    )
    message = request(resources=[resource])

    def ask(one: Connection) -> Any:
        return one.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, in_any_version(message)).responses[0]

    result = _asked(bootstrap, ask)
    if result.error_code:
        known = _nodes(bootstrap)
        if number not in known:
            there = ", ".join(map(str, known))
            fail(f"there is no node {number}; there are {there} (tpc cluster shows them)", Exit.NOT_FOUND)
        fail(_said(result, number))
    left = _wait_drained(bootstrap, number, timeout_s) if wait else None
    if left:
        fail(f"node {number} is draining, and not drained after {timeout_s:g} s: {'; '.join(left)}")
    if as_json:
        print_json({"node": number, "draining": not cancel, **({} if left is None else {"drained": True})})
    elif left is not None:
        click.echo(f"Node {number} is drained.")
    else:
        click.echo(f"Node {number} is not draining any more." if cancel else f"Node {number} is draining.")


def _wait_drained(bootstrap: str, number: int, timeout_s: float | None) -> list[str]:
    """What is left there when the time is over."""

    def look(client: Cluster) -> list[str]:
        _answer, facts = asked_facts(client)
        state = next((row["state"] for row in (facts or {}).get("nodes", ()) if row["node"] == number), "draining")
        # Who is asked may not have heard of it; a node that is stopped meanwhile leads nothing, and that is seen.
        missing = ["it is not known everywhere"] if state == "alive" else []
        return missing + left_on(number, facts, partitions_of(client))

    return waited(bootstrap, timeout_s, look)


@node.command()
@node_argument
@click.option(
    "--accept-loss", is_flag=True, help="Partitions that only this node had are made anew, empty, on other nodes."
)
@common_options
def remove(number: int, accept_loss: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Forget the node ID, which is not alive: its vote on the metadata counts no more, another node takes its place,
    and its data directory cannot come back.
    """
    message = messages.UnregisterBrokerRequest(broker_id=number * CORES_PER_NODE)

    def ask(one: Connection) -> Any:
        if accept_loss:
            return one.call_tagged(ApiKey.UNREGISTER_BROKER, in_any_version(message), ACCEPT_LOSS_TAG)[0]
        return one.call(ApiKey.UNREGISTER_BROKER, in_any_version(message))

    answer = _asked(bootstrap, ask)
    if answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED:
        fail(f"there is no node {number}; tpc cluster shows those that are there", Exit.NOT_FOUND)
    if answer.error_code:
        fail(_said(answer, number), Exit.CONFLICT)
    if as_json:
        print_json({"node": number, "removed": True})
    else:
        click.echo(f"Node {number} is removed.")


def _asked(bootstrap: str, ask: Callable[[Connection], Any]) -> Any:
    """The answer of any broker; asked again while nobody leads the metadata."""
    with own_client(bootstrap) as client:
        for failed in client.attempts():
            try:
                answer = ask(client.any_connection())
                if answer.error_code == ErrorCode.NOT_CONTROLLER:
                    raise RefusedError(answer.error_code, answer.error_message)
            except ClientError as error:
                failed(error)
                continue
            return answer
    raise AssertionError


def _nodes(bootstrap: str) -> list[int]:
    """That are there."""
    message = messages.DescribeClusterRequest()
    with own_client(bootstrap) as client:
        answer = client.any_connection().call(ApiKey.DESCRIBE_CLUSTER, in_any_version(message))
    return sorted({row.broker_id // CORES_PER_NODE for row in answer.brokers})


def _said(result: Any, number: int) -> str:
    return result.error_message or f"node {number}: {ErrorCode(result.error_code).name}"
