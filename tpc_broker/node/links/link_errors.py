"""Why two ends of a link do not belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpc_broker.cluster.link_codec import Reason


class LinkRefusedError(Exception):
    """The two ends do not belong together; the other one is told. `is_proven`: it knows the cluster's secret."""

    def __init__(self, reason: Reason | None, text: str, *, by_peer: bool, is_proven: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.by_peer = by_peer
        self.is_proven = is_proven
