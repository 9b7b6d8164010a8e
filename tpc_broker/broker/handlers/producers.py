"""InitProducerId for idempotent producers. Transactions are refused, fatally, until they are offered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.broker.handlers.transactions import note_transactions
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

NO_PRODUCER = -1


async def handle_init_producer_id(
    core: Core, request: Request, message: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    error = _fault(core, request, message)
    if error:
        return messages.InitProducerIdResponse(error_code=int(error), producer_id=NO_PRODUCER, producer_epoch=-1)
    producer_id = await core.producer_ids.take()
    if producer_id is None:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return messages.InitProducerIdResponse(error_code=int(error), producer_id=NO_PRODUCER, producer_epoch=-1)
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _fault(core: Core, request: Request, message: messages.InitProducerIdRequest) -> ErrorCode:
    if message.transactional_id is None:
        if (message.producer_id == NO_PRODUCER) != (message.producer_epoch == -1):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    note_transactions(core, request)
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
