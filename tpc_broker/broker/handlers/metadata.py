"""ApiVersions, Metadata, DescribeCluster, FindCoordinator: what a client asks before it works."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from tpc_broker import __version__
from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR, ON_CLUSTER, ON_TOPIC
from tpc_broker.broker.client_software import NO_MARK
from tpc_broker.broker.handled import EncodedResponse
from tpc_broker.broker.handlers.features import tell_features
from tpc_broker.broker.handlers.tags import request_tags, with_facts
from tpc_broker.broker.handlers.topic_changes import may_create
from tpc_broker.broker.handlers.transactions import note_transactions
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.feature_levels import FIRST_WITH_TRANSACTIONS
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey, advertised_versions, api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.protocol import encode_response_header
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    PartitionIndex,
    TopicPartition,
    coordinator_partition,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.payloads import Payload
    from tpc_broker.broker.view import Endpoint
    from tpc_broker.kafka.message import Message
    from tpc_broker.metadata.image import TopicImage

    AskedTopic = messages.MetadataRequest.MetadataRequestTopic
    ToldTopic = messages.MetadataResponse.MetadataResponseTopic

SOFTWARE_TEXT = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
GROUP_KEY, TRANSACTION_KEY = 0, 1
TEXT_IS_SHOWN_VERSION = 3
NO_TRANSACTIONS = (
    f"This cluster has no transactions below feature level {FIRST_WITH_TRANSACTIONS}: "
    f"tpc cluster level --raise {FIRST_WITH_TRANSACTIONS}"
)
BROKER_ENDPOINTS = 1
SOFTWARE_VERSION = 3
"""From here on ApiVersions names the client's software."""
NO_BROKER = -1
CORRELATION_ID_BYTES = 4
TOPIC_IDS_VERSION = 12
CREATION_ASKED_VERSION = 4
NODES_TAG = 10_000
LOADS_TAG = 10_001
RELEASES_TAG = 10_002
CLEANING_TAG = 10_003
"""With the name of a topic."""
"""From here on tags are nobody's: Kafka's own stay below."""
TELLS_NOTHING = frozenset({int(ErrorCode.UNKNOWN_TOPIC_ID), int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)})
"""Neither the name of a topic nor what may be done to it is known then, or is to be."""


def handle_api_versions(
    core: Core, request: Request, message: messages.ApiVersionsRequest
) -> messages.ApiVersionsResponse | EncodedResponse:
    """Never refused: an unknown version is answered in version 0 with error 35 and the versions of this API."""
    if not api(ApiKey.API_VERSIONS).is_valid(request.api_version):
        response = messages.ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        response.api_keys.append(_api_version(ApiKey.API_VERSIONS))
        return response
    fault = _fault_of_client(message, request.api_version) or _misrouted(core, request, message)
    if fault:
        return messages.ApiVersionsResponse(error_code=int(fault))
    response = messages.ApiVersionsResponse(api_keys=[_api_version(key) for key in core.offered_apis])
    tell_features(core, response, request.api_version)
    core.dispatcher.told_versions(request.connection)
    if request.api_version < SOFTWARE_VERSION:
        return _for_everybody(core, request, response)
    software = (message.client_software_name, message.client_software_version)
    return _for_everybody(core, request, response, core.client_telemetry.software.mark(software))


def _fault_of_client(message: messages.ApiVersionsRequest, version: int) -> ErrorCode:
    software = (message.client_software_name, message.client_software_version)
    if version >= SOFTWARE_VERSION and not all(map(SOFTWARE_TEXT.fullmatch, software)):
        return ErrorCode.INVALID_REQUEST
    if (message.cluster_id is None) != (message.node_id == NO_BROKER):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _misrouted(core: Core, request: Request, message: messages.ApiVersionsRequest) -> ErrorCode:
    """Whether the client means another cluster, or a broker that is not here (KIP-1242): it is to begin anew with the
    addresses that it was given.
    """
    if message.cluster_id is None:
        return ErrorCode.NONE
    is_this_cluster = message.cluster_id == core.view.image.cluster_id or not core.view.image.cluster_id
    if is_this_cluster and core.view.is_meant(request.listener, core.core_id, message.node_id):
        return ErrorCode.NONE
    return ErrorCode.REBOOTSTRAP_REQUIRED


