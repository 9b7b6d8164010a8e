"""What a pipeline has to know of topics before it starts, asked on the driver."""

from collections.abc import Iterable, Mapping
from typing import Final

from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import RefusedError
from tpc_broker.kafka import ApiKey, messages

CHECK_SECONDS: Final = 10.0
_TOPIC_RESOURCE: Final = 2


def cluster_at(bootstrap: str) -> Cluster:
    """For questions, not for work: it gives up early."""
    return Cluster(ClusterSettings(bootstrap, retry_seconds=CHECK_SECONDS))


def check_topics(bootstrap: str, topics: Iterable[str]) -> None:
    """`UnknownTopicError` or another `ClientError`, before a session is started for nothing."""
    with cluster_at(bootstrap) as cluster:
        for topic in topics:
            cluster.topic(topic)


def topic_configuration(bootstrap: str, topic: str) -> Mapping[str, str | None]:
    """All settings of a topic, defaults included."""
    make = messages.DescribeConfigsRequest
    resource = make.DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None)
    request = make(resources=[resource], include_synonyms=False, include_documentation=False)
    with cluster_at(bootstrap) as cluster:
        cluster.topic(topic)
        answer = cluster.any_connection().call(ApiKey.DESCRIBE_CONFIGS, lambda _version: request)
        result = answer.results[0]
        if result.error_code:
            raise RefusedError(result.error_code, f"the configuration of {topic}")
        return {entry.name: entry.value for entry in result.configs}
