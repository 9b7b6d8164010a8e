"""ElectLeaders: the preferred replica of a partition is to lead it. An unclean election never happens.

Asked where the metadata are led, because every node has told that one who leads; who leads a partition is asked to hand
it over, and the answer waits until it has been seen to, or for as long as the client does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.refusals import ask_again
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.reassignments import Check
    from tpc_broker.metadata.image import TopicImage

PREFERRED: Final = 0
UNCLEAN: Final = 1
WAIT_S_MAX: Final = 10.0
ASK_EVERY_S: Final = 0.5
LOOK_S: Final = 0.02
NO_UNCLEAN: Final = (
    "A replica that lacks acknowledged records never leads, since they would be lost: the partition is led as soon as "
    "a majority of its replicas is back."
)

Results = dict[tuple[str, int], tuple[ErrorCode, str | None]]


async def handle_elect_leaders(
    core: Core, request: Request, message: messages.ElectLeadersRequest
) -> messages.ElectLeadersResponse:
    kind = message.election_type if request.api_version else PREFERRED
    results: Results = {}
    if kind not in {PREFERRED, UNCLEAN}:
        refused = ErrorCode.INVALID_REQUEST, f"{kind} is no kind of election: 0 is preferred, 1 unclean."
        response = _response(dict.fromkeys(_asked(core, message), refused))
        response.error_code = int(ErrorCode.NONE if message.topic_partitions == [] else ErrorCode.INVALID_REQUEST)
        return response
    waiting: dict[tuple[str, int], TopicImage] = {}
    for name, index in _asked(core, message):
        topic = core.view.topic(name)
        if topic is None or not 0 <= index < topic.partitions_count:
            results[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as " + name
            continue
        found = _at_once(core, topic, index, kind)
        if found is None:
            waiting[name, index] = topic
        else:
            results[name, index] = found
    check = partial(ask_again, core, request, Operation.ALTER)
    await _elect(core, waiting, results, min(message.timeout_ms / 1000, WAIT_S_MAX), check)
    if message.topic_partitions is None:
        results = {each: found for each, found in results.items() if found[0] != ErrorCode.ELECTION_NOT_NEEDED}
    return _response(results)


def _asked(core: Core, message: messages.ElectLeadersRequest) -> Iterator[tuple[str, int]]:
    if message.topic_partitions is None:
        for topic in core.view.image.topics.values():
            yield from ((topic.name, index) for index in range(topic.partitions_count))
        return
    for asked in message.topic_partitions:
        yield from ((asked.topic, index) for index in asked.partitions)


def _at_once(core: Core, topic: TopicImage, index: int, kind: int) -> tuple[ErrorCode, str | None] | None:
    """What can be said without an election; None: one is to be held."""
    view = core.view
    key = TopicPartition(topic.topic_id, PartitionIndex(index))
    is_led = view.leader_epoch(key) is not None and view.is_present(view.place_of(topic, index).node)
    if kind == UNCLEAN:
        if is_led:
            return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_UNCLEAN
    preferred = topic.leader_place(index, view.node)
    if is_led and view.place_of(topic, index) == preferred:
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if not is_led or not view.is_present(preferred.node) or preferred not in view.in_sync(topic, index):
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return None


async def _elect(
    core: Core, waiting: dict[tuple[str, int], TopicImage], results: Results, timeout_s: float, check: Check
) -> None:
    """`check`: before leaders are asked, each time."""
    view, on_demand = core.view, core.leadership_on_demand
    give_up_s, ask_s = trio.current_time() + timeout_s, 0.0
    while waiting:
        for (name, index), topic in list(waiting.items()):
            if view.place_of(topic, index) == topic.leader_place(index, view.node):
                results[name, index] = ErrorCode.NONE, None
                del waiting[name, index]
        if not waiting:
            return
        if trio.current_time() >= give_up_s:
            break
        if trio.current_time() >= ask_s and on_demand is not None:
            check(view.image)
            ask_s = trio.current_time() + ASK_EVERY_S
            on_demand.ask({
                TopicPartition(topic.topic_id, PartitionIndex(index)): view.place_of(topic, index)
                for (_name, index), topic in waiting.items()
            })  # fmt: skip
        await trio.sleep(LOOK_S)
    for each in waiting:
        results[each] = ErrorCode.REQUEST_TIMED_OUT, "The leadership was not handed over in time; it may be yet."


def _response(results: Results) -> messages.ElectLeadersResponse:
    response = messages.ElectLeadersResponse
    by_topic: dict[str, list[messages.ElectLeadersResponse.PartitionResult]] = {}
    for (name, index), (code, text) in results.items():
        by_topic.setdefault(name, []).append(
            response.PartitionResult(partition_id=index, error_code=int(code), error_message=text)
        )
    return response(
        replica_election_results=[
            response.ReplicaElectionResult(topic=name, partition_result=found) for name, found in by_topic.items()
        ]
    )