def _for_everybody(core: Core, request: Request, response: Message, mark: int = NO_MARK) -> EncodedResponse:
    """Encoded once: whoever asks the same listener the same is answered in C, as long as it holds."""
    body = b"".join(codec(api(request.api_key).response_name, request.api_version).encode_parts(response))
    header = encode_response_header(request.api_key, request.api_version, request.correlation_id)
    core.plane.prepare_answer(request, header[CORRELATION_ID_BYTES:] + body, mark)
    return EncodedResponse(body)


def _api_version(key: ApiKey) -> messages.ApiVersionsResponse.ApiVersion:
    first, last = advertised_versions(key)
    return messages.ApiVersionsResponse.ApiVersion(api_key=int(key), min_version=first, max_version=last)


def handle_metadata(
    core: Core, request: Request, message: messages.MetadataRequest
) -> messages.MetadataResponse | EncodedResponse | Awaitable[messages.MetadataResponse]:
    """The answer, or where a topic is to be made first, the wait for it."""
    if request.api_version < TOPIC_IDS_VERSION and any(
        topic.name is None or uuid.UUID(bytes=bytes(topic.topic_id)) != NO_TOPIC_ID for topic in message.topics or ()
    ):
        return _ids_too_early(message.topics or [])
    if message.topics is None or (request.api_version == 0 and not message.topics):
        image = core.view.image
        response = _begin_metadata(core, request)
        in_order = [image.topics[topic_id] for _name, topic_id in sorted(image.ids.items())]
        response.topics = [
            _topic_metadata(core, request, topic)
            for topic in in_order
            if _may_describe(core, request, topic.name, is_told=False)
        ]
        response = _completed(core, request, response, message)
        return _for_everybody(core, request, response) if core.access.authorizer is None else response
    asked = _unique(message.topics)
    creates = core.settings.auto_create_topics_enable and (
        message.allow_auto_topic_creation or request.api_version < CREATION_ASKED_VERSION
    )
    if creates and any(_is_to_be_made(core, request, topic) for topic in asked):
        return _make_and_tell(core, request, message, asked)
    return _told(core, request, message, asked, {})


def _may_describe(core: Core, request: Request, name: str, *, is_told: bool = True) -> bool:
    return core.access.allows_topic(request, Operation.DESCRIBE, name, is_told=is_told)


def _begin_metadata(core: Core, request: Request) -> messages.MetadataResponse:
    return messages.MetadataResponse(
        cluster_id=core.view.image.cluster_id,
        controller_id=core.view.controller_id(request.listener),
        brokers=_brokers(core.view.endpoints(request.listener)),
    )


def _brokers(endpoints: Iterable[Endpoint]) -> list[messages.MetadataResponse.MetadataResponseBroker]:
    return [
        messages.MetadataResponse.MetadataResponseBroker(
            node_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
        )
        for endpoint in endpoints
    ]


def _is_to_be_made(core: Core, request: Request, asked: AskedTopic) -> bool:
    """Who may not see whether a topic is there makes none."""
    if asked.name is None or uuid.UUID(bytes=bytes(asked.topic_id)) != NO_TOPIC_ID:
        return False
    return _may_describe(core, request, asked.name, is_told=False) and core.view.topic(asked.name) is None


