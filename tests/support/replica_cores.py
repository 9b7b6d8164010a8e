"""Cores of several nodes in one process, each with a ring, a disk and a thread of its own: one replicated partition.

Frames go from thread to thread as bytes. A *crash* takes a copy of the data directory in the midst of everything, and
from that moment on nothing that the core says is heard.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import threading
import traceback
from contextlib import suppress
from unittest import mock

import trio

from tests.engine.in_place_core import KEY, Bench, held
from tests.log.log_batches import batch
from tests.support.crash_copy import copy_as_crashed
from tests.support.waiting import PATIENCE_S, let_pass, patiently
from tpc_broker.bench.kafka_requests import PRODUCE_VERSION, produce_request
from tpc_broker.broker.ports import ProduceFallback, Verdict
from tpc_broker.cluster.raft_codec import decode_frame, encode_frame
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.steady_plane import Machine
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError
from tpc_broker.kafka import ApiKey, protocol
from tpc_broker.log.journal import JournalMode
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.links.sealed_links import Handed
from tpc_broker.node.replicas.replica_driver import ReplicaDriver
from tpc_broker.node.replicas.steady_carrier import SteadyLink
from tpc_broker.options import CoreOptions
from tpc_broker.process import assembly
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Voter, simple
from tpc_broker.raft.output import LEADER
from tpc_broker.raft.settings import Settings

GROUP = "topic-0"
PATIENT = Settings(link_silent_ms=60_000, resign_repeat_ms=70_000)
"""Who leads goes on leading when the machine stops for seconds: tests name a leader and go on with that one. Who is
gone is noticed by a connection that is refused; who is to be missed by silence alone needs other settings.
"""
_boots = itertools.count(1)


class ReplicaCore:
    """Node `number` of `count`, on the data that are in `folder`."""

    def __init__(self, cores, folder, number, count):
        self.cores, self.folder, self.number, self.count = cores, folder, number, count
        self.is_heard = True
        self.problem = None
        self.address = Address(NodeId(number), CoreId(0))
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"node {number}")
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        assert self.problem is None, self.problem

    def _run(self):
        try:
            run_on_ring(self._main)
        except BaseException as error:
            self.problem = error
            traceback.print_exception(error)
        finally:
            self._started.set()

    async def _main(self):
        nowhere = dict.fromkeys(("mailbox_fd", "control_fd"), -1)
        options = CoreOptions(
            core=CoreId(0), cores=1, data=str(self.folder), **nowhere, mailbox_names=(), listeners=(), listen_fds=(),
            cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
        )  # fmt: skip
        for name in ("journals", "topics"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        async with assembly.open_assembly(options) as core, trio.open_nursery() as nursery:
            self.core, self.plane, self.storage = core, core.plane, core.storage
            config = Bench.make_config()
            self.files = await self.storage.open(KEY, "topic", config)
            self.handle = self.storage.register(self.files, config, is_internal=False, is_replicated=True)
            self.plane.set_hot(on=True)
            core.connections._connections.on_request = lambda left: nursery.start_soon(self._hold, left)
            now_ms = SystemClock.monotonic_ms()
            self.boot = next(_boots)
            machine = RaftCore(self.address, self.boot, now_ms, self.cores.settings)
            voters = [Voter(NodeId(number), 0) for number in range(self.count)]
            for number in range(self.count):
                if number != self.number:
                    machine.add_link(Address(NodeId(number), CoreId(0)), now_ms)
            self.driver = ReplicaDriver(machine, self.plane, self.storage, SystemClock(), self._send)
            if self.cores.has_beats:
                self.driver.carrier.carry_beats(Machine.OF_PARTITIONS, machine, lambda _address: True)
            self.driver.add(GROUP, self.handle, self.files, voters[self.number], simple(voters))
            self._token, self._scope = trio.lowlevel.current_trio_token(), nursery.cancel_scope
            nursery.start_soon(self.driver.run)
            nursery.start_soon(self.storage.run_maintenance)
            self._started.set()
            await trio.sleep_forever()

    async def _hold(self, left):
        """What C leaves to Python, as the handler does: tried again as long as this core leads, and refused then."""
        while self.plane.leads(self.handle):
            verdict = Verdict(ErrorCode.NONE, is_final=False)
            if self.plane.produce_with(left, [verdict], ()) is ProduceFallback.NONE:
                return
            await trio.sleep(0.01)
        assert self.plane.produce_with(left, [Verdict(ErrorCode.NOT_LEADER_OR_FOLLOWER)], ()) is ProduceFallback.NONE

    def _send(self, frame):
        target = self.cores.nodes[frame.target.node]
        if self.cores.have_begun and self.is_heard and target is not None and target.is_heard:
            target.deliver(encode_frame(frame))

    def deliver(self, data):
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: self.driver.receive(decode_frame(data)))

    def ask(self, function, *arguments):
        """A call, or a coroutine function, in the core's thread. AssertionError when that has ended."""
        assert self.problem is None, self.problem
        answers = queue.SimpleQueue()

        async def run():
            try:
                found = function(*arguments)
                answers.put((await found if hasattr(found, "__await__") else found, None))
            except BaseException as error:
                answers.put((None, error))
                if not isinstance(error, Exception):
                    raise

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: trio.lowlevel.spawn_system_task(run))
        while True:
            try:
                found, error = answers.get(timeout=0.5)
            except queue.Empty:
                assert self._thread.is_alive(), f"{self.problem or 'the core has ended'}"
                continue
            if error is not None:
                raise error
            return found

    def adopt(self, sock, other, *, dialled):
        """A link for the steady state, as `replica_links` makes one."""
        descriptor = sock.detach()
        link = SteadyLink(other.address, other.boot, dialled, takes_beats=self.cores.has_beats)
        self.ask(lambda: self.driver.adopt_steady(Handed(descriptor), link))

    def is_carried(self):
        return self.ask(lambda: self.driver.core.groups[GROUP].carried)

    def stop(self):
        """At once, as it is."""
        self.is_heard = False
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(PATIENCE_S)

    def crash(self, target):
        """What a crash at this moment leaves; nothing is heard of it any more."""

        def die():
            self.is_heard = False
            for other in range(self.count):
                self.driver.carrier.close(Address(NodeId(other), CoreId(0)))
            copy_as_crashed(self.folder, target)

        self.ask(die)
        self.stop()

    def stand_soon(self):
        """In its turn, as when a leader is gone, in place of a time-out later: once a heartbeat of all was heard."""
        now_ms = SystemClock.monotonic_ms()
        self.driver.core.groups[GROUP].schedule_campaign(now_ms + self.cores.settings.heartbeat_ms)

    # -- looking -----------------------------------------------------------------------------------------------------

    def leads(self):
        return self.role()[0] is LEADER

    def role(self):
        def found():
            replica = self.driver._replicas[GROUP]
            return replica.role, replica.term

        return self.ask(found)

    def bounds(self):
        return self.ask(self.plane.bounds, self.handle)

    def log(self):
        """Bytes of every batch, by base offset, committed or not."""

        async def read():
            await self.storage.write_behind()
            return await held(self.files)

        return self.ask(read)

    def epochs(self):
        return [tuple(entry) for entry in self.ask(lambda: self.files.epochs.entries)]

    def connect(self):
        ours, theirs = socket.socketpair()
        self.ask(lambda: self.core.connections._connections.adopt(theirs.detach()))
        return ours


