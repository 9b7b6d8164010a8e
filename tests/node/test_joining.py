"""What a node that comes to its cluster says of what it has had alone."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.cluster.founding import SeedAddress, Status
from tpc_broker.feature_levels import Levels
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import AclsChanged, ClientQuotaChanged, ClusterCreated
from tpc_broker.metadata.user_control import credential_changed
from tpc_broker.model import MetadataVersion
from tpc_broker.node.joining import Joining
from tpc_broker.options import StartError

SEEDS = tuple(SeedAddress("10.0.0.1", 9000 + number) for number in (1, 2))
RULE = AclBinding(
    Resource.TOPIC, Pattern.LITERAL, "t", Principal("User", "a"), "*", Operation.READ, Permission.ALLOW
)  # fmt: skip
SHA_256 = ScramMechanism.SCRAM_SHA_256
BROUGHT = {
    "rules of access": AclsChanged((RULE,)),
    "users": credential_changed("anna", SHA_256, credential_of_password(SHA_256, "p", b"s", 1)),
    "quotas": ClientQuotaChanged({"user": "u"}, {"producer_byte_rate": 9.0}),
}


def joining(*records):
    """Of node 1, beside an earlier release's."""
    identity = SimpleNamespace(node=1, incarnation=11, founding=None)
    options, links = SimpleNamespace(address=SEEDS[0], seeds=SEEDS), SimpleNamespace(serve=lambda *_: None, peers={})
    made = Joining(options, SimpleNamespace(identity=identity), None, links)
    made.local = ClusterImage().apply([ClusterCreated("old"), *records], MetadataVersion(2))
    other = Status(2, 12, SEEDS[1], frozenset(SEEDS), levels=Levels(2, 5))

    async def seen():
        await trio.lowlevel.checkpoint()
        return {SEEDS[1]: other}

    made._ask_seeds = seen
    return made


@pytest.mark.parametrize("what", BROUGHT)
def test_a_node_does_not_start_that_would_lose_what_guards_it(what):
    run = partial(joining(BROUGHT[what]).run)
    with pytest.raises(StartError, match=f"this node brings {what}, which .* from feature level 6 on, and node 2 at"):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
