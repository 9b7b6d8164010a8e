"""The wire side of the asynchronous client: connections on anyio, and who leads what.

Modules
    `settings`      what a client is told when it is made, checked at once
    `wires`         bytes to and from a broker: a non-blocking socket, or a broker in memory
    `trio_wire`, `asyncio_wire`, `loops`  the same as each loop has it cheapest
    `tls`           TLS over another wire
    `frames`        cuts what is received into answers; no I/O
    `channel`       one connection: any number of requests in flight, answers by call or by callback
    `throttling`    which answers mean that the client is to be silent; no I/O
    `directory`     metadata: what is known, what is doubted, one question at a time
    `flights`       what several tasks want is done once
    `fleet`         channels to leaders and coordinators, and trying again until a deadline
    `tasks`         background tasks whose end raises what the caller's block raised, not a group around it

`conversation`, `introduction`, `requests`, `sasl`, `security` and `errors` of `tpc_broker.client` are shared with the
synchronous core.

Invariants: a cancelled wait leaves every connection whole. A request is answered once: by its answer, or by the error
that ended its channel. Nothing is sent before TLS and login are done, where they are asked for.
"""
