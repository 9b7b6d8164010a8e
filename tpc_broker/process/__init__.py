"""The processes of a broker: its command, the supervisor, its cores, and how they start, listen, tell and end.

Of what is named here `links`, `mailbox` and `datagrams` are the engine's.

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
"""
