"""One member of a group by this project's own client: `group_member` says what it writes, and what its arguments are.

Settings have librdkafka's names; those that are not known here are refused. "loop" is trio or asyncio.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

import anyio

from tpc_broker.client import GroupSettings, connect
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.requests import TopicPartition

ASSIGNORS = "partition.assignment.strategy"


def settings_of(given: dict[str, Any]) -> GroupSettings:
    said: dict[str, Any] = {"group": given.pop("group.id"), "protocol": given.pop("group.protocol", "classic")}
    if ASSIGNORS in given:
        said["assignors"] = tuple(given.pop(ASSIGNORS).split(","))
    for name, own in (("session.timeout.ms", "session_seconds"), ("heartbeat.interval.ms", "heartbeat_seconds")):
        if name in given:
            said[own] = int(given.pop(name)) / 1000
    said["instance_id"] = given.pop("group.instance.id", None)
    said["server_assignor"] = given.pop("group.remote.assignor", None)
    assert not given, given
    return GroupSettings(**said, topics_seconds=1.0)


class Member:
    """A `Watcher`."""

    def __init__(self, path: str, name: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._name = name

    def write(self, what: str, *facts: object) -> None:
        os.write(self._file, (json.dumps([self._name, what, *facts]) + "\n").encode())

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.write("given", [list(where) for where in partitions])

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        """What is under way is finished first."""

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        self.write("back", [list(where) for where in partitions])

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        return {}

    async def run(self, topics: str, given: dict[str, Any]) -> None:
        bootstrap = given.pop("bootstrap.servers")
        wanted = re.compile(topics.removeprefix("^")) if topics.startswith("^") else topics
        async with (
            connect(bootstrap) as client,
            client.read(wanted, group=settings_of(given), commit_seconds=0.2) as stream,
        ):
            source = stream._reader
            self._tell_commits(stream)
            source.watch(self)
            async with anyio.create_task_group() as tasks:

                async def leaves() -> None:
                    await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(leaves)
                async for record in stream:
                    self.write("handled", record.topic, record.partition, record.offset)
            self.write("back", [list(where) for where in source.held()])
        self.write("left")

    def _tell_commits(self, stream: Any) -> None:
        """Of which a stream has no news for its users."""
        membership = stream._membership
        commit = membership._commit

        async def told(positions: Mapping[TopicPartition, Position], *, waits: bool) -> None:
            await commit(positions, waits=waits)
            self.write("committed", [[*where, position.offset] for where, position in positions.items()])

        membership._commit = told


def main() -> None:
    path, name, topics, settings = sys.argv[1:]
    given = json.loads(settings)
    anyio.run(Member(path, name).run, topics, given, backend=given.pop("loop", "trio"))


if __name__ == "__main__":
    main()
