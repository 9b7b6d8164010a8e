"""A FastStream broker on `tpc_broker.client`: handlers of topics as decorated functions, with records that are finished
one by one.

Purpose
    ``pip install tpc-broker[faststream]``; FastStream runs on asyncio::

        from faststream import FastStream
        from tpc_broker.faststream import TpcBroker

        broker = TpcBroker("localhost:9092")
        app = FastStream(broker)

        @broker.subscriber("orders", group="billing", concurrency=16, dead_letter="orders.dlq")
        @broker.publisher("invoices")
        async def bill(order: Order) -> Invoice: ...

What acknowledging means
    A record is finished when it is acknowledged, and what is committed lies below everything that is not finished:
    handlers may run beside each other and end in any order. So a slow handler keeps nobody's commit wrong, and what was
    under way in a crash is handled again.

    ack      finished
    nack     handled again here, after a pause that grows; records of the same key (by `order`) wait behind it
    reject   to `dead_letter` if there is one, and else finished

    By `ack_policy`: ACK (the default) finishes a record whatever its handler does, NACK_ON_ERROR and REJECT_ON_ERROR
    say what an exception means, MANUAL waits until the message is acknowledged, perhaps by another task; ACK_FIRST
    commits before the handler is called: at most once.

Modules
    `broker`       `TpcBroker`: the client's life, publishing
    `registrator`  `subscriber` and `publisher`, shared with `TpcRouter` (`router`)
    `subscriber`   a stream of the client, handed to a handler
    `batches`      likewise, in lists
    `publisher`    commands, and what sends them
    `replies`      what answers requests, by correlation id
    `message`      a record as FastStream has it, and what became of it
    `annotations`  what handlers ask for by types: `TpcMessage` of this package is one of them
    `failures`     how a handler's word on a record reaches the client's stream
    `config`       settings that the others share
    `testing`      `TestTpcBroker`: handlers called at once, or by a broker in memory

FastStream's own modules for brokers (`faststream._internal`) have no promise of stability, so the extra is pinned to
one minor version.
"""

from faststream import AckPolicy

from tpc_broker.faststream.annotations import TpcMessage
from tpc_broker.faststream.broker import TpcBroker
from tpc_broker.faststream.publisher import TpcResponse
from tpc_broker.faststream.router import TpcRouter
from tpc_broker.faststream.testing import TestTpcBroker

__all__ = ["AckPolicy", "TestTpcBroker", "TpcBroker", "TpcMessage", "TpcResponse", "TpcRouter"]
