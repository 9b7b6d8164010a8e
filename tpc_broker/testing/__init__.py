"""A broker in memory for tests of programs that use `tpc_broker.client`."""
