"""Working on a stream's records: batches that are done or given back, handlers side by side, partitions alone.

Purpose
    What a program does with a record may take long, fail, be cancelled, or lose its partition meanwhile. Whatever
    happens, what is committed was done, and what was not done is read again.

Modules
    `fronts`      all of it for one `Stream`
    `batches`     `work`: a batch that leaving a block finishes, and that an error or a cancel gives back
    `for_each`    handlers on single records, as many at once as is said, in order of key, partition or none
    `order_book`  which record may be handled next, and up to where all is done; no I/O
    `policies`    what is done when a handler raises: `Stop`, `Skip`, `Retry`, `dead_letter`; no I/O
    `parts`       each partition as a stream of its own, in a scope that ends behind its revocation
    `one_partition`  one partition of a source as a source, for `for_each` of a part
    `intake`      taking from those partitions that are open
    `failures`    the errors that surface

Invariants: records of one key (or partition, as the order says) are handled one after the other, in the order of the
log. What is committed of a partition lies below everything that is not done.
"""
