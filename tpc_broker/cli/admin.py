"""What the administrative commands share: a client, waiting for its answers, and offsets of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tpc_broker.cli.connection import REQUEST_TIMEOUT_S, Exit, exit_of, fail_with, make_client, no_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""A partition: topic and number."""


def admin_client(bootstrap: str) -> AdminClient:
    """Its requests end with it: keep it until they are answered."""
    return make_client(AdminClient, bootstrap)


def result_of(future: Any, bootstrap: str, what: str = "", *, topic: str = "") -> Any:
    """What comes of a request; a failure ends the command as `fail_with` does."""
    try:
        return future.result(timeout=REQUEST_TIMEOUT_S * 2)
    except (KafkaException, TimeoutError) as error:
        fail_with(error, bootstrap, what, topic=topic)


def only_result(futures: Mapping[Any, Any], bootstrap: str, what: str = "", *, topic: str = "") -> Any:
    (future,) = futures.values()
    return result_of(future, bootstrap, what, topic=topic)


def partitions_of(admin: AdminClient, topic: str, bootstrap: str) -> list[int]:
    """The numbers of a topic's partitions; the command ends where there is no such topic."""
    try:
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
    except KafkaException as error:
        fail_with(error, bootstrap)
    if found is None:
        no_topic(topic)
    return sorted(found.partitions)


def list_offsets(admin: AdminClient, places: Iterable[Place], spec: Any, bootstrap: str) -> dict[Place, int]:
    """The offset of each partition that `spec` stands for, -1 where no record is so late. Partitions that are not
    there (any more) are left out; any other failure ends the command.
    """
    asked = {TopicPartition(topic, index): spec for topic, index in places}
    offsets = {}
    if not asked:
        return {}
    for partition, future in admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S).items():
        place = (partition.topic, partition.partition)
        try:
            offsets[place] = future.result(timeout=REQUEST_TIMEOUT_S).offset
        except (KafkaException, TimeoutError) as error:
            if exit_of(error) is not Exit.NOT_FOUND:
                fail_with(error, bootstrap, f"{place[0]}-{place[1]}")
    return offsets
