"""Several nodes as one broker: the part with sockets, files and clocks. All but `replicas` lives on core 0 of a node.

links       connections to the other nodes, and from them: who proves the secret may ask and tell
membership  who this data directory is (node, incarnation, boots, cluster), `--cluster` checked, SWIM over UDP
metadata    drives `raft` for the cluster's metadata, and keeps what that group has promised on the disk
replicas    drives the replicas of each core, on that core
node        all of it together: found or join (`joining`), then follow the metadata; `counters` tells of it

Each wing uses those above it, `replicas` not `metadata`.

A change of the metadata
------------------------
1. A request comes to any core of any node and goes to its core 0. If that node does not lead the metadata group it goes
   over a link to the *controller*, the node that does, until one has taken it or 15 s are over.
2. The controller decides by its image, one change at a time, and only while all of its log is in that image: a change
   that nobody waits for any more is committed first. An answer without a change waits for a round of the voters, so it
   is never that of a controller that others have replaced.
3. The records are one batch of the group (`metadata_group`): in the voters' files (`voter_file`), durable in a
   majority, committed. Only then is the image another one, in the same turn.
4. Every voter's image follows its commits, and all other nodes pull what is committed. Each core 0 pushes it to its
   cores, which open and close their partitions. The answer leaves when the controller's node has applied the change,
   and the node that was asked has, too.
5. Whoever leads a partition announces its epoch to its node's cores, and core 0 to the other nodes. Of a partition with
   several replicas it announces its place, too: that is elected, and not in the metadata.

A node answers no client before it has the newest image. Membership says which nodes seem to be gone: their brokers are
left out of Metadata, and nothing new is placed there. It fences nobody.
"""
