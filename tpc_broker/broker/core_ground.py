"""What all of a core stands on: its ports, its settings, what it knows of the cluster, and what it counts.

The machines and services of a core are given it by the narrowest type that has what they use. From this one on each
type adds what was put upon the one before, and stands beside it: `CoreWithPartitions`, `CoreWithClients`,
`CoreWithGroups`, `CoreWithTransactions`. Handlers are given all of it, `core.Core`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.broker.metadata_service import MetadataService
from tpc_broker.broker.purgatory import Purgatory
from tpc_broker.broker.told_partitions import ToldPartitions
from tpc_broker.broker.view import ClusterView
from tpc_broker.metadata.controller import Controller
from tpc_broker.model import BrokerId, CoreId, NodeId, Replica, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import trio

    from tpc_broker.auth.oauthbearer import Tokens
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.helper_thread import InThread
    from tpc_broker.broker.metadata_service import ApplyImage
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.ports import Chance, Clock, ClusterNode, Connections, DataPlane, Mailboxes
    from tpc_broker.errors import RecordsDamagedError
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.listeners import Listener
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

FETCH_SESSION_EVICTION_MS = 120_000


@dataclass(frozen=True, slots=True)
class CoreIdentity:
    """Where this core stands: its node, its number, and what clients are told."""

    core_id: CoreId
    cores: int
    listeners: tuple[Listener, ...]
    data_path: Path
    cluster_id: str
    sasl_secret: bytes = field(default=b"", repr=False)
    """The broker's, for users that it does not have (`auth.scram`)."""


class CoreGround:
    """Without anything that answers a client."""

    tokens: Tokens | None = None
    """Where clients may log in by OAUTHBEARER."""

    def __init__(  # noqa: PLR0913  (a core is put together from its ports, here and in `Core`)
        self,
        place: CoreIdentity,
        configuration: BrokerConfiguration,
        *,
        connections: Connections,
        plane: DataPlane,
        disk: Disk,
        mailboxes: Mailboxes,
        clock: Clock,
        chance: Chance,
        nursery: trio.Nursery,
        apply_image: ApplyImage,
        on_settings: Callable[[Settings], None],
        cluster: ClusterNode | None,
        is_in_cluster: bool,
        in_thread: InThread,
    ) -> None:
        self.cluster = cluster
        self.core_id = place.core_id
        self.data_path = place.data_path
        self.configuration = self._started_with = configuration
        self.connections, self.plane = connections, plane
        self.disk, self.mailboxes = disk, mailboxes
        self.clock, self.chance = clock, chance
        self.in_thread = in_thread
        self.log_limiter = LogLimiter(lambda: clock.monotonic_ms() / 1000)
        """Of all lines of this core that clients can cause."""
        settings = configuration.settings
        node = NodeId(settings.node_id)
        self.broker_id: BrokerId = broker_id_of(node, place.core_id)
        self.view = ClusterView(node, place.cores, place.listeners, settings.broker_rack, in_cluster=is_in_cluster)
        self.view.core = place.core_id
        self.told = ToldPartitions(self.view, self.is_available)
        self.purgatory = Purgatory(plane.watch)
        plane.on_advanced(self.purgatory.advanced)
        self._on_settings = on_settings
        self._apply_settings()
        self.metadata = MetadataService(
            place.core_id, self.view, mailboxes, apply_image, clock, nursery.start_soon, cluster
        )
        self.metadata.end_core = self._end
        self._asked_of_wrong_core = self._requests_forwarded = self._machines_raised = 0
        self._nursery = nursery

    @property
    def settings(self) -> Settings:
        """The effective broker settings, dynamic ones included."""
        return self.configuration.settings

    def _apply_settings(self) -> None:
        """Those that others act by: what reads `settings` each time needs no telling."""
        settings = self.settings
        self._on_settings(settings)
        self.plane.set_fetch_limits(
            min(settings.fetch_max_bytes, limits.FETCH_RESPONSE_BYTES_MAX),
            settings.max_incremental_fetch_session_cache_slots,
            FETCH_SESSION_EVICTION_MS,
        )

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """A task of its own, that goes on until it is done or the core ends."""
        self._nursery.start_soon(function, *arguments)

    def _end(self, error: Exception) -> None:
        """By a task of its own, which nobody waits for."""

        async def fail() -> None:
            raise AssertionError("this core is not what the metadata say") from error

        self._nursery.start_soon(fail)

    def is_available(self, place: Replica) -> bool:
        if place.node != self.view.node:
            return self.view.is_present(place.node)
        return place.core == self.core_id or self.view.is_up(place.core)

    def is_up(self, core: CoreId) -> bool:
        """Of this node."""
        return core == self.core_id or self.view.is_up(core)

    def controller(self, image: ClusterImage) -> Controller:
        """To decide a change of that image."""
        return Controller(image, self.configuration, (*self.full_nodes, *(self.view.absent | image.draining)))

    @property
    def full_nodes(self) -> frozenset[NodeId]:
        """Those with hardly any space on their disks, as core 0 knows."""
        return frozenset() if self.cluster is None else self.cluster.full()

    # -- what is counted -----------------------------------------------------------------------------------------------

    def note_asked(self, owner: CoreId | None) -> None:
        """A request named a partition that is not open here; `owner`: the core that has it."""
        self._asked_of_wrong_core += owner is not None and owner != self.core_id

    def note_damaged(self, partition: Partition, error: RecordsDamagedError) -> None:
        """Somebody asked for records of it that are damaged."""
        text = f"records that a client asked for cannot be read: {error}"
        self.log_limiter.say(log, "damaged", partition.label, text, level=logging.ERROR)

    def note_forwarded(self) -> None:
        self._requests_forwarded += 1

    def note_machine_raised(self) -> None:
        """Of a coordinator: it is loaded again."""
        self._machines_raised += 1

    # -- the data plane -----------------------------------------------------------------------------------------------

    def produce_now(self, request: Request) -> bool:
        """Let the data plane take a Produce; False when Python has to deal with it."""
        return self.plane.produce(request)
