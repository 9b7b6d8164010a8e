"""Cleaning segments: what runs in a node's cleaner processes, without a ring, a journal or a thread.

cleaning_run  one job (`log.cleaning_job`), with blocking calls: read the segments, write cleaned ones beside them
codecs        unpacking and packing of batches, into memory that is used again

The decisions are `log.cleaning`'s, the loop over records is C's (`native/bytes/clean.c`). Nothing here renames a file,
or removes one that has a segment's name.
"""
