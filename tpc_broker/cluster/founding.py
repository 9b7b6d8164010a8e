"""How a cluster begins, and how a node comes to one: what is to be done next, from what all seeds say of themselves.

Theory of operation
-------------------
A node that is in no cluster asks every seed for its `Status`, again and again, and `next_step` says what follows:

* somebody is in a cluster already: *join* it;
* nobody is, this node is a founder (its own address is among the seeds), and every founder was seen: the one that
  brings data, or else the one with the least id, *proposes* to found the cluster;
* otherwise *wait*, or *refuse*, with the one line that the operator needs.

A proposal is made only when every founder has accepted it, and a node accepts another's if and only if it is in no
cluster and proposes nothing itself (`Acceptor`). So two proposals never both succeed, however long either takes and
whoever is restarted meanwhile: each needs the acceptance of the other's proposer, who has given its own up for good by
then, or is a member. Because nobody remembers an acceptance, nothing has to time out. The proposer makes the founding
durable, which is the moment at which the cluster exists; the others learn of it by its status, as any node that joins.

So a node that is alone never founds a second cluster by mistake, and one that comes back with an empty disk finds
that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_SECURITY, LEVEL_MAX, UNSAID, Levels
from tpc_broker.limits import CLUSTER_SEEDS_MAX, CLUSTER_VOTERS_MAX, SWIM_CLUSTER_BYTES_MAX, SWIM_HOST_BYTES_MAX
from tpc_broker.model import NODE_ID_MAX, NodeId
from tpc_broker.raft.items import Voter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMBER_MAX = 2**63 - 1


class SeedAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Founding:
    """What a cluster is from its first moment on: its id, the first voters of its metadata, and which of them brought
    the data that it begins with, if one did.
    """

    cluster: str
    voters: tuple[Voter, ...]
    data_node: NodeId | None = None
    level: int = FIRST_OF_CLUSTERS
    """The feature level that it begins with."""

    def to_json(self) -> dict[str, Any]:
        voters = [list(voter) for voter in self.voters]
        return {"cluster": self.cluster, "voters": voters, "data_node": self.data_node, "level": self.level}

    @classmethod
    def from_json(cls, fields: Any) -> Founding:
        """ValueError for what is none."""
        try:
            voters = tuple(Voter(_node(node), _number(incarnation)) for node, incarnation in fields["voters"])
            data_node = fields["data_node"]
            cluster = _text(fields["cluster"], SWIM_CLUSTER_BYTES_MAX)
            level = _number(fields.get("level", FIRST_OF_CLUSTERS))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a founding: {error!r}") from error
        if not 0 < len(voters) <= CLUSTER_VOTERS_MAX:
            raise ValueError(f"a founding with {len(voters)} voters; allowed are 1 to {CLUSTER_VOTERS_MAX}")
        return cls(cluster, voters, None if data_node is None else _node(data_node), level)


@dataclass(frozen=True, slots=True)
class Status:
    """What a node says of itself. `data_cluster`: the id of the cluster that its data are of, where it brings data."""

    node: NodeId
    incarnation: int
    address: SeedAddress
    seeds: frozenset[SeedAddress]
    data_cluster: str = ""
    founding: Founding | None = None
    """Of the cluster that it is in."""
    levels: Levels = UNSAID
    """Feature levels that its release speaks."""

    @property
    def is_founder(self) -> bool:
        return self.address in self.seeds

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "incarnation": self.incarnation,
            "address": list(self.address),
            "seeds": sorted(list(seed) for seed in self.seeds),
            "data_cluster": self.data_cluster,
            "founding": None if self.founding is None else self.founding.to_json(),
            "levels": list(self.levels),
        }

    @classmethod
    def from_json(cls, fields: Any) -> Status:
        """ValueError for what is none."""
        try:
            if len(fields["seeds"]) > CLUSTER_SEEDS_MAX:
                raise ValueError(f"{len(fields['seeds'])} seeds; at most {CLUSTER_SEEDS_MAX} are allowed")
            return cls(
                _node(fields["node"]),
                _number(fields["incarnation"]),
                _seed(fields["address"]),
                frozenset(map(_seed, fields["seeds"])),
                _text(fields["data_cluster"], SWIM_CLUSTER_BYTES_MAX) if fields["data_cluster"] else "",
                None if fields["founding"] is None else Founding.from_json(fields["founding"]),
                _levels(fields.get("levels", UNSAID)),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a status: {error!r}") from error

    def __str__(self) -> str:
        return f"node {self.node} at {self.address}"


@dataclass(frozen=True, slots=True)
class Join:
    """A cluster is there."""

    founding: Founding


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask every founder; when all accept, it is founded."""

    founding: Founding


@dataclass(frozen=True, slots=True)
class Wait:
    """For what."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Why this node cannot take part."""

    reason: str


Step = Join | Propose | Wait | Refuse


