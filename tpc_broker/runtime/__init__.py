"""What touches the kernel: the ring of a core, trio on it, disk and sockets.

One core process is one thread with one ring. :func:`tpc_broker.runtime.trio_ring.run` starts trio on it, and
:func:`tpc_broker.runtime.trio_ring.current_ring` gives it to the code that runs there. Everything here is to be
called from that thread, except where a docstring says otherwise.

Processes
---------
The supervisor (`supervisor`) never touches the data. Each core (`core_start`, `core`) is a "broker" in Metadata, with
id ``node * 1024 + core`` and an address of its own on each listener: port ``PORT + core``, or one port and an IP
address a core. Requests that come to the wrong core get NOT_LEADER_OR_FOLLOWER; group and transaction requests find
their coordinator the same way. On a listener of mode ``shared`` the node is one broker: the cores' sockets share a
port, the kernel's program places connections (`listening`, `tpc_broker.ebpf`), and what belongs to another core goes
there: Produce and Fetch over links from C to C (`links`), the rest by mailboxes. Datagrams have a port of their own
(`datagrams`, `datagram_port`).

Log compaction runs in processes beside the cores, which the supervisor starts when a core asks (`cleaner`).

Mailboxes (`mailbox`) have credits: only so many calls are under way between two cores, and a full one is an error at
once and never a wait, so that two cores cannot wait for each other in a circle.

A turn
------
Completions that C handles alone never reach Python. After 10 ms or 8,192 of them the wait returns all the same;
deadlines, events and the wake-up end it at once. While Python has its turn, C is served between the steps of tasks and
in the middle of long ones, so what C answers alone waits for a step and not for the turn.

Each task belongs to a queue (`tpc_broker.task_queue`), and with it all that it starts. A turn runs tasks of the queue
that is furthest behind its share, for about a slice of 1 ms; what C does is charged to ``clients``, and C too waits
when it is ahead (`task_queues`).

Threads beside the core's never touch its state: one watches how long Python's steps take (`native/io/stall.c`), one
makes memory resident for a cache that grows (`native/io/prefault.c`), one writes the log's lines (`logs`), and trio's
helper threads make the blocking calls that the ring has no operation for (`disk`).
"""
