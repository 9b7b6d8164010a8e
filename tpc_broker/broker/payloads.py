"""What cores and nodes tell each other by name: JSON and some bytes. Of a method's JSON its two ends know the shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tpc_broker.model import CoreId

Payload = dict[str, Any]
"""A JSON object."""
Row = list[Any]
"""A JSON array that stands for a tuple."""
Answer = tuple[Payload, Sequence[bytes]]

MailboxHandler = Callable[[CoreId, Payload, list[bytes]], Awaitable[Answer]]
"""Of a method that other cores call: who calls, and with what."""
NodeHandler = Callable[[Payload, list[bytes]], Awaitable[Answer]]
