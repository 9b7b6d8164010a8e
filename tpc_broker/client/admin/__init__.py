"""What operators ask of a cluster, as typed records: `client.admin`.

    await client.admin.topics.create("orders", partitions=12, configs={"retention.ms": "86400000"})
    for where, lag in (await client.admin.groups.lag("billing")).items(): ...

Modules
    `topics`        made, deleted, described, grown, cut; offsets by time
    `configs`       settings of topics, brokers, groups and client metrics
    `groups`        who is in them, their offsets, how far they are behind
    `access`        users, rules of access, quotas
    `transactions`  which there are, which hang, ending them
    `cluster`       brokers, features, elections, moves of replicas
    `asking`        where a request goes, and trying again until the deadline

Every call is tried again for the client's `retry_seconds`; bound it further with `anyio.fail_after`. Errors are
`RefusedError`, which has the broker's error code and its own words, `UnknownTopicError`, and `UnreachableError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.client.admin.access import Acls, Quotas, Users
from tpc_broker.client.admin.asking import Asker
from tpc_broker.client.admin.cluster import ClusterAdmin
from tpc_broker.client.admin.configs import Configs
from tpc_broker.client.admin.groups import Groups
from tpc_broker.client.admin.topics import Topics
from tpc_broker.client.admin.transactions import Transactions

if TYPE_CHECKING:
    from tpc_broker.client.net.fleet import Fleet


class Admin:
    """`Client.admin`."""

    def __init__(self, fleet: Fleet) -> None:
        asker = Asker(fleet)
        self.topics = Topics(asker)
        self.configs = Configs(asker)
        self.groups = Groups(asker)
        self.users = Users(asker)
        self.acls = Acls(asker)
        self.quotas = Quotas(asker)
        self.transactions = Transactions(asker)
        self.cluster = ClusterAdmin(asker)
