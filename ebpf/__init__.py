"""Steering by eBPF: which core's socket gets a connection or a datagram, decided by the kernel before anybody accepts.

`programs/steer.c` is the program, `loaders` brings it into the kernel by bcc or by libbpf, `steering` is one port that
is steered: the program with its maps. Only the supervisor loads; cores get descriptors of the maps that they write.
Needs CAP_BPF and CAP_NET_ADMIN. `README.md` beside this says how it works and what it costs.
"""
