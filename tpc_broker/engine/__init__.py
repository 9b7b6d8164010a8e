"""What touches the kernel in a core's process: the ring, trio on it, disk and files, sockets, and the data plane in C.

One core process is one thread with one ring. :func:`tpc_broker.engine.trio_ring.run` starts trio on it, and
:func:`tpc_broker.engine.trio_ring.current_ring` gives it to the code that runs there. Everything here is to be
called from that thread, except where a docstring says otherwise. It knows neither nodes nor processes: those rooms are
built on it.

* the loop: `ring`, `backend`, `trio_ring`, `task_queues`, `clocks`;
* files: `disk` on the ring; `durable_files`, `direct_file`, `sealed_files`, `data_directory` by blocking calls;
  `journal_lock`, `journal_probe`;
* connections: `connections`, `client_connections` and their bounds, `tls`, `quotas`; `links` and `mailbox` of cores;
* the data plane: `data_plane`, put together of a module for each subject that C has.

A turn
------
Completions that C handles alone never reach Python. After 10 ms or 8,192 of them the wait returns all the same;
deadlines, events and the wake-up end it at once. While Python has its turn, C is served between the steps of tasks and
in the middle of long ones, so what C answers alone waits for a step and not for the turn.

Each task belongs to a queue (`tpc_broker.task_queue`), and with it all that it starts. A turn runs tasks of the queue
that is furthest behind its share, for about a slice of 1 ms; what C does is charged to ``clients``, and C too waits
when it is ahead (`task_queues`).

Threads beside the core's never touch its state: one watches how long Python's steps take (`native/io/stall.c`), one
makes memory resident for a cache that grows (`native/io/prefault.c`), one writes the log's lines
(`process.logs`), and trio's helper threads make the blocking calls that the ring has no operation for (`disk`).
"""
