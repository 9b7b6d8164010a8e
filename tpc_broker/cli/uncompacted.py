"""A word on `cleanup.policy=compact`, which is taken so that Kafka's clients can ask for it, and does nothing yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tpc_broker.cli.own_client import patient_client
from tpc_broker.client import configs
from tpc_broker.client.configs import Resource
from tpc_broker.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
SAID: Final = "Compaction does not run yet"
"""A broker that compacts, such as Apache Kafka, does not say this of the setting."""


def warnings_of(bootstrap: str, topic: str, changes: Mapping[str, str | None], *, as_json: bool) -> list[str]:
    """What a topic's new settings do not do; told on standard error, or to be told in the JSON."""
    if COMPACT not in [one.strip() for one in (changes.get(POLICY) or "").split(",")]:
        return []
    try:
        with patient_client(bootstrap) as cluster:
            found = configs.describe(cluster, Resource.TOPIC, topic)
    except ClientError:  # what was asked for is done, and who may not look is not told
        return []
    told = next((one.documentation for one in found if one.name == POLICY), "")
    if SAID not in told:
        return []
    warning = f"{topic}: {POLICY}={changes[POLICY]}: {told[told.index(SAID):]}"
    if not as_json:
        click.echo(f"tpc: warning: {warning}", err=True)
    return [warning]
