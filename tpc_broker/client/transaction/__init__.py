"""Transactions of the asynchronous client: `client.transaction`.

Modules
    `front`         what stands in the ``async with``: sending, reading done, commit or abort
    `owner`         who writes under a transactional id, from one transaction to the next
    `coordination`  what the coordinator of the id and those of groups are asked, and what their refusals mean
    `reading`       batches that are done within a transaction, and the streams that they came from

Theory of operation. An id has an *owner* in a client: the producer id and epoch that the coordinator gave. The first
transaction asks for them (InitProducerId), which aborts what another client left open and fences it. A later one goes
on with the identity that the end before it gave: with `transaction.version` 2 (KIP-890) each end gives a new epoch, so
that nothing late of one transaction can get into the next; with version 1 it stays the same after a commit, and after
an abort a new one is asked for. What makes an owner's identity doubtful (no answer, a refusal that means "another epoch
is the last") lets the next transaction ask anew, from the identity that was had: the coordinator refuses that when
another client has taken the id over, and only then `FencedError` is raised.

An end is asked for until its answer is known: asked twice, the coordinator gives the same answer. From the moment when
a commit may have left nothing interrupts that but the deadline, so that a cancelled block is committed or aborted as a
whole, and `Transaction.outcome` says which.
"""