async def _make_and_tell(
    core: Core, request: Request, message: messages.MetadataRequest, asked: list[AskedTopic]
) -> messages.MetadataResponse:
    names = [topic.name for topic in asked if topic.name is not None and _is_to_be_made(core, request, topic)]
    errors: dict[str | None, ErrorCode] = {}
    for name in names:
        is_allowed = may_create(core, request, name)
        errors[name] = (
            await core.create_topic_on_first_use(name) if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    return _told(core, request, message, asked, errors)


def _told(
    core: Core,
    request: Request,
    message: messages.MetadataRequest,
    asked: list[AskedTopic],
    errors: dict[str | None, ErrorCode],
) -> messages.MetadataResponse:
    """`errors`: of those that were to be made."""
    response = _begin_metadata(core, request)
    seen = set()
    for one in asked:
        topic = _asked_topic(core, request, one, errors.get(one.name))
        if topic.error_code or topic.topic_id not in seen:
            response.topics.append(topic)  # once, also when it is named by its name and by its id
            seen.add(topic.topic_id)
    return _completed(core, request, response, message)


def _completed(
    core: Core, request: Request, response: messages.MetadataResponse, message: messages.MetadataRequest
) -> messages.MetadataResponse:
    """With the brokers to ask by what is told of topics, and with what the client may do, where it asked."""
    if response.topics and core.view.is_cut_off:
        leaders = {part.leader_id for topic in response.topics for part in topic.partitions}
        response.brokers = _brokers(core.view.to_be_asked(request.listener, leaders))
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _on_cluster(core, request)
    if message.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.error_code not in TELLS_NOTHING:
                topic.topic_authorized_operations = core.access.bits(
                    request, Resource.TOPIC, topic.name or "", ON_TOPIC
                )
    return response


def _on_cluster(core: Core, request: Request) -> int:
    """What may be done is told to who may see the cluster; nothing to others."""
    access = core.access
    if not access.allows_on_cluster(request, Operation.DESCRIBE, is_told=False):
        return 0
    return access.bits(request, Resource.CLUSTER, CLUSTER_NAME, ON_CLUSTER)


def _ids_too_early(topics: list[AskedTopic]) -> messages.MetadataResponse:
    """Versions 10 and 11 carry topic ids that may not be used yet."""
    return messages.MetadataResponse(
        controller_id=-1,
        cluster_authorized_operations=NOT_ASKED_FOR,
        topics=[
            _topic_error(ErrorCode.INVALID_REQUEST, topic.name or "", uuid.UUID(bytes=bytes(topic.topic_id)))
            for topic in topics
        ],
    )


def _unique(topics: list[AskedTopic]) -> list[AskedTopic]:
    return list({(topic.name, bytes(topic.topic_id)): topic for topic in topics}.values())


def _asked_topic(core: Core, request: Request, asked: AskedTopic, making: ErrorCode | None) -> ToldTopic:
    """`making`: what came of it when the topic was to be made."""
    topic_id = uuid.UUID(bytes=bytes(asked.topic_id))
    if topic_id != NO_TOPIC_ID:
        return _topic_of_id(core, request, topic_id)
    if asked.name is None:
        return _topic_error(ErrorCode.INVALID_TOPIC_EXCEPTION, None, NO_TOPIC_ID)
    if not _may_describe(core, request, asked.name):
        return _topic_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.name, NO_TOPIC_ID)
    topic = core.view.topic(asked.name)
    if topic is not None and not making:
        return _topic_metadata(core, request, topic)
    if making is None:
        error = core.check_topic_name(asked.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _topic_error(error, asked.name, NO_TOPIC_ID)
    return _topic_error(making or ErrorCode.LEADER_NOT_AVAILABLE, asked.name, NO_TOPIC_ID)


def _topic_of_id(core: Core, request: Request, topic_id: uuid.UUID) -> ToldTopic:
    topic = core.view.topic(topic_id)
    if topic is not None and _may_describe(core, request, topic.name):
        return _topic_metadata(core, request, topic)
    error = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return _topic_error(error, None if request.api_version >= TOPIC_IDS_VERSION else "", topic_id)


def _topic_error(error: ErrorCode, name: str | None, topic_id: uuid.UUID) -> ToldTopic:
    return messages.MetadataResponse.MetadataResponseTopic(
        error_code=int(error),
        name=name,
        topic_id=topic_id.bytes,
        is_internal=name in INTERNAL_TOPICS and error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        topic_authorized_operations=NOT_ASKED_FOR,
    )


def _topic_metadata(core: Core, request: Request, topic: TopicImage) -> ToldTopic:
    result = messages.MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        topic_authorized_operations=NOT_ASKED_FOR,
    )
    result.partitions = list(core.told.of_topic(request.listener, topic))
    return result


