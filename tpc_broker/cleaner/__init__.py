"""The cleaner: processes beside the cores that rewrite segments of compacted topics.

A core hands a job over and puts what comes of it in its place; a cleaner keeps nothing from one job to the next, knows
no journal and renames nothing. So it may die at any moment, and a batch that is hostile ends a job and no core.

* `cleaner_frames`: what goes over the socket between the two, encoded and checked;
* `cleaner_door`: how a core's end of a conversation comes to a cleaner;
* `cleaner_client`: a core's side, the port `storage.ports.Cleaner`;
* `cleaner_process`: the process. It takes conversations out of the door, one at a time, and forks for each job:
  niceness, memory's bound and what the job leaves in memory end with it;
* `cleaning_run`: one job (`log.cleaning_job`), with blocking calls: read the segments, write cleaned ones beside them.
  The decisions are `log.cleaning`'s, the loop over records is C's (`native/bytes/clean.c`);
* `log_writer`: the log that it writes, past the page cache, beside the work; `memory`: with huge pages;
* `codecs`: unpacking and packing of batches, into memory that is used again;
* `shared_pace`: bytes a second, of all processes of the node together;
* `process.cleaner_lives`: the supervisor's side. A process is started when a core waits, `log.cleaner.threads` at most,
  and ends by itself when nobody does for a minute.

The process imports neither trio nor the broker.
"""
