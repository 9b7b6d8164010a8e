"""Which nodes are heard by those that this node hears: each tells the others over its links whenever it hears others.

Two nodes may have no link to each other while a third one has links to both, and membership, which goes by datagrams,
may hold one of the two dead because these are lost. Who hears it by the third one's word does not take it for gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.errors import MailboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.node.links.links import Links, Peer

log = logging.getLogger(__name__)

HEARD: Final = "nodes.heard"


class Hearsay:
    """Of one node. `check`: whether who tells may, MailboxError."""

    def __init__(self, links: Links, check: Callable[[Hello], None]) -> None:
        self._links = links
        self._check = check
        self._said: dict[int, frozenset[int]] = {}
        """Who hears whom, as it said last."""
        self._told: dict[int, tuple[int, frozenset[int]]] = {}
        """What each node has taken from this one, and in which of its starts."""
        self._telling: set[int] = set()
        links.serve(HEARD, self._take)

    def heard_by(self, nodes: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self._said.get(node, ()) for node in nodes))

    def tell(self, heard: frozenset[int]) -> None:
        """All nodes with a link that do not know it yet; to be called again and again."""
        for peer in self._links.peers.values():
            hello = peer.hello
            if hello is None or hello.node in self._telling or self._told.get(hello.node) == (hello.boot, heard):
                continue
            self._telling.add(hello.node)
            self._links.nursery.start_soon(self._tell, peer, hello, heard)

    async def _tell(self, peer: Peer, hello: Hello, heard: frozenset[int]) -> None:
        try:
            await peer.call(HEARD, {"nodes": sorted(heard)})
            self._told[hello.node] = hello.boot, heard
        except MailboxError as error:
            log.debug("node %d was not told who is heard: %s", hello.node, error)
        finally:
            self._telling.remove(hello.node)

    async def _take(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        self._check(hello)
        self._said[hello.node] = frozenset(map(int, payload["nodes"]))
