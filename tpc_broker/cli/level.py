"""``tpc cluster level``: the feature level, up to which nodes write what earlier releases cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

FEATURE = "tpc.version"
TIMEOUT_MS = 60_000


@click.command()
@click.option("--raise", "to", type=click.IntRange(1), metavar="LEVEL", help="Raise it; there is no way back.")
@common_options
def level(to: int | None, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """The feature level where the cluster is, and those that the node speaks that was asked.

    An upgrade of the last node does not raise it by itself. It is refused while a registered node does not speak it.
    """
    with own_client(bootstrap) as client:
        if to is not None:
            _raise(client, to)
        spoken, now = _levels(client)
    if as_json:
        print_json({"feature": FEATURE, "level": now, "first": spoken[0], "last": spoken[1]})
    elif to is not None:
        click.echo(f"{FEATURE} is {now}.")
    else:
        click.echo(f"{FEATURE} is {now}; this node speaks {spoken[0]} to {spoken[1]}.")


def _levels(client: Cluster) -> tuple[tuple[int, int], int]:
    """What the node speaks, and where the cluster is."""
    answer = client.any_connection().call(ApiKey.API_VERSIONS, _versions_asked)
    spoken = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}.get(FEATURE)
    now = {row.name: row.max_version_level for row in answer.finalized_features}.get(FEATURE)
    if spoken is None or now is None:
        fail(f"the broker has no feature {FEATURE}; it is another that speaks the Kafka protocol")
    return spoken, now


def _versions_asked(_version: int) -> Any:
    return messages.ApiVersionsRequest(client_software_name="tpc", client_software_version="0")


def _raise(client: Cluster, to: int) -> None:
    kind = messages.UpdateFeaturesRequest
    update = kind.FeatureUpdateKey(feature=FEATURE, max_version_level=to, upgrade_type=1)
    request = kind(timeout_ms=TIMEOUT_MS, feature_updates=[update])
    for failed in client.attempts():
        try:
            answer = client.any_connection().call(ApiKey.UPDATE_FEATURES, in_any_version(request))
            if answer.error_code == ErrorCode.NOT_CONTROLLER:
                raise RefusedError(answer.error_code, answer.error_message)
        except ClientError as error:
            failed(error)
            continue
        for one in (answer, *answer.results):
            if one.error_code:
                fail(one.error_message or ErrorCode(one.error_code).name, Exit.CONFLICT)
        return