def handle_describe_cluster(
    core: Core, request: Request, message: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse | EncodedResponse | Awaitable[EncodedResponse]:
    if request.api_version >= 1 and message.endpoint_type != BROKER_ENDPOINTS:
        supported = message.endpoint_type == 2
        return messages.DescribeClusterResponse(
            error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE if supported else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER"
            if supported
            else f"Unsupported endpoint type {message.endpoint_type}",
            cluster_authorized_operations=NOT_ASKED_FOR,
        )
    response = messages.DescribeClusterResponse(
        endpoint_type=BROKER_ENDPOINTS,
        cluster_id=core.view.image.cluster_id,
        controller_id=core.view.controller_id(request.listener),
        cluster_authorized_operations=(
            _on_cluster(core, request) if message.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
        brokers=[
            messages.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
            )
            for endpoint in core.view.endpoints(request.listener)
        ],
    )
    if not core.access.allows_on_cluster(request, Operation.DESCRIBE, is_told=False):
        return response
    asked = request_tags(request, message)
    if LOADS_TAG in asked:
        return _with_loads(core, request, response)
    if CLEANING_TAG in asked:
        return _with_cleaning(core, request, response, asked[CLEANING_TAG])
    if RELEASES_TAG in asked:
        return with_facts(request, response, RELEASES_TAG, _releases(core))
    return _with_nodes(core, request, response) if core.view.image.nodes else response


def _releases(core: Core) -> Payload:
    """What each node runs, by its number: as it was when it started last."""
    nodes = core.view.image.nodes
    found = {str(node): known.version for node, known in nodes.items()} if nodes else {str(core.view.node): __version__}
    return {"releases": found}


async def _with_nodes(core: Core, request: Request, response: Message) -> EncodedResponse:
    """What core 0 knows of the nodes, in a tagged field that other clients pass over (KIP-482)."""
    return with_facts(request, response, NODES_TAG, await core.metadata.node_facts())


async def _with_loads(core: Core, request: Request, response: Message) -> EncodedResponse:
    """What partitions cost the cores of this node, to who asks by a tagged field; null while one is not up."""
    facts: Payload | None
    try:
        facts = await core.loads.facts_of_node()
    except MailboxError:
        facts = None
    return with_facts(request, response, LOADS_TAG, facts)


async def _with_cleaning(core: Core, request: Request, response: Message, topic: bytes) -> EncodedResponse:
    """What is known of the compaction of a topic's partitions on this node; to who may not see it what is told of one
    that is not there.
    """
    name = topic.decode(errors="replace")
    is_seen = core.access.allows_topic(request, Operation.DESCRIBE, name, is_told=False)
    facts = await core.cleaning_facts.of_node(name if is_seen else "")
    return with_facts(request, response, CLEANING_TAG, facts)


def _no_transactions(core: Core, request: Request) -> ErrorCode:
    """The code for which the client gives up at once and shows the text beside it.

    Java's, which asks in version 3 or later, shows it for any code that it does not expect; its words for 53 are that
    it is not authorised. librdkafka goes up to version 2, gives up after no code but 53 and 31, and shows the text.
    kafkajs gives up after any code and shows none of it.
    """
    note_transactions(core, request)
    if request.api_version >= TEXT_IS_SHOWN_VERSION:
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def handle_find_coordinator(
    core: Core, request: Request, message: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse:
    if request.api_version >= 4:
        return messages.FindCoordinatorResponse(
            coordinators=[await _coordinator(core, request, message.key_type, key) for key in message.coordinator_keys]
        )
    found = await _coordinator(core, request, message.key_type, message.key)
    return messages.FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode(found.error_code).name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _fault_to_find(core: Core, request: Request, key_type: int, key: str) -> ErrorCode:
    if key_type == GROUP_KEY and not core.access.allows_group(request, Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION_KEY and not core.access.allows_transaction(request, Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _coordinator(
    core: Core, request: Request, key_type: int, key: str
) -> messages.FindCoordinatorResponse.Coordinator:
    fault = _fault_to_find(core, request, key_type, key)
    if fault:
        kind = messages.FindCoordinatorResponse.Coordinator
        return kind(key=key, node_id=-1, host="", port=-1, error_code=int(fault), error_message="")
    error, why = ErrorCode.NONE, ""
    name = TRANSACTION_STATE_TOPIC if key_type == TRANSACTION_KEY else CONSUMER_OFFSETS_TOPIC
    if key_type == TRANSACTION_KEY and not core.transactions.is_there:
        error, why = _no_transactions(core, request), NO_TRANSACTIONS
    elif key_type not in (GROUP_KEY, TRANSACTION_KEY):
        error = ErrorCode.INVALID_REQUEST
    elif core.view.topic(name) is None:
        error = await core.create_coordinators_topic(name)
    topic = core.view.topic(name)
    if not error and topic is not None:
        index = PartitionIndex(coordinator_partition(key, topic.partitions_count))
        place, epoch = core.view.place_of(topic, index), core.view.leader_epoch(TopicPartition(topic.topic_id, index))
        endpoint = core.view.endpoint_at(request.listener, place)
        if epoch is not None and endpoint is not None and core.is_available(place):
            return messages.FindCoordinatorResponse.Coordinator(
                key=key, node_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port
            )
    error = error or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return messages.FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=int(error), error_message=why or error.name
    )
