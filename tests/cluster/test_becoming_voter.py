"""A node that is asked to have a part of the metadata group: twice at once, by who goes away, and while it starts."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.support.fake_disk import FakeDisk
from tpc_broker.cluster.founding import Founding, SeedAddress
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.membership import identity
from tpc_broker.node.membership.identity import FOLDER, IdentityFile
from tpc_broker.node.metadata.voter_file import GROUP, VoterFile
from tpc_broker.node.node import ClusterNodeMain
from tpc_broker.options import ClusterOptions, CoreOptions
from tpc_broker.raft.items import Voter
from tpc_broker.raft.journal import VoteEntry

OTHERS = (Voter(NodeId(1), 11), Voter(NodeId(2), 12))
SEEDS = (SeedAddress("127.0.0.1", 9001), SeedAddress("127.0.0.1", 9002))


class SlowDisk(FakeDisk):
    """Some of what is asked for waits until it is let go."""

    def __init__(self, folder):
        super().__init__()
        for path in (*folder.parents, folder):
            self.put_folder(path)
        self._held: dict[tuple[str, int], trio.Event] = {}
        self._counts: dict[str, int] = {}

    def hold(self, what, number=1):
        """The one of that number from now on; the event that lets it go."""
        self._counts[what] = 0
        return self._held.setdefault((what, number), trio.Event())

    async def _pass(self, what):
        self._counts[what] = self._counts.get(what, 0) + 1
        held = self._held.get((what, self._counts[what]))
        if held is not None:
            await held.wait()

    async def open(self, path, flags, mode=0o644):
        await self._pass(f"open {path.suffix}")
        return await super().open(path, flags, mode)

    async def rename(self, source, target):
        await self._pass("rename")
        await super().rename(source, target)

    async def fsync_directory(self, path):
        await self._pass("fsync_directory")
        await super().fsync_directory(path)


class Node:
    """Node 3 of a cluster, as it is behind its joining."""

    def __init__(self, folder, nursery):
        self.disk = SlowDisk(folder / FOLDER)
        options = CoreOptions(
            core=CoreId(0), cores=1, data=str(folder), mailbox_fd=-1, control_fd=-1, mailbox_names=(), listeners=(),
            listen_fds=(), cpu=None, settings="", overrides=(), log_style="json", log_level="warning",
            supervisor_pid=0, cluster=ClusterOptions(3, SeedAddress("127.0.0.1", 9003), SEEDS, "", ""),
            cluster_fds=(-1, -1),
        )  # fmt: skip
        self.main = ClusterNodeMain(options, self.disk, folder)
        self.main._nursery = nursery
        self.founding = Founding("a-cluster", OTHERS)
        self.main._file.joined(self.founding)

    async def begin(self):
        await self.main._begin_group(self.founding)

    async def asked(self):
        own = self.main._own_hello()
        await self.main._become_replica(own, {"incarnation": own.incarnation}, [])
        assert self.main._group.has_replica, "who is told that it is done makes it a voter"


def run(folder, story):
    async def main():
        async with trio.open_nursery() as nursery:
            await story(Node(folder, nursery), nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def entries_of(node):
    found = await VoterFile(node.disk, node.main._file.folder).open()
    return [each.entry for each in found[1]]


@pytest.mark.parametrize("where", ["open .new", "rename", "fsync_directory", "open .raft"])
def test_who_asks_goes_away_meanwhile(where, tmp_path):
    async def story(node, nursery):
        await node.begin()
        held = node.disk.hold(where)
        asking = trio.CancelScope()

        async def ask():
            with asking:
                await node.asked()

        nursery.start_soon(ask)
        await trio.sleep(1)
        asking.cancel()
        await trio.sleep(1)
        held.set()
        await node.asked()

    run(tmp_path, story)


def test_what_was_promised_stays_when_it_is_asked_twice_at_once(tmp_path):
    vote = VoteEntry(GROUP, 5, OTHERS[0])

    async def story(node, nursery):
        await node.begin()
        first, second = node.disk.hold("fsync_directory"), node.disk.hold("rename", 2)
        errors = []

        async def ask():
            try:
                await node.asked()
            except Exception as error:
                errors.append(error)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.sleep(1)
            asking.start_soon(ask)
            await trio.sleep(1)
            first.set()
            await trio.sleep(1)
            await node.main._voter_file.append([encode_entry(vote)])
            second.set()
        assert await entries_of(node) == [vote]
        assert errors == []

    run(tmp_path, story)


def test_who_asks_while_the_node_opens_its_replica_waits_for_that(tmp_path):
    async def story(node, nursery):
        await node.main._voter_file.create()
        node.main._file.gets_replica()
        held = node.disk.hold("open .raft")
        async with trio.open_nursery() as starting:
            starting.start_soon(node.begin)
            await trio.sleep(1)
            starting.start_soon(node.asked)
            await trio.sleep(1)
            held.set()

    run(tmp_path, story)


def test_that_it_has_one_is_durable_before_anything_is_promised(tmp_path, monkeypatch):
    """Else it would be made anew, empty, when it is asked for after a start."""

    def full(_path, _content):
        raise OSError("no space")

    async def story(node, nursery):
        await node.begin()
        with monkeypatch.context() as patched:
            patched.setattr(identity, "replace_file", full)
            with pytest.raises(OSError, match="no space"):
                await node.asked()
        await node.asked()
        assert IdentityFile(tmp_path).read().has_replica

    run(tmp_path, story)
