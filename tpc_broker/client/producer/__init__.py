"""The producing side of the asynchronous client.

Modules
    `settings`      what a producer may be told
    `batch`         records on their way in one batch: columns first, bytes later; what became of each
    `slip`          what `post` gives: a receipt for one record
    `lane`          one partition's batches as a machine without I/O: order, sequences, repetitions, fates
    `budget`        the bytes that a client may hold, and who waits for room; no I/O either
    `partitioning`  which partition a record goes to
    `session`       whose batches they are: an idempotent producer, or one of a transaction
    `attempt`       requests with batches: how they are written, how their answers are read
    `sender`        links lanes to the brokers' channels
    `front`         `Producer`: send, post, send_all, flush
    `sending`       the same as a client and a transaction offer it

Invariants: batches of a partition reach its log in the order in which they were filled, and once, whatever is lost on
the way, as long as the producer is idempotent. A batch that may be in a log is never sent under other sequence numbers.
"""
