"""Commits and committed positions: one attempt each, with every partition's error told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.client.errors import RefusedError
from tpc_broker.client.membership.offsets import commit_answer, commit_request, committed_answer, committed_request
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tpc_broker.client.consumer.ports import GroupIdentity, Position
    from tpc_broker.client.membership.line import Line
    from tpc_broker.client.requests import TopicPartition


async def commit_once(
    line: Line, identity: GroupIdentity, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int]:
    """The partitions that were refused, with their error codes."""
    codes = commit_answer(await line.ask(ApiKey.OFFSET_COMMIT, commit_request(identity, positions)))
    refused = {where: codes[where] for where in positions if codes.get(where)}
    for code in set(refused.values()):
        line.failed(RefusedError(code, ""))
    return refused


async def committed_once(
    line: Line, identity: GroupIdentity, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Position | None]:
    """None where nothing is committed. `RefusedError`, of one partition too."""
    told = committed_answer(await line.ask(ApiKey.OFFSET_FETCH, committed_request(identity, partitions)))
    if told.error_code:
        error = RefusedError(told.error_code, "")
        line.failed(error)
        raise error
    for where, code in told.errors.items():
        raise RefusedError(code, str(where))
    return {where: told.positions.get(where) for where in partitions}
