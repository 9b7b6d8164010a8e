"""The replicas of one core: `replication` puts together the driver of their machines and what tends them."""
