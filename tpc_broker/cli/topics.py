"""``tpc topic``: create, list, describe, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from tpc_broker.cli.admin import admin_client, list_offsets, only_result, partitions_of
from tpc_broker.cli.cleanings import COLUMNS as CLEANING_COLUMNS
from tpc_broker.cli.cleanings import COMPACT, cleaning_row, cleanings_of
from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    Exit,
    common_options,
    fail,
    fail_with,
    no_topic,
    print_json,
    print_table,
    split_settings,
)
from tpc_broker.cli.moments import Instant, milliseconds
from tpc_broker.cli.topic_changes import alter, trim

if TYPE_CHECKING:
    import datetime

REPLICAS_MAX = 32_767
"""A 16-bit number in the protocol."""
NO_OFFSET = -1
"""No record is so late."""
PARTITIONS_MAX = 100_000
"""librdkafka's bound, and by default the broker's for all topics together."""


@click.group()
def topic() -> None:
    """Create, list, describe, alter, trim and delete topics."""


topic.add_command(alter)
topic.add_command(trim)


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="Number of partitions. Default: the broker's."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, REPLICAS_MAX),
    metavar="R",
    help="Nodes that have a copy. Default: the broker's, which is up to 3.",
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting. Repeatable.")
@common_options
def create(  # noqa: PLR0913 (click hands each option over by name)
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Create a topic."""
    settings = split_settings("--config", configs, "retention.ms=86400000")
    replicas = replication_factor or -1
    new = NewTopic(name, num_partitions=partitions or -1, replication_factor=replicas, config=settings)
    admin = admin_client(bootstrap)  # its requests end with it, so it is kept until they are answered
    only_result(admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S), bootstrap)
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
        fail_with(error, bootstrap)
    found = sorted((name, len(t.partitions)) for name, t in metadata.topics.items() if internal or name[:2] != "__")
    if as_json:
        print_json([{"topic": name, "partitions": count} for name, count in found])
        return
    print_table(("Topic", "Partitions"), found)


@topic.command()
@click.argument("name")
@common_options
def describe(name: str, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Partitions with their leaders and offsets, and the settings that differ from the default; of a compacted topic
    how much of each is not cleaned yet, and what cleanings have saved since the broker began.
    """
    admin = admin_client(bootstrap)
    try:
        metadata = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        fail_with(error, bootstrap)
    found = metadata.topics.get(name)
    if found is None:
        no_topic(name)
    indexes = sorted(found.partitions)
    places = [(name, index) for index in indexes if found.partitions[index].leader >= 0]  # else nobody has offsets
    earliest = list_offsets(admin, places, OffsetSpec.earliest(), bootstrap)  # type: ignore[no-untyped-call]
    latest = list_offsets(admin, places, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    entries = only_result(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S), bootstrap)
    own = {entry.name: entry.value for entry in entries.values() if entry.source == 1}
    partitions = [
        {
            "partition": index,
            "leader": found.partitions[index].leader,
            "replicas": found.partitions[index].replicas,
            "in_sync": found.partitions[index].isrs,
            "log_start_offset": earliest.get((name, index)),
            "high_watermark": latest.get((name, index)),
        }
        for index in indexes
    ]
    cleanings: dict[int, dict[str, Any]] = {}
    if "cleanup.policy" in entries and COMPACT in (entries["cleanup.policy"].value or "").split(","):
        cleanings = cleanings_of(bootstrap, name, {index: found.partitions[index].leader for index in indexes})
    if as_json:
        told = [{**one, "cleaning": cleanings[one["partition"]]} if one["partition"] in cleanings else one
                for one in partitions]  # fmt: skip
        print_json({"topic": name, "partitions": told, "configs": own})
        return
    rows = [
        tuple(",".join(map(str, value)) if isinstance(value, list) else value for value in row.values())
        for row in partitions
    ]
    print_table(("Partition", "Leader", "Replicas", "In sync", "Log start", "High watermark"), rows, title=name)
    if cleanings:
        print_table(CLEANING_COLUMNS, [cleaning_row(index, facts) for index, facts in sorted(cleanings.items())])
    if own:
        print_table(("Setting", "Value"), sorted(own.items()))


@topic.command("offsets")
@click.argument("name")
@click.option("--at", type=Instant(), help="The first record of this time or later in each partition.")
@common_options
def list_topic_offsets(name: str, at: datetime.datetime | None, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """First and last offsets of each partition, or the first at or after a point in time."""
    if at is not None and milliseconds(at) < 0:
        fail(f"--at {at.isoformat()}: no record is from before 1970", Exit.USAGE)
    admin = admin_client(bootstrap)
    places = [(name, index) for index in partitions_of(admin, name, bootstrap)]
    specs = {
        "log_start_offset": OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
        "high_watermark": OffsetSpec.latest(),  # type: ignore[no-untyped-call]
    }
    if at is not None:
        specs = {"offset": OffsetSpec.for_timestamp(milliseconds(at))}
    found = {column: list_offsets(admin, places, spec, bootstrap) for column, spec in specs.items()}
    rows: list[dict[str, int | None]] = []
    for place in places:
        row: dict[str, int | None] = {"partition": place[1]}
        for column, offsets in found.items():
            offset = offsets.get(place, NO_OFFSET)
            row[column] = None if offset == NO_OFFSET else offset
        rows.append(row)
    if as_json:
        print_json({"topic": name, "partitions": rows})
        return
    columns = ("Partition", "Offset") if at else ("Partition", "Log start", "High watermark")
    print_table(columns, [tuple(row.values()) for row in rows])


@topic.command()
@click.argument("name")
@common_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Delete a topic and its records."""
    admin = admin_client(bootstrap)
    only_result(admin.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S), bootstrap, name, topic=name)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        click.echo(f"Deleted topic {name}.")
