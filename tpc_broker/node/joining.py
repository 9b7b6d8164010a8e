"""How this node comes to its cluster: asks the seeds until it can join one, or until the founders found one.

What is decided stands in `cluster.founding`. A refusal ends the start, but not at once: a process of the same node that
was just killed may still be heard of for a moment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.cluster.founding import Acceptor, Founding, Join, Propose, Refuse, SeedAddress, Status, next_step
from tpc_broker.cluster.link_codec import Hello, Reason
from tpc_broker.engine.data_directory import new_cluster_id
from tpc_broker.errors import MailboxError
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import NodeId
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from tpc_broker.node.links.links import Links, Peer
    from tpc_broker.node.membership.identity import IdentityFile
    from tpc_broker.node.metadata.voter_file import VoterFile
    from tpc_broker.options import ClusterOptions

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
SAY_FIRST_S: Final = 3.0
SAY_EVERY_S: Final = 10.0
REFUSED_LOOKS_MAX: Final = 20
"""So often in a row, 0.2 s apart, before a refusal is believed."""
STATUS_TIMEOUT_MS: Final = 1_000
ACCEPT_TIMEOUT_MS: Final = 5_000


class Joining:
    def __init__(
        self,
        options: ClusterOptions,
        file: IdentityFile,
        voter_file: VoterFile,
        links: Links,
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        self._surroundings = surroundings
        self._options = options
        self._file = file
        self._voter_file = voter_file
        self._links = links
        self._acceptor = Acceptor()
        self._acceptor.is_member = file.identity.founding is not None
        self.local = ClusterImage()
        """What the node has had without a cluster."""
        links.serve("status", self._serve_status)
        links.serve("founding.accept", self._serve_accept)

    def status(self) -> Status:
        identity, local = self._file.identity, self.local
        brings = bool(local.topics or local.broker_configs or self._secured())
        return Status(
            NodeId(identity.node),
            identity.incarnation,
            self._options.address,
            frozenset(self._options.seeds),
            local.cluster_id if brings and identity.founding is None else "",
            identity.founding,
            SPOKEN,
        )

    def _secured(self) -> list[str]:
        local = self.local
        named = {"rules of access": local.acls, "users": local.scram_users, "quotas": local.client_quotas}
        return [name for name, some in named.items() if some]

    async def run(self) -> Founding:
        """Until this node is in a cluster. StartError: it cannot be."""
        refused, said_s, said = 0, -SAY_EVERY_S, ""
        while (founding := self._file.identity.founding) is None:
            seen = await self._ask_seeds()
            new_cluster = new_cluster_id(self._surroundings.uuid())
            step = next_step(self.status(), seen, new_cluster, self._secured())
            refusal = step.reason if isinstance(step, Refuse) else self._refusal_by_link()
            refused = refused + 1 if refusal else 0
            if refusal and refused >= REFUSED_LOOKS_MAX:
                raise StartError(refusal)
            if isinstance(step, Join):
                await self._join(step.founding)
            elif isinstance(step, Propose):
                await self._propose(step.founding, seen)
            else:
                now_s, reason = trio.current_time(), refusal or step.reason
                if reason != said or now_s - said_s >= SAY_EVERY_S:
                    said_s, said = now_s, reason
                    log.info("no cluster yet: %s", reason)
                await trio.sleep(LOOK_S)
        return founding

    def _refusal_by_link(self) -> str:
        """What a seed and this node do not go together for, that only the operator can mend."""
        for peer in self._links.peers.values():
            if peer.refused is not None and peer.refused.reason is not Reason.NODE_ITSELF:
                who = f"{peer.address} refuses this node" if peer.refused.by_peer else f"{peer.address} is refused"
                return f"{who}: {peer.refused}"
        return ""

    async def _ask_seeds(self) -> dict[SeedAddress, Status]:
        seen: dict[SeedAddress, Status] = {}

        async def ask(address: SeedAddress, peer: Peer) -> None:
            try:
                answer, _blobs = await peer.call("status", {}, timeout_ms=STATUS_TIMEOUT_MS)
                seen[address] = Status.from_json(answer)
            except (MailboxError, ValueError) as error:
                log.debug("%s has no status: %s", address, error)

        async with trio.open_nursery() as nursery:
            for address in self._options.seeds:
                if address != self._options.address:
                    nursery.start_soon(ask, address, self._links.peer(address))
        return seen

    async def _propose(self, founding: Founding, seen: dict[SeedAddress, Status]) -> None:
        self._acceptor.is_proposing = True
        try:
            accepted: list[bool] = []

            async def ask(status: Status) -> None:
                asked = {"node": status.node, "incarnation": status.incarnation}
                peer = self._links.peer(status.address)
                try:
                    answer, _blobs = await peer.call("founding.accept", asked, timeout_ms=ACCEPT_TIMEOUT_MS)
                    accepted.append(answer.get("accepted") is True)
                except MailboxError as error:
                    log.info("%s did not answer to the founding: %s", status, error)

            async with trio.open_nursery() as nursery:
                for status in seen.values():
                    nursery.start_soon(ask, status)
            if len(accepted) == len(seen) and all(accepted):
                await self._join(founding)
                log.info("founded cluster %s with nodes %s", founding.cluster, [v.node for v in founding.voters])
                return
        finally:
            self._acceptor.is_proposing = False
        await trio.sleep(LOOK_S * (1 + self._file.identity.incarnation % 7 / 7))  # two do not meet for ever

    async def _join(self, founding: Founding) -> None:
        """From here on this node is in that cluster. The file of a voter is there before it may promise anything."""
        identity = self._file.identity
        if (identity.node, identity.incarnation) in founding.voters:
            await self._voter_file.create()
        self._acceptor.is_member = True
        self._file.joined(founding)
        for peer in self._links.peers.values():
            peer.reconnect()  # with a hello that says so

    async def _serve_status(self, _hello: Hello, _payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        return self.status().to_json(), []

    async def _serve_accept(self, _hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        identity = self._file.identity
        is_meant = (payload["node"], payload["incarnation"]) == (identity.node, identity.incarnation)
        return {"accepted": is_meant and self._acceptor.accepts()}, []


async def say_what_is_waited_for(links: Links) -> None:
    """Now and then, until cancelled: a node that was founded waits for a majority, however long that takes."""
    await trio.sleep(SAY_FIRST_S)
    while True:
        up = sorted(peer.hello.node for peer in links.peers.values() if peer.hello is not None)
        log.warning("waiting for a majority of the metadata's voters; nodes with a link: %s", up or "none")
        await trio.sleep(SAY_EVERY_S)
