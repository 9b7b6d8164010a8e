"""The files of one core: journal, segments, checkpoints and their recovery, behind the data plane.

`JournalledStorage` (`journalled_storage`) is the face that a core's broker uses. It sees the world through `ports`.

segments  one partition's log: its files, and what is done with them
recovery  checkpoints, what a start makes of them, and the partitions that a core has; repair
upkeep    write-behind, the journal's and the segments' space, retention, deletion, compaction, mending
replicas  terms and votes, what is shipped to other replicas, and what comes from them

Each wing uses those above it, and nothing of what puts them together: `journalled_storage`, `core_moves` between cores,
`drain` at the end.

A start reads the newer sound superblock and the checkpoint that it names, cuts each partition's segments at their
checkpointed position (what was written behind is not believed), and replays the journal from the checkpoint's cursor.
What is appended anyway is not cut before: it overwrites what was written behind, and only what is left behind its end
is cut. Batches that were written in place are checked where they lie. Sealed segments are opened without reading them;
files of many partitions are opened and written by few jobs (`recovery.replayed_runs`), and their new epochs wait for
one commit. A partition whose files cannot be believed is offline with its reason, and the others serve. When the number
of cores has changed, all journals are recovered first and the partitions are handed over.
"""
