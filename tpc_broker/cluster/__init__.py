"""What makes several nodes one broker, as far as it needs no I/O: who may speak, what is said, how a cluster begins.

* `secret`: proofs of the shared secret on links, sealed datagrams, and which of them came before.
* `link_codec`: frames of links: challenges, hellos, requests and answers, in protobuf (`link.proto`).
* `raft_codec`: `raft`'s frames, and the entries of the file of a metadata voter.
* `founding`: when founders found a cluster, and when a node joins one.

Lives on core 0 of each node; `node` drives it. Free of I/O, clocks and chance: bytes, times and random
numbers come in as arguments. What comes from the network is checked for its length before it is parsed, and for every
bound before a value is made of it; whatever is wrong with it is a `LinkDecodeError`.
"""
