"""A broker in memory, for tests of programs that use `tpc_broker.client`.

Purpose
    `MemoryBroker` has the broker's own code for everything that is decided in Python, over ports in memory: started in
    a millisecond or two, on trio and on asyncio, without files, ports or io_uring. The project's own tests of that code
    use the same cores (`tests/support/memory_node.py`).

Modules
    `memory_broker`  `MemoryBroker`: start, addresses, connections, end
    `hosting`        the broker's tasks beside a program's own, on whichever loop
    `wires`          a client's end of a connection
    `connections`    the broker's end, and requests
    `node`           the cores of a node, and who says that they are up
    `plane`          the data plane: appends, durability, what C does in a real one
    `fetches`        fetches that wait, and their sessions
    `guards`         what batches of idempotent producers and of transactions are judged by
    `validation`     what clients' batches have to be
    `logs`           one partition: a list of batches
    `storage`        the partitions of a core
    `mailboxes`      calls between cores
    `surroundings`   clock, chance, disk

Invariants: nothing here reads a clock but trio's and, once at its start, the wall clock; chance has a seed. `plane` and
`storage` keep the promises of the ports in `broker/ports.py`, but for replicas on other nodes.
"""

from tpc_broker.testing.memory_broker import Address, MemoryBroker

__all__ = ["Address", "MemoryBroker"]
