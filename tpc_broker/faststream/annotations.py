"""What handlers ask for by the types of their parameters."""

from __future__ import annotations

from typing import Annotated

from faststream import Context

from tpc_broker.faststream import broker, message

TpcMessage = Annotated[message.TpcMessage, Context("message")]
"""The message that is handled: ``async def handle(order: Order, message: TpcMessage)``."""
TpcBroker = Annotated[broker.TpcBroker, Context("broker")]
