"""Replicas without segment space: other nodes are to lead what they lead, as long as others can.

A leader without space refuses all records while it lasts, though its followers may have room. One that has had none for
`SPACELESS_MS_MAX` hands its leadership over as a node that drains does, to a voter that has everything; if nobody has
taken it within `SPACELESS_TRANSFER_MS`, it resigns. It does neither where those that are in sync and have space are no
majority without it: what it refuses, they could not commit.

Who has no space stands for election behind all others (`raft.replica.Replica.yields`), and tells the cores that have
replicas with it, so that they hand nothing over to it. They forget what was not repeated for a while. Whoever does not
say anything has space, as far as others know: a full disk shows when records come. So leaderships could go round among
nodes that are all full. Between two times that a node gives the same one up it waits, twice as long each time.

Nothing here is a matter of safety: when a leadership ends and who stands for the next one decides nothing about what is
committed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import CallFailedError, MailboxError
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.items import Address
from tpc_broker.raft.settings import Settings
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.hand_overs import ReplicaHandOvers
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.raft.group import Group
    from tpc_broker.storage.upkeep.segment_space import Lack

log = logging.getLogger(__name__)

LACKING_SPACE: Final = "replicas.lacking_space"
LOOK_S: Final = limits.SPACE_LOOK_MS / 1000
GIVEN_AT_ONCE_MAX: Final = 100
"""Leaderships that are being given up at once."""
TELL_EVERY_S: Final = 2.0
TELL_TIMEOUT_S: Final = 1.0
BELIEVED_S: Final = 3 * TELL_EVERY_S

assert 2 * Settings().election_timeout_ms <= limits.SPACELESS_TRANSFER_MS, "a hand-over is tried more than once"
assert TELL_TIMEOUT_S < TELL_EVERY_S, "what is told is told in time"


@dataclass(slots=True)
class _GivenUp:
    """One partition's leadership. `began_s`: since when it is being given up; None: it is not."""

    times: int = 0
    began_s: float | None = None
    not_before_s: float = 0.0

    def ended(self, now_s: float) -> None:
        self.times += 1
        self.began_s, self.not_before_s = None, now_s + self.wait_s

    @property
    def wait_s(self) -> float:
        """Until the next time."""
        wait_ms: int = limits.SPACELESS_AGAIN_MS_MIN << min(self.times - 1, limits.SPACELESS_AGAIN_MS_MAX.bit_length())
        return min(wait_ms, limits.SPACELESS_AGAIN_MS_MAX) / 1000


