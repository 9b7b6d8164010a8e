"""What the bench needs of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.bench.load import Plan
    from tpc_broker.bench.server import Server


@dataclass(frozen=True)
class Shape:
    """A load of produce requests, the same for every peer."""

    connections: int = 1
    depth: int = 1
    """Requests under way per connection."""
    records_per_request: int = 1
    value_bytes: int = 1024
    partitions: int = 1
    rate: float = 0.0
    """Requests per second, open loop; 0: closed loop."""


class Peer(ABC):
    """One server in one mode, with its data in `folder`.

    `modes` maps each mode to whether an acknowledged record is on the disk then.
    """

    name: ClassVar[str]
    modes: ClassVar[dict[str, bool]]
    speaks_kafka: ClassVar[bool] = False

    warm_up_s_min: ClassVar[float] = 0.0
    """What the server needs before it is as fast as it gets."""

    def __init__(self, folder: Path, mode: str) -> None:
        assert mode in self.modes
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.mode = mode
        self.server: Server | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {self.mode}"

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it answers; `PeerUnavailable` with the reason where it cannot be had."""

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    @abstractmethod
    def produce_plan(self, topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        """Make the topic and the plan that loads it; `seconds` are warm-up and measured time."""

    @abstractmethod
    def stored_count(self, topic: str) -> int | None:
        """Records the topic has now; None where the server keeps no count."""

    def remark(self) -> str:
        """What this start has found or chosen that a reader should know; mostly nothing."""
        return ""

    @abstractmethod
    def version(self) -> str:
        """For the report."""
