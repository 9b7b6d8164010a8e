"""Which broker a pipeline works with, and what it has to know of topics before it starts, asked on the driver."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import RefusedError, UnknownTopicError
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.spark.options import write_options

CHECK_SECONDS: Final = 10.0
_TOPIC_RESOURCE: Final = 2


@dataclass(frozen=True, slots=True)
class Broker:
    """``bootstrap`` is host:port; ``more`` are options of the data source, such as `kafka.security.protocol`."""

    bootstrap: str
    more: tuple[tuple[str, str], ...] = ()

    def options(self) -> dict[str, str]:
        """For a reader or a writer of the data source."""
        return {"bootstrap": self.bootstrap, **dict(self.more)}

    def cluster(self) -> Cluster:
        """For questions, not for work: it gives up early."""
        return Cluster(replace(write_options(self.options()).cluster, retry_seconds=CHECK_SECONDS))


def broker_at(place: str | Broker) -> Broker:
    return Broker(place) if isinstance(place, str) else place


def check_topics(place: str | Broker, topics: Iterable[str], *, some_may_be_missing: bool = False) -> None:
    """`UnknownTopicError` or another `ClientError`, before a session is started for nothing."""
    names = list(topics)
    with broker_at(place).cluster() as cluster:
        missing = sorted(set(names) - cluster.existing(names, {}).keys())
    if missing and not (some_may_be_missing and len(missing) < len(set(names))):
        raise UnknownTopicError(f"there is no topic {', '.join(map(repr, missing))}")


def topic_configuration(place: str | Broker, topic: str) -> Mapping[str, str | None]:
    """All settings of a topic, defaults included."""
    make = messages.DescribeConfigsRequest
    resource = make.DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None)
    request = make(resources=[resource], include_synonyms=False, include_documentation=False)
    with broker_at(place).cluster() as cluster:
        cluster.topic(topic)
        answer = cluster.any_connection().call(ApiKey.DESCRIBE_CONFIGS, in_any_version(request))
        result = answer.results[0]
        if result.error_code:
            raise RefusedError(result.error_code, f"the configuration of {topic}")
        return {entry.name: entry.value for entry in result.configs}
