"""`connect` and the `Client` it gives: everything a program asks of a cluster, in one place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tpc_broker.client.net.fleet import Fleet, FleetSettings
from tpc_broker.client.net.tasks import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from tpc_broker.client.consumer.options import AssignmentLike, IsolationLike, OnMissing, TopicsLike
    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.client.membership.settings import GroupSettings
    from tpc_broker.client.net.fleet import Dial


class Client:
    """Made by `connect`. All of its tasks belong to one event loop."""

    def __init__(self, fleet: Fleet, tasks: TaskGroup) -> None:
        self.fleet = fleet
        self._tasks = tasks

    def read(  # noqa: PLR0913 - each is a setting of its own
        self,
        topics: TopicsLike | None = None,
        *,
        assignment: AssignmentLike | None = None,
        group: str | GroupSettings | None = None,
        start: StartLike = "earliest",
        isolation: IsolationLike = "read_committed",
        on_missing: OnMissing = "raise",
        memory: int | str = "64MiB",
        fetch_bytes: int = 16 * 1024 * 1024,
        partition_bytes: int = 1024 * 1024,
        wait_seconds: float = 0.5,
        rack: str | None = None,
        commit_seconds: float = 5.0,
        leave_seconds: float = 10.0,
        topics_seconds: float = 30.0,
    ) -> AbstractAsyncContextManager[Stream]:
        """``async with client.read("orders") as stream: async for record in stream: …``

        ``topics`` are a name, names, or an expression (`re.compile`) that names are to match as a whole. In their
        place, ``assignment`` names partitions and where each begins: an offset, a `Position`, "earliest", "latest",
        or None (what is committed, or else ``start``).

        Without ``group`` all partitions of the topics are read, also those that are added later, and nothing is
        committed. With one, the partitions are divided among its members, and each goes on where its group has
        committed; a `GroupSettings` in place of the name says more. With a group and an assignment, the group only
        keeps positions.

        ``start`` is where a partition begins that has no position: "earliest", "latest", an `Offset`, a datetime, or
        ms since 1970 (the first record that is not older). ``isolation`` "read_committed" leaves out records of
        transactions that were aborted and waits for those that are open; "read_uncommitted" does neither.
        ``on_missing``: what to do when the offset to read at is not in the log (any more): raise
        `OffsetsMissingError`, or go on at the "earliest" or the "latest" there is, with a warning in the log.

        ``memory`` bounds what was fetched and not handed out, as bytes or "64MiB"; ``fetch_bytes`` one answer of a
        broker, ``partition_bytes`` one partition in it. A single batch that is larger comes all the same.
        ``wait_seconds``: how long a broker holds a fetch that finds nothing. ``rack``: where this program is (the
        client's, if None), so that a replica nearby may be read from.

        ``commit_seconds``: how often what is finished is committed in the background, with a group. ``leave_seconds``
        bounds the last commit, and then the goodbye to the group. ``topics_seconds``: between two looks at which
        partitions there are.

        Raises `ValueError` for an option that cannot be; `UnknownTopicError` for a topic that is not there. Reading
        raises `OffsetsMissingError`, `DamagedDataError`, `TopicReplacedError`, or what could not be mended within the
        client's ``retry_seconds``.
        """
        from tpc_broker.client.consumer.options import Chosen, ReadOptions, reading  # noqa: PLC0415 - who only writes needs none

        options = ReadOptions(
            start=start,
            isolation=isolation,
            on_missing=on_missing,
            memory=memory,
            fetch_bytes=fetch_bytes,
            partition_bytes=partition_bytes,
            wait_seconds=wait_seconds,
            rack=self.fleet.settings.rack if rack is None else rack,
            commit_seconds=commit_seconds,
            leave_seconds=leave_seconds,
            topics_seconds=topics_seconds,
        )
        return reading(self.fleet, Chosen(topics, assignment, group), options)


@asynccontextmanager
async def connect(bootstrap: str, *, client_id: str = "tpc") -> AsyncIterator[Client]:
    """A client of the cluster that has a broker at ``bootstrap`` (host:port, several with commas).

    `ValueError` for an address that is none. Nothing is sent before something is asked for.
    """
    async with opened(FleetSettings(bootstrap, client_id)) as client:
        yield client


@asynccontextmanager
async def opened(settings: FleetSettings, dial: Dial | None = None) -> AsyncIterator[Client]:
    """`connect` with all settings; ``dial``: another way to the brokers than the network."""
    async with background_tasks() as tasks:
        fleet = Fleet(settings, tasks) if dial is None else Fleet(settings, tasks, dial)
        try:
            yield Client(fleet, tasks)
        finally:
            fleet.close()
