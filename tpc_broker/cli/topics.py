"""``tpc topic``: create, list, describe, delete."""

from __future__ import annotations

from typing import Any

import click
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    client_configuration,
    common_options,
    explain,
    fail,
    print_json,
    print_table,
)


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


def admin_client(bootstrap: str) -> AdminClient:
    return AdminClient(client_configuration(bootstrap))


def wait_for(futures: dict[Any, Any], bootstrap: str) -> Any:
    """The result of the only future; a failure ends the command with one line."""
    (future,) = futures.values()
    try:
        return future.result(timeout=REQUEST_TIMEOUT_S * 2)
    except (KafkaException, TimeoutError) as error:
        fail(explain(error, bootstrap))


@topic.command()
@click.argument("name")
@click.option("--partitions", type=int, default=-1, help="Number of partitions. Default: the broker's.")
@click.option("--config", "configs", multiple=True, metavar="K=V", help="A topic setting. Repeatable.")
@common_options
def create(name: str, partitions: int, configs: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Create a topic."""
    settings = {}
    for config in configs:
        key, separator, value = config.partition("=")
        if not separator or not key:
            fail(f"--config {config}: expected K=V, for example retention.ms=86400000", 2)
        settings[key] = value
    new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=settings)
    admin = admin_client(bootstrap)  # its requests end with it, so it is kept until they are answered
    wait_for(admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S), bootstrap)
    if as_json:
        print_json({"topic": name, "created": True})
    else:
        click.echo(f"Created topic {name}.")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too.")
@common_options
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """List topics."""
    try:
        metadata = admin_client(bootstrap).list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        fail(explain(error, bootstrap))
    found = sorted((name, len(t.partitions)) for name, t in metadata.topics.items() if internal or name[:2] != "__")
    if as_json:
        print_json([{"topic": name, "partitions": count} for name, count in found])
        return
    print_table(("Topic", "Partitions"), found)


@topic.command()
@click.argument("name")
@common_options
def describe(name: str, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Partitions with their leaders and offsets, and the settings that differ from the default."""
    admin = admin_client(bootstrap)
    try:
        metadata = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        fail(explain(error, bootstrap))
    found = metadata.topics.get(name)
    if found is None:
        fail(f"there is no topic {name!r}; `tpc topic list` shows those that are")
    indexes = sorted(found.partitions)
    earliest = _offsets(admin, name, indexes, OffsetSpec.earliest(), bootstrap)  # type: ignore[no-untyped-call]
    latest = _offsets(admin, name, indexes, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    entries = wait_for(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S), bootstrap)
    own = {entry.name: entry.value for entry in entries.values() if entry.source == 1}
    partitions = [
        {
            "partition": index,
            "leader": found.partitions[index].leader,
            "log_start_offset": earliest.get(index),
            "high_watermark": latest.get(index),
        }
        for index in indexes
    ]
    if as_json:
        print_json({"topic": name, "partitions": partitions, "configs": own})
        return
    print_table(
        ("Partition", "Leader", "Log start", "High watermark"), [tuple(row.values()) for row in partitions], title=name
    )
    if own:
        print_table(("Setting", "Value"), sorted(own.items()))


def _offsets(admin: AdminClient, name: str, indexes: list[int], spec: Any, bootstrap: str) -> dict[int, int]:
    asked = {TopicPartition(name, index): spec for index in indexes}
    offsets = {}
    for partition, future in admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S).items():
        try:
            offsets[partition.partition] = future.result(timeout=REQUEST_TIMEOUT_S).offset
        except (KafkaException, TimeoutError) as error:
            fail(explain(error, bootstrap))
    return offsets


@topic.command()
@click.argument("name")
@common_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Delete a topic and its records."""
    admin = admin_client(bootstrap)
    wait_for(admin.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S), bootstrap)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        click.echo(f"Deleted topic {name}.")
