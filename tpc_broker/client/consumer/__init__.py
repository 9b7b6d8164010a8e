"""Reading topics: fetching, positions, and the streams that a user sees.

Modules
    `ports`       how membership, reader and fronts see each other
    `starts`      where reading begins, as a program says it
    `rows`        records cut out of batches in C
    `decoding`    one partition's part of an answer, read piece by piece; no I/O
    `sessions`    fetch sessions (KIP-227); no I/O
    `partitions`  one partition: positions, what lies ready, what is handed out; no I/O
    `frames`      memory of answers; no I/O
    `stock`       all partitions of a reader, shares of memory, whose turn it is; no I/O
    `fetching`    drives a stock: leaders, offsets, one fetch in flight to each broker
    `bells`       waking a task
    `reader`      `Reader` and `Source` of `ports`
    `stream`      what a user sees
    `options`     what `Client.read` is told

Invariants: each record of a partition is handed out in order, and once, unless somebody gives back or seeks; what is
cancelled takes nothing; nothing is finished before the next item is asked for; what is fetched and not handed out is
bounded by ``memory``.
"""