class ReplicaCores:
    """Nodes 0..count-1; one that is None is down. `acknowledged`: what was answered without an error. `is_carried`:
    there are links for the steady state, which C carries then; `has_beats`: and the heartbeats, too.
    """

    def __init__(self, tmp_path, count=3, settings=None, *, is_carried=False, has_beats=False):
        self.settings = settings or PATIENT
        self.is_carried, self.has_beats = is_carried, has_beats
        self._patches = [
            mock.patch.object(assembly, "probe_journal_mode", return_value=JournalMode.DIRECT_DSYNC),
            mock.patch.object(assembly, "_refuse_without_metadata", mock.AsyncMock()),  # there are none here
        ]
        for patch in self._patches:
            patch.start()
        self.tmp_path, self.count = tmp_path, count
        self.lives = [0] * count
        self.acknowledged = {}
        self.nodes = [None] * count
        self.have_begun = False
        """Nobody hears anybody before: a leader that C carries has nothing for who comes later but its files."""
        for number in range(count):
            self.start(number)
        self.have_begun = True
        self._elect()

    def folder(self, number):
        return self.tmp_path / f"node{number}-{self.lives[number]}"

    def start(self, number):
        made = self.nodes[number] = ReplicaCore(self, self.folder(number), number, self.count)
        for other in self.up() if self.is_carried else ():
            if other is not made:
                self.link(made, other)
                self.link(other, made)
        if self.have_begun:
            self._elect()

    def _elect(self):
        """Where nobody leads, soon: a time-out of elections is waited for in tests/raft, on virtual time."""
        if not any(node.leads() for node in self.up()):
            for node in self.up():
                node.ask(node.stand_soon)

    def link(self, source, target):
        ours, theirs = socket.socketpair()
        source.adopt(ours, target, dialled=True)
        target.adopt(theirs, source, dialled=False)

    def crash(self, number, *, is_noticed=True):
        """The others find at once that nobody listens there, unless they are to wait for the silence."""
        node, self.nodes[number] = self.nodes[number], None
        self.lives[number] += 1
        node.crash(self.folder(number))
        for other in self.up() if is_noticed else ():
            other.ask(other.driver.refused, node.address)

    def up(self):
        return [node for node in self.nodes if node is not None]

    def until(self, condition):
        for _ in patiently(self._told):
            if found := condition():
                return found
            let_pass(0.01)
        return None

    def _told(self):
        return [(node.role(), node.bounds(), node.epochs()) for node in self.up()]

    def leader(self):
        """Of those that are up the one that takes appends, waited for."""

        def term_led(node):
            """In one call: one that steps down between two would count with its successor's term."""
            replica = node.driver._replicas[GROUP]
            return replica.term if replica.role is LEADER and replica.armed_term else 0

        def find():
            terms = [(node.ask(term_led, node), node) for node in self.up()]
            newest, leader = max(terms, key=lambda term: term[0])
            return leader if newest else None

        return self.until(find)

    def produce(self, node, values, expected=ErrorCode.NONE):
        """One batch each, all under way at once: they leave together, so that none comes when one has failed."""
        found = self._answers(node, values)
        assert all(error == expected for error in found), found

    def produce_at_leader(self, values):
        """As a client does while another may be about to lead: what was not acknowledged for that reason is sent again,
        and may be there twice. Who acknowledged the last.
        """
        for _ in patiently(self._told):
            leader = self.leader()
            try:
                found = self._answers(leader, values)
            except LeadershipLostError:  # in front of all of them
                found = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(values)
            assert {*found} <= {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}, found
            values = [value for value, error in zip(values, found, strict=True) if error]
            if not values:
                return leader
        return None

    def _answers(self, node, values):
        """The error of each; what has none is among the acknowledged."""
        data = [batch(0, [value]) for value in values]
        node.ask(node.storage.make_room, node.files, node.handle, sum(map(len, data)))
        errors = []
        with node.connect() as client:
            client.settimeout(PATIENCE_S)
            client.sendall(b"".join(produce_request("topic", 0, one) for one in data))
            for one in data:
                size = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
                _, answer = protocol.decode_response_frame(
                    ApiKey.PRODUCE, PRODUCE_VERSION, client.recv(size, socket.MSG_WAITALL)
                )
                (found,) = answer.responses[0].partition_responses
                errors.append(ErrorCode(found.error_code))
                if not found.error_code:
                    self.acknowledged[found.base_offset] = one[21:]
        return errors

    def check(self):
        """All that are up come to the same log, with everything that was acknowledged, and all of it is shown."""
        end_offset = self.leader().bounds().log_end_offset
        self.until(lambda: all(node.bounds()[2:] == (end_offset, end_offset) for node in self.up()))
        logs = [node.log() for node in self.up()]
        assert all(found == logs[0] for found in logs)
        assert {offset: logs[0].get(offset) for offset in self.acknowledged} == self.acknowledged
        assert len({tuple(node.epochs()) for node in self.up()}) == 1

    def shut(self):
        for node in self.up():
            node.stop()
        for patch in self._patches:
            patch.stop()
