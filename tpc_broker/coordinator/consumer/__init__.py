"""Consumer groups of KIP-848, beside the classic ones.

Theory of operation
-------------------
The coordinator, not a member, divides the partitions. Whatever changes what is to be divided (a member that comes, goes
or subscribes to something else, a topic that changes) raises the *group epoch*. From it an assignor makes a *target
assignment*, whose epoch is then that of the group. Each member comes to its part of the target by heartbeats, at its
own pace: it first gives back what it is to lose, then its *member epoch* becomes that of the target, and it is given
what no other member has any more. So a partition never has two owners, and nobody stops for a rebalance.

What is stored is many small records (`records`), of which `group.ConsumerGroup` is the state. It runs ahead of the disk
(see `driven.Machine`): decided records are applied at once, and the answer to whoever asked for it, or sees it, waits
until they are durable.
"""
