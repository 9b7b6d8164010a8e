"""The wire side of the asynchronous client: connections on anyio, and who leads what.

Modules
    `wires`     bytes to and from a broker: a non-blocking socket, TLS over it, or a broker in memory
    `channel`   one connection: any number of requests in flight, answers by call or by callback
    `fleet`     metadata, channels to leaders and coordinators, and trying again until a deadline
    `tasks`     background tasks whose end raises what the caller's block raised, not a group around it

`conversation`, `requests`, `sasl`, `security` and `errors` of `tpc_broker.client` are shared with the synchronous core.
"""