# Rule: A leader without segment space stops leading while a majority of the others has some. Where nobody could lead
# better, leaderships do not go round. Why: docs/decisions/2026-11-26-leaders-without-space.md. See also
# tpc_broker/storage/upkeep/segment_space.py. Held by tests/cluster/test_lacking_space.py, tests/cluster/test_disks.py,
# tests/simulator/test_full_disks.py.
class LackingSpace:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas) -> None:
        self._replicas = replicas
        self._driver: ReplicaDriver
        self._hand_overs: ReplicaHandOvers
        self.is_short = False
        """Of space on its file system: the core's replicas lead nothing that others can lead."""
        self._since_s: float | None = None
        self._handed_over = self._resigned = 0
        self._given: dict[TopicPartition, _GivenUp] = {}
        self._others: dict[Address, float] = {}
        """Cores that have said that they are short of space, and until when that is believed."""
        self._told: set[Address] = set()
        """Those that have heard it of this one."""

    def begin(self, driver: ReplicaDriver, hand_overs: ReplicaHandOvers) -> None:
        """There is one."""
        self._driver, self._hand_overs = driver, hand_overs

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_others)
            while True:
                await next_round(LOOK_S)
                self.look(self._replicas.lacking())

    def has_space(self, address: Address) -> bool:
        """As far as is known of another core."""
        until_s = self._others.get(address)
        if until_s is not None and trio.current_time() >= until_s:
            del self._others[address]
            return True
        return until_s is None

    # -- what is led here ----------------------------------------------------------------------------------------------

    def look(self, lacking: Mapping[TopicPartition, Lack]) -> None:
        """`lacking`: replicas without space."""
        now_s = trio.current_time()
        ages_s = {key: now_s - lack.since_s for key, lack in lacking.items()}
        short = {key for key, age_s in ages_s.items() if age_s >= limits.SPACELESS_TOLD_MS / 1000}
        self.is_short = any(lacking[key].is_of_disk for key in short)
        if short and self._since_s is None:
            self._since_s = now_s
            log.warning("%d replicas have no segment space: they lead nothing that others could lead", len(short))
        if self._since_s is not None:
            self._yield(short)
        self._look_at_given(short, now_s)
        under_way = sum(given.began_s is not None for given in self._given.values())
        for key in short:
            machine = self._replicas.look_at(key)
            if machine is None or not machine.is_leader or ages_s[key] < limits.SPACELESS_MS_MAX / 1000:
                continue
            given = self._given.setdefault(key, _GivenUp())
            under_way -= given.began_s is not None
            if under_way < GIVEN_AT_ONCE_MAX:
                self._give_up(key, machine, given, now_s)
            under_way += given.began_s is not None
        if not short and self._since_s is not None:
            log.warning("there is segment space again, after %.1f s: %d leaderships were handed over, %d ended without "
                        "a successor", now_s - self._since_s, self._handed_over, self._resigned)  # fmt: skip
            self._since_s, self._handed_over, self._resigned = None, 0, 0

    def _yield(self, short: set[TopicPartition]) -> None:
        for key in self._replicas.replicas_here():
            machine = self._replicas.machine_of(key)
            if machine is not None:
                machine.yields = self.is_short or key in short

    def _look_at_given(self, short: set[TopicPartition], now_s: float) -> None:
        """Who has handed over leads no more; who has had space for long enough begins anew."""
        for key, given in list(self._given.items()):
            machine = self._replicas.machine_of(key)
            if given.began_s is not None:
                if machine is None or not machine.is_leader:
                    self._handed_over += 1
                    given.ended(now_s)
                elif key not in short:
                    given.ended(now_s)
            elif key not in short and now_s >= given.not_before_s + (given.wait_s if given.times else 0):
                del self._given[key]

    def _give_up(self, key: TopicPartition, machine: Group, given: _GivenUp, now_s: float) -> None:
        heir = self._heir(machine)
        if heir is None:
            if given.began_s is not None:
                given.ended(now_s)
            return
        if given.began_s is None:
            if now_s < given.not_before_s:
                return
            given.began_s = now_s
        if now_s - given.began_s < limits.SPACELESS_TRANSFER_MS / 1000:
            self._hand_overs.transfer(key, heir)
        else:
            self._resigned += 1
            given.ended(now_s)
            self._resign(machine)

    def _resign(self, machine: Group) -> None:
        now_ms = self._replicas.now_ms()
        self._driver.core.take_back(machine.group, now_ms)
        if machine.is_leader:
            machine.resign(now_ms)
        self._driver.wake()

    def _heir(self, machine: Group) -> NodeId | None:
        """Who is to lead in this one's place; None: nobody could lead better."""
        config = machine.config
        if config is None or config.is_joint:
            return None
        match = {peer.voter: peer.match for peer in machine.peers.values()}
        able = [
            voter for voter in machine.in_touch()
            if voter != machine.me and voter in match and self.has_space(machine.address_of(voter))
        ]  # fmt: skip
        if not config.has_quorum(able):
            return None
        draining = self._replicas.image.draining
        return min(able, key=lambda voter: (voter.node in draining, -match[voter], voter)).node

    # -- what other cores know -----------------------------------------------------------------------------------------

    async def _tell_others(self) -> None:
        while True:
            await next_round(TELL_EVERY_S if self.is_short else LOOK_S)
            if self.is_short or self._told:
                async with trio.open_nursery() as nursery:
                    for address in self._replicas.others() if self.is_short else list(self._told):
                        nursery.start_soon(self._tell, address, self.is_short)

    async def _tell(self, address: Address, is_short: bool) -> None:  # noqa: FBT001 (a task's argument)
        if not self._replicas.links.is_up(address):
            self._told.discard(address)  # and what it has heard is believed no longer soon
            return
        with trio.move_on_after(TELL_TIMEOUT_S):
            try:
                await self._replicas.links.tell(address, LACKING_SPACE, {"is_short": is_short})
            except CallFailedError:  # an earlier release: it finds out by what is behind
                return
            except MailboxError as error:
                log.debug("%s was not told about the space here: %s", address, error)
                return
            if is_short:
                self._told.add(address)
            else:
                self._told.discard(address)

    async def serve(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        """Another core says whether it is short of space."""
        address = Address(NodeId(hello.node), CoreId(hello.core))
        if payload["is_short"]:
            self._others[address] = trio.current_time() + BELIEVED_S
        else:
            self._others.pop(address, None)
