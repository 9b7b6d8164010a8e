"""Membership of the cluster: who is there, who is gone, and what each node tells of itself.

SWIM with suspicion, incarnations and piggybacked dissemination, Lifeguard's local health, and a periodic exchange of
the whole state. Lives on core 0 of each node.

* `machine.Swim` is the protocol: datagrams and times in, datagrams, exchanges and events out. Its docstring has the
  theory and the driver's duties.
* `model` has the values, `members` the table and the order of probing, `rumours` what is still to be told, `lifeguard`
  local health and the time-outs of suspicions.
* `codec.SwimCodec` has the bytes: protobuf, one datagram of 1,400 bytes; frames of a stream for the whole state.

Invariants: a member's entry only rises in the order of claims (`model`); memory is bounded by the table of members; no
clock, no chance and no I/O but what is passed in. Verdicts are hints and never fence anybody. Imports the foundation.
"""
