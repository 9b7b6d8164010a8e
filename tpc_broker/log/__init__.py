"""The log as bytes and decisions: formats, indexes, producer state, journal, checkpoint, recovery planning.

Purpose
    Everything about stored logs that needs no waiting: what the files contain, which bytes are believed after a
    crash, when a segment rolls, what retention may remove. Nothing here opens a file or reads a clock; bytes, sizes
    and times come in as arguments, plans and bytes go out. `tpc_broker.storage` carries the plans out.

Where durability comes from
    An acknowledged record is in the journal of its core. The segment files are written behind: for them only what a
    checkpoint has named is believed. The order is: segment data synced, then the checkpoint that names it, then the
    superblock that lets the journal's replay begin later, then the journal blocks are used again. A crash between any
    two of these leaves an older checkpoint with a longer journal, which is the same log.

Modules
    `batch`           headers of record batches, walking over them, control records
    `files`           names of files and folders, the small text files
    `indexes`         .index, .timeindex, .txnindex
    `segment`         index upkeep of one segment, when to roll, what retention removes
    `state`           what a log's batches have made of it, in one encoding; its two halves:
    `producer_state`  idempotent producers, transactions, the .snapshot file
    `epochs`          where each leader epoch starts
    `journal`         superblocks, entries, the scan that tells a torn tail from damage
    `checkpoint`      the checkpoint file of a core
    `recovery`        checkpoint + segments + journal entries → what to do with each partition
    `seals`           the .seal of a cleaned segment; `folder_view`: which files count while one takes its place
    `cleaning_job`    what a cleaner is asked and says; `cleaning`: what it decides; `cleaned_segment`: what it makes

Used on every core, and by tools that read a data folder without a broker.
"""
