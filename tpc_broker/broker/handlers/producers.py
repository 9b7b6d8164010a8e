"""InitProducerId. With a transactional id it is refused, fatally, where there are no transactions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.handlers.transactions import note_transactions
from tpc_broker.coordinator.transactions.messages import InitProducerIdRequest, ProducerResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

log = logging.getLogger(__name__)

NO_PRODUCER = -1
FENCED_VERSION: Final = 4
"""From here on PRODUCER_FENCED is known."""


async def handle_init_producer_id(
    core: Core, request: Request, message: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    refusal = _refusal(core, request, message.transactional_id)
    if refusal:
        return messages.InitProducerIdResponse(error_code=int(refusal), producer_id=NO_PRODUCER, producer_epoch=-1)
    if message.transactional_id and core.transactions.is_there:
        return await _by_coordinator(core, request, message, message.transactional_id)
    error = _fault(core, request, message)
    if error:
        return messages.InitProducerIdResponse(error_code=int(error), producer_id=NO_PRODUCER, producer_epoch=-1)
    producer_id = await core.producer_ids.take()
    if producer_id is None:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return messages.InitProducerIdResponse(error_code=int(error), producer_id=NO_PRODUCER, producer_epoch=-1)
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(core: Core, request: Request, transactional_id: str | None) -> ErrorCode:
    """Who may write something may do it idempotently."""
    access = core.access
    if transactional_id is not None:
        is_allowed = access.allows_transaction(request, Operation.WRITE, transactional_id)
        return ErrorCode.NONE if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    may_anywhere = access.allows_on_cluster(request, Operation.IDEMPOTENT_WRITE, is_told=False)
    is_allowed = may_anywhere or access.allows_some(request, Operation.WRITE, Resource.TOPIC)
    return ErrorCode.NONE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _fault(core: Core, request: Request, message: messages.InitProducerIdRequest) -> ErrorCode:
    if message.transactional_id is None:
        if (message.producer_id == NO_PRODUCER) != (message.producer_epoch == -1):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    note_transactions(core, request)
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def _by_coordinator(
    core: Core, request: Request, message: messages.InitProducerIdRequest, transactional_id: str
) -> messages.InitProducerIdResponse:
    asked = InitProducerIdRequest(
        transactional_id=transactional_id,
        timeout_ms=message.transaction_timeout_ms,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        knows_fenced=request.api_version >= FENCED_VERSION,
    )
    await core.producer_ids.have_some()
    found = await core.transactions.answer(
        transactional_id,
        ProducerResponse,
        lambda machine, token, now_ms: machine.init_producer_id(asked, token, now_ms),
    )
    if isinstance(found, ErrorCode):
        found = ProducerResponse(found)
    if found.error_message is not None:
        core.log_limiter.say(log, "producers refused", transactional_id, f"{transactional_id!r}: {found.error_message}")
    return messages.InitProducerIdResponse(
        error_code=int(found.error_code), producer_id=found.producer_id, producer_epoch=found.producer_epoch
    )
