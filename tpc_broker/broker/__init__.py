"""One core's broker: what its partitions, groups and requests do. Sees the world only through `ports`."""
