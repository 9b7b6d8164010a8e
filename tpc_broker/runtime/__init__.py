"""What touches the kernel: the ring of a core, trio on it, disk and sockets.

One core process is one thread with one ring. :func:`tpc_broker.runtime.trio_ring.run` starts trio on it, and
:func:`tpc_broker.runtime.trio_ring.current_ring` gives it to the code that runs there. Everything here is to be
called from that thread, except where a docstring says otherwise.
"""
