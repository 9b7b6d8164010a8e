"""Who leads what, connections to the brokers, and trying again until a deadline.

A `Cluster` belongs to one thread. `settings` are plain and can be pickled, so that tasks elsewhere make their own.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from tpc_broker.client import requests
from tpc_broker.client.connection import Connection
from tpc_broker.client.errors import ClientError, RefusedError, UnknownTopicError, UnreachableError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import Node, TopicFacts, TopicPartition
from tpc_broker.client.security import SecuritySettings
from tpc_broker.host_port import NO_HOST, may_name_a_host, split_host_port
from tpc_broker.kafka import ApiKey, ErrorCode

BACKOFF_SECONDS_FIRST: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
MISSING_TOPIC_SECONDS: Final = 2.0
"""How long a topic may be missing before that is believed: a topic just made is not known everywhere at once."""
logger = logging.getLogger("tpc.client")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """``bootstrap`` is host:port, several with commas. ``request_timeout_seconds`` is for one answer, ``retry_seconds``
    for a whole operation with all its repetitions.
    """

    bootstrap: str
    client_id: str = "tpc"
    request_timeout_seconds: float = 30.0
    retry_seconds: float = 60.0
    security: SecuritySettings = field(default_factory=SecuritySettings)


def parse_bootstrap(text: str) -> list[Node]:
    nodes = []
    for entry in text.split(","):
        host, port = split_host_port(entry.strip())
        if not host or port is None:
            raise ValueError(f"no host:port: {entry.strip()!r}")
        if not may_name_a_host(host):
            raise ValueError(f"{entry.strip()!r}: {NO_HOST}")
        nodes.append(Node(host, port))
    return nodes


def is_retriable(error: ClientError) -> bool:
    return isinstance(error, UnreachableError) or (isinstance(error, RefusedError) and error.is_retriable)


def _is_news(name: str, facts: requests.ClusterFacts, believed: Mapping[str, bytes]) -> bool:
    """Whether an answer takes away what the caller believed to be there."""
    before, found = believed.get(name), facts.topics.get(name)
    return before != b"" if found is None else bool(before) and found.topic_id != before


class Cluster:
    """Connections are opened when they are needed and kept; metadata is fetched when it is needed or proved wrong."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self._bootstrap = parse_bootstrap(settings.bootstrap)
        self._connections: dict[Node, Connection] = {}
        self._nodes: dict[int, Node] = {}
        self._topics: dict[str, TopicFacts] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def attempts(self, retry_seconds: float | None = None) -> Iterator[Callable[[ClientError], None]]:
        """Endless attempts; each gives a function that takes the attempt's error: it waits, or raises when it is over.

        It raises what is not retriable, and anything once the time is over.
        """
        deadline = time.monotonic() + (self.settings.retry_seconds if retry_seconds is None else retry_seconds)
        pause = BACKOFF_SECONDS_FIRST

        def failed(error: ClientError) -> None:
            if not is_retriable(error) or time.monotonic() + pause > deadline:
                raise error
            self.forget_topics()
            time.sleep(pause)

        while True:
            yield failed
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    def answered(self, ask: Callable[[], T], retry_seconds: float | None = None) -> T:
        """What `ask` gives, in the first of `attempts` that does not fail with a `ClientError`."""
        for failed in self.attempts(retry_seconds):
            try:
                return ask()
            except ClientError as error:
                failed(error)
        raise AssertionError

    def forget_topics(self) -> None:
        """The metadata proved wrong."""
        self._topics.clear()

    def topic_names(self, *, with_internal: bool = False) -> list[str]:
        """All topics, sorted."""
        facts = self._metadata(None)
        return sorted(name for name, topic in facts.topics.items() if with_internal or not topic.is_internal)

    def topic(self, name: str) -> TopicFacts:
        """`UnknownTopicError` when it does not exist."""
        found = self._topics.get(name)
        if found is None:
            self._metadata([name])
            found = self._topics[name]
        return found

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in sorted(self.topic(topic).leaders)]

    def existing(self, names: Iterable[str], believed: Mapping[str, bytes]) -> dict[str, TopicFacts]:
        """Asked anew: those of the topics that exist. ``believed`` are ids that the caller has seen before, b"" of a
        topic that was missing.

        Nodes hear of changes one after the other, so that a topic is missing, or is another one than was believed, is
        asked again for `MISSING_TOPIC_SECONDS` before it is believed, from the first answer on that says so.
        """
        asked = list(names)
        until: float | None = None
        for failed in self.attempts():
            try:
                facts = self._metadata_once(asked)
                news = [name for name in asked if _is_news(name, facts, believed)]
                if news:
                    now = time.monotonic()
                    until = until or now + min(MISSING_TOPIC_SECONDS, self.settings.retry_seconds / 2)
                    if now <= until:
                        raise UnreachableError(f"missing, or another topic now: {', '.join(news)}")
            except ClientError as error:
                failed(error)
                continue
            self.forget_topics()
            self._topics.update(facts.topics)
            return facts.topics
        raise AssertionError

    def connection_to_leader(self, where: TopicPartition) -> Connection:
        """An idle connection to the partition's leader."""
        leaders = self.topic(where.topic).leaders
        if where.partition not in leaders:
            self._topics.pop(where.topic, None)
            leaders = self.topic(where.topic).leaders
        if where.partition not in leaders:
            raise UnknownTopicError(f"{where.topic} has no partition {where.partition}; it has {len(leaders)}")
        node = self._nodes.get(leaders[where.partition])
        if node is None:
            raise UnreachableError(f"{where} has no leader now")
        return self._connection(node)

    def any_connection(self) -> Connection:
        """To any broker that can be reached."""
        reasons = []
        for node in dict.fromkeys([*self._nodes.values(), *self._bootstrap]):
            try:
                return self._connection(node)
            except UnreachableError as error:
                reasons.append(str(error))
        raise UnreachableError("; ".join(reasons))

    def broker_ids(self) -> list[int]:
        """Asked anew: of all brokers."""
        self._metadata([])
        return sorted(self._nodes)

    def connection_to_broker(self, broker_id: int) -> Connection | None:
        """None: the cluster has no broker of that id."""
        if broker_id not in self._nodes:
            self._metadata([])
        node = self._nodes.get(broker_id)
        return None if node is None else self._connection(node)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: Isolation = Isolation.READ_COMMITTED
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each time in ms (or `requests.EARLIEST`, `LATEST`); -1: no record is so late."""
        found: dict[TopicPartition, int] = {}
        for failed in self.attempts():
            missing = {where: time_ms for where, time_ms in wanted.items() if where not in found}
            if not missing:
                return found
            try:
                self._list_offsets_once(missing, isolation, found)
            except ClientError as error:
                failed(error)
        raise AssertionError

    def _list_offsets_once(
        self, wanted: Mapping[TopicPartition, int], isolation: Isolation, found: dict[TopicPartition, int]
    ) -> None:
        by_leader: dict[Connection, dict[TopicPartition, int]] = {}
        for where, time_ms in wanted.items():
            by_leader.setdefault(self.connection_to_leader(where), {})[where] = time_ms
        refusals = []
        for connection, part in by_leader.items():
            request = requests.offsets_request(part, isolation)
            response = connection.call(ApiKey.LIST_OFFSETS, requests.in_any_version(request))
            for where, answer in requests.offsets_answer(response).items():
                if answer.error_code:
                    refusals.append(RefusedError(answer.error_code, f"offsets of {where}"))
                else:
                    found[where] = answer.offset
        if refusals:
            raise refusals[0]

    def partition_bytes(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """About how large partitions are on their leaders' disks; without those of brokers that do not say so."""
        by_leader: dict[Connection, list[TopicPartition]] = {}
        found: dict[TopicPartition, int] = {}
        try:
            for where in places:
                by_leader.setdefault(self.connection_to_leader(where), []).append(where)
            for connection, part in by_leader.items():
                request = requests.log_dirs_request(part)
                response = connection.call(ApiKey.DESCRIBE_LOG_DIRS, requests.in_any_version(request))
                found.update(requests.log_dirs_answer(response))
        except ClientError as error:
            logger.info("how large partitions are is not known: %s", error)
        return found

    def create_topic(self, name: str, partitions_count: int, configuration: Mapping[str, str] | None = None) -> bool:
        """False when it exists already (however it is made)."""
        request = requests.create_topic_request(name, partitions_count, configuration or {})
        for failed in self.attempts():
            try:
                response = self.any_connection().call(ApiKey.CREATE_TOPICS, requests.in_any_version(request))
                code = response.topics[0].error_code
                if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise RefusedError(code, f"making the topic {name}")
            except ClientError as error:
                failed(error)
                continue
            return bool(code == ErrorCode.NONE)
        raise AssertionError

    def _metadata(self, names: Iterable[str] | None) -> requests.ClusterFacts:
        asked = None if names is None else list(names)
        missing_until: float | None = None
        """From the first answer on that says so: the question may have taken long."""
        for failed in self.attempts():
            try:
                facts = self._metadata_once(asked)
                if facts.missing:
                    now = time.monotonic()
                    missing_until = missing_until or now + MISSING_TOPIC_SECONDS
                    text = f"there is no topic {', '.join(map(repr, sorted(facts.missing)))}"
                    raise (UnknownTopicError(text) if now > missing_until else UnreachableError(f"{text} yet"))
            except ClientError as error:
                failed(error)
                continue
            self._topics.update(facts.topics)
            return facts
        raise AssertionError

    def _metadata_once(self, names: list[str] | None) -> requests.ClusterFacts:
        make = requests.in_any_version(requests.metadata_request(names))
        facts = requests.metadata_answer(self.any_connection().call(ApiKey.METADATA, make))
        self._nodes = facts.nodes
        for name, code in facts.errors.items():
            raise RefusedError(code, f"metadata of {name}")
        return facts

    def _connection(self, node: Node) -> Connection:
        """A kept connection that has no answers to come, or a new one."""
        found = self._connections.get(node)
        if found is not None and found.is_idle and not found.is_closed and not found.is_expired:
            return found
        if found is not None:
            found.close()
        settings = self.settings
        made = Connection(node, settings.client_id, settings.request_timeout_seconds, settings.security)
        self._connections[node] = made
        return made