def next_step(
    own: Status, seen: Mapping[SeedAddress, Status], new_cluster: str, secured: Sequence[str] = ()
) -> Step:
    """What a node that is in no cluster does. `seen`: the latest status of each other seed that answers; `new_cluster`:
    the id of a cluster that it founds; `secured`: what this node's data have of security, each by its name.
    """
    others = [seen[address] for address in sorted(seen) if address != own.address]
    for other in others:
        if other.node == own.node:
            return Refuse(
                f"node id {own.node} is alive at {other.address} with another incarnation; give this node another "
                "--node-id, or stop that one first"
            )
    members = [other for other in others if other.founding is not None]
    if members:
        return _join(own, members)
    if not own.is_founder:
        return Wait("none of the seeds is in a cluster yet")
    missing = sorted(own.seeds - {own.address} - seen.keys())
    if missing:
        return Wait(f"a cluster is founded when all founders were seen; missing: {', '.join(map(str, missing))}")
    return _found(own, others, new_cluster, secured)


def _join(own: Status, members: list[Status]) -> Step:
    first = members[0]
    assert first.founding is not None
    for other in members[1:]:
        assert other.founding is not None
        if other.founding.cluster != first.founding.cluster:
            return Refuse(
                f"the seeds are of different clusters: {first} of {first.founding.cluster}, {other} of "
                f"{other.founding.cluster}; name seeds of one"
            )
    if own.data_cluster and own.data_cluster != first.founding.cluster:
        return Refuse(
            f"the data directory holds data of cluster {own.data_cluster}, and {first} is of cluster "
            f"{first.founding.cluster}; start with an empty --data to join that one"
        )
    return Join(first.founding)


def _found(own: Status, others: list[Status], new_cluster: str, secured: Sequence[str]) -> Step:
    founders = sorted([own, *others], key=lambda founder: founder.node)
    for other in others:
        if other.seeds != own.seeds:
            theirs = ", ".join(map(str, sorted(other.seeds)))
            return Refuse(f"{other} has other --seeds ({theirs}); founders need the same")
    for one, two in pairwise(founders):
        if one.node == two.node:
            return Refuse(f"{one.address} and {two.address} both have the node id {one.node}")
    level = min(founder.levels.highest for founder in founders)
    for founder in founders:
        if not founder.levels.has(level):
            oldest = min(founders, key=lambda each: each.levels.highest)
            return Refuse(
                f"{oldest} speaks feature {oldest.levels} and {founder} {founder.levels}; begin with releases that "
                "have one in common"
            )
    bringing = [founder for founder in founders if founder.data_cluster]
    if len(bringing) > 1:
        told = " and ".join(f"{founder} of cluster {founder.data_cluster}" for founder in bringing[:2])
        return Refuse(f"two founders bring data: {told}; one may, the others begin with an empty --data")
    proposer = bringing[0] if bringing else founders[0]
    if proposer is not own:
        return Wait(f"{proposer} is to found the cluster")
    voters = [proposer, *(founder for founder in founders if founder is not proposer)][:CLUSTER_VOTERS_MAX]
    named = tuple(sorted(Voter(founder.node, founder.incarnation) for founder in voters))
    founding = Founding(own.data_cluster or new_cluster, named, own.node if bringing else None, level)
    return _fault_of_level(founders, level, secured) or Propose(founding)


# Rule: A cluster is not founded without the rules, users and quotas that its data have: without rules everybody may do
# everything where allow.everyone.if.no.acl.found is true. Held by tests/cluster/test_founding.py,
# tests/node/test_joining.py.
def _fault_of_level(founders: list[Status], level: int, secured: Sequence[str]) -> Refuse | None:
    if level >= FIRST_WITH_SECURITY or not secured:
        return None
    oldest = min(founders, key=lambda each: each.levels.highest)
    return Refuse(
        f"this node brings {', '.join(secured)}, which a cluster keeps from feature level {FIRST_WITH_SECURITY} on, "
        f"and {oldest} speaks {oldest.levels}: the cluster would be of level {level} and without them; begin with "
        f"releases that speak {FIRST_WITH_SECURITY}"
    )


# Rule: Of two proposals to found a cluster never both succeed. A founder alone founds nothing. See also
# tpc_broker/node/joining.py. Held by tests/cluster/test_founding.py, tests/cluster/test_nodes.py.
class Acceptor:
    """Whether this node accepts another's proposal."""

    def __init__(self) -> None:
        self.is_proposing = False
        self.is_member = False

    def accepts(self) -> bool:
        return not self.is_proposing and not self.is_member


def _node(value: Any) -> NodeId:
    if _number(value) > NODE_ID_MAX:
        raise ValueError(f"node {value} is above {NODE_ID_MAX}")
    return NodeId(value)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{str(value)[:40]} is no number from 0 to {NUMBER_MAX}")
    return value


def _levels(value: Any) -> Levels:
    lowest, highest = value
    if not 0 < _number(lowest) <= _number(highest) <= LEVEL_MAX:
        raise ValueError(f"feature levels {lowest} to {highest}; allowed are 1 to {LEVEL_MAX}")
    return Levels(lowest, highest)


def _text(value: Any, bytes_max: int) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= bytes_max:
        raise ValueError(f"{str(value)[:40]!r} is no text of 1 to {bytes_max} bytes")
    return value


def _seed(value: Any) -> SeedAddress:
    host, port = value
    if not 0 < _number(port) <= 65_535:
        raise ValueError(f"port {port}; allowed are 1 to 65535")
    return SeedAddress(_text(host, SWIM_HOST_BYTES_MAX), port)
