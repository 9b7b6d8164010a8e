"""A cluster of simulated nodes with several cores each, thousands of small faults, and an administrator.

Its requests, faults and changes stand in schedules by their names. After the faults everything heals; within a bound
each group must have a leader, take and commit a record, bring every voter to the same log, and still have everything
that was acknowledged (the liveness phase).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.network import Faults, Network
from tests.simulator.raft_disk import Mirror, Shipped
from tests.simulator.raft_node import CoreDriver, Ports, Replica
from tests.simulator.raft_oracle import BrokenInvariantError, Oracle
from tests.simulator.world import MS, SECOND, World
from tpc_broker.raft.items import Address, GroupId, Voter, simple
from tpc_broker.raft.output import ConfigCommitted, Role, ShipSegments
from tpc_broker.raft.settings import Settings

QUIET = Faults(delay_us_min=50, delay_us_max=500)
HEAL_US = 60 * SECOND
"""From the last fault until everything must be well. A campaign may have to wait for several time-outs."""
LATE_US = 4 * SECOND
"""Afterwards what was late arrives (`Cluster.bad_network`), and must do no harm."""
SETTLE_US = 6 * SECOND
"""Then within this all voters have everything."""


class Cluster:
    """`nodes_count` nodes of `cores_count` cores, `groups_count` groups with `replicas_count` voters each."""

    def __init__(
        self, seed: int, nodes_count: int, cores_count: int, groups_count: int, replicas_count: int,
        *, refuses: bool = False, names_first: bool = False,
    ) -> None:  # fmt: skip
        self.world = World(seed)
        self.network = Network(self.world, QUIET)
        self.oracle = Oracle(self._durable_mirrors)
        self._random = self.world.stream("cluster")
        self._refuses = refuses
        self._refusals = self.world.stream("refusals")
        self._incarnations: dict[tuple[GroupId, int], int] = {}
        self._removed: set[tuple[GroupId, Voter]] = set()
        self._lost: dict[GroupId, list[tuple[Voter, Mirror]]] = {}
        ports = Ports(
            self.world, self.network, self.oracle, lambda: list(self.drivers), self._ship, self._config_committed,
            Settings(),
        )  # fmt: skip
        addresses = [Address(node, core) for node in range(nodes_count) for core in range(cores_count)]
        self.drivers: dict[Address, CoreDriver] = {}
        for address in addresses:
            self.drivers[address] = CoreDriver(ports, address, int(self._random.random() * 400) - 200)
        self.nodes_count, self.cores_count = nodes_count, cores_count
        self.groups = list(range(groups_count))
        for group in self.groups:
            first = group % nodes_count
            nodes = [(first + number) % nodes_count for number in range(replicas_count)]
            config = simple(Voter(node, 1) for node in nodes)
            for node in nodes:
                self._incarnations[group, node] = 1
                first = Voter(nodes[0], 1) if names_first else None
                self.driver(group, node).create_replica(group, Voter(node, 1), config, first)
        for driver in self.drivers.values():
            driver.start()

    # -- who is where ----------------------------------------------------------------------------------------------

    def driver(self, group: GroupId, node: int) -> CoreDriver:
        """The core of a node that a group lives on there."""
        return self.drivers[Address(node, group % self.cores_count)]

    def replicas(self, group: GroupId) -> Iterator[tuple[CoreDriver, Replica]]:
        for node in range(self.nodes_count):
            driver = self.driver(group, node)
            if group in driver.replicas:
                yield driver, driver.replicas[group]

    def _durable_mirrors(self, group: GroupId) -> list[tuple[Voter, Mirror]]:
        living = [(replica.me, replica.durable) for _driver, replica in self.replicas(group)]
        return [*living, *self._lost.get(group, [])]

    def leader(self, group: GroupId) -> tuple[CoreDriver, Replica] | None:
        """Who leads in the highest term, by what the cores say."""
        return max(self.leaders(group), key=lambda one: one[0].machine(group).term, default=None)

    def leaders(self, group: GroupId) -> list[tuple[CoreDriver, Replica]]:
        """Everyone who believes to lead."""
        return [
            (driver, replica) for driver, replica in self.replicas(group)
            if (machine := driver.machine(group)) is not None and machine.role is Role.LEADER
        ]  # fmt: skip

    # -- requests --------------------------------------------------------------------------------------------------

    def produce(self, group: GroupId, node: int, batches_count: int) -> None:
        """A client asks a node, whoever leads."""
        driver = self.driver(group, node)
        if group in driver.replicas:
            driver.propose(group, batches_count)

    def produce_at_leaders(self, group: GroupId, batches_count: int) -> None:
        """Clients ask everyone who believes to lead: a deposed leader too."""
        for driver, _replica in self.leaders(group):
            driver.propose(group, batches_count)

    def read(self, group: GroupId) -> None:
        """A request that decides, at everyone who believes to lead."""
        for driver, _replica in self.leaders(group):
            driver.read(group)

    # -- faults ----------------------------------------------------------------------------------------------------

    def crash_core(self, node: int, core: int, down_ms: int) -> None:
        """`kill -9` of one core; the supervisor starts it again."""
        driver = self.drivers[Address(node, core)]
        if driver.process.is_running:
            driver.crash()
            self.world.call_after(down_ms * MS, lambda: self._start(driver))
            if self._refuses:
                self._refuse(driver)

    def _refuse(self, driver: CoreDriver) -> None:
        """Some of the others, not all at the same time, find that nobody listens there, or that somebody does again."""
        for other in self.drivers.values():
            if other.address.node != driver.address.node and self._refusals.random() < 0.8:
                delay_us = int(self._refusals.random() * self._refusals.choice((20, 200, 2000)) * MS)
                self.world.call_after(delay_us, lambda other=other: other.refused(driver.address))

    def crash_node(self, node: int, down_ms: int) -> None:
        """Loss of power: all cores of a node."""
        for core in range(self.cores_count):
            self.crash_core(node, core, down_ms)

    def crash_all(self, down_ms: int) -> None:
        """Loss of power everywhere at once."""
        for node in range(self.nodes_count):
            self.crash_node(node, down_ms + 37 * node)

    def _start(self, driver: CoreDriver) -> None:
        if not driver.process.is_running:
            driver.start()

    def pause(self, node: int, core: int, for_ms: int) -> None:
        """SIGSTOP, and SIGCONT later."""
        process = self.drivers[Address(node, core)].process
        process.pause()
        self.world.call_after(for_ms * MS, process.resume)

    def cut(self, node: int, other: int, for_ms: int, one_way: bool) -> None:
        """Two nodes do not hear each other, or one not the other."""
        mine = [address for address in self.drivers if address.node == node]
        theirs = [address for address in self.drivers if address.node == other]
        self.network.partition(mine, theirs, one_way=one_way)
        self.world.call_after(for_ms * MS, lambda: self._join(mine, theirs))

    def isolate(self, node: int, for_ms: int) -> None:
        """A node hears nobody and is heard by nobody."""
        mine = [address for address in self.drivers if address.node == node]
        theirs = [address for address in self.drivers if address.node != node]
        self.network.partition(mine, theirs)
        self.world.call_after(for_ms * MS, lambda: self._join(mine, theirs))

    def _join(self, mine: list[Address], theirs: list[Address]) -> None:
        for one in mine:
            for other in theirs:
                self.network.unblock(one, other)
                self.network.unblock(other, one)
                self._reconnect(one, other)

    def _reconnect(self, one: Address, other: Address) -> None:
        """Some connections broke meanwhile, and both sides notice when the new one is there; the others went on."""
        if self._random.random() < 0.5:
            delay_us = int(self._random.random() * SECOND)
            for address, peer in ((one, other), (other, one)):
                driver = self.drivers[address]
                self.world.call_after(delay_us, lambda driver=driver, peer=peer: driver.connected(peer))

    def bad_network(self, loss: float, duplicate: float, late: float, for_ms: int) -> None:
        """Messages are lost, doubled, late, and overtake each other."""
        self.network.faults = Faults(loss, duplicate, 50, 3 * MS, late, 3 * SECOND)
        self.world.call_after(for_ms * MS, self._good_network)

    def _good_network(self) -> None:
        self.network.faults = QUIET

    def slow_disk(self, node: int, core: int, for_ms: int) -> None:
        """Nothing becomes durable for a while."""
        self.drivers[Address(node, core)].journal.stalled_until_us = self.world.now_us + for_ms * MS

    def fail_disk(self, node: int, core: int) -> None:
        """The next write of the journal fails; it is opened again soon."""
        self.drivers[Address(node, core)].journal.fails = True

    def checkpoint(self, node: int, core: int, release: bool) -> None:
        """The journal is recycled."""
        self.drivers[Address(node, core)].checkpoint(release=release)

    def retain(self, group: GroupId, node: int) -> None:
        """Retention deletes what is committed and in files: who lacks it needs segments from now on."""
        driver = self.driver(group, node)
        if group in driver.replicas:
            driver.retain(group)

    def clean(self, group: GroupId, node: int) -> None:
        """A replica's segments are compacted, as far as that may be: whoever lacks something there needs segments."""
        driver = self.driver(group, node)
        if group in driver.replicas:
            driver.clean(group)

    def lose_disk(self, group: GroupId, node: int) -> None:
        """A replica loses everything, and comes back as another incarnation, a learner without a configuration."""
        driver = self.driver(group, node)
        replica = driver.replicas.get(group)
        if replica is None or not driver.process.is_running or driver.process.is_paused:
            return
        found = self.leader(group)
        config = found and found[0].machine(group).config
        if self._lost.get(group) or config is None or min(len(config.old), len(config.new)) < 3:
            return  # a majority must keep its disks
        self._lost.setdefault(group, []).append((replica.me, Mirror(replica.durable)))
        self._replace(driver, group, node)

    def _replace(self, driver: CoreDriver, group: GroupId, node: int) -> None:
        driver.perform(group, lambda _core, _now: driver.remove_replica(group))
        self._incarnations[group, node] = self._incarnations.get((group, node), 0) + 1
        driver.forget_earlier(group)
        driver.create_replica(group, Voter(node, self._incarnations[group, node]), None)

    # -- changes ---------------------------------------------------------------------------------------------------

    def change_voters(self, group: GroupId, nodes: tuple[int, ...]) -> None:
        """The administrator wants the group on these nodes."""
        found = self.leader(group)
        if found is None or not found[0].process.is_running or found[0].process.is_paused:
            return
        target = []
        for node in nodes:
            driver = self.driver(group, node)
            if group in driver.replicas and (group, driver.replicas[group].me) in self._removed:
                return  # what was removed comes back as another incarnation, when it is gone
            if group not in driver.replicas:
                number = self._incarnations.get((group, node), 0) + 1
                self._incarnations[group, node] = number
                driver.forget_earlier(group)
                driver.create_replica(group, Voter(node, number), None)
            target.append(driver.replicas[group].me)
        driver = found[0]
        machine = driver.machine(group)
        old = machine.log.config.voters
        learners = [voter for voter in target if voter not in old]
        if learners and machine.log.markers and machine.commit < machine.log.markers[-1].position:
            return  # that configuration may leave out one of them, which is deleted once it is committed
        driver.perform(group, lambda core, now_ms: core.set_learners(group, learners, now_ms))
        driver.perform(group, lambda core, now_ms: core.change_voters(group, target, now_ms))

    def transfer(self, group: GroupId, node: int) -> None:
        """The leader is asked to hand over."""
        found = self.leader(group)
        replica = self.driver(group, node).replicas.get(group)
        if found is not None and replica is not None:
            found[0].perform(group, lambda core, now_ms: core.transfer_leadership(group, replica.me, now_ms))

    def abort_change(self, group: GroupId) -> None:
        """The administrator has second thoughts."""
        found = self.leader(group)
        if found is not None:
            found[0].perform(group, lambda core, now_ms: core.abort_change(group, now_ms))

    def _config_committed(self, event: ConfigCommitted) -> None:
        for voter in event.removed:
            self._removed.add((event.group, voter))
            driver = self.driver(event.group, voter.node)
            replica = driver.replicas.get(event.group)
            if replica is not None and replica.me == voter:
                delay_us = int(self._random.random() * SECOND)
                self.world.call_after(delay_us, lambda v=voter: self._delete(event.group, v))

    def _delete(self, group: GroupId, voter: Voter) -> None:
        driver = self.driver(group, voter.node)
        replica = driver.replicas.get(group)
        if replica is None or replica.me != voter:
            return
        if driver.machine(group) is None or driver.process.is_paused:
            self.world.call_after(SECOND, lambda: self._delete(group, voter))
        else:
            driver.perform(group, lambda _core, _now: driver.remove_replica(group))

    def _ship(self, source: CoreDriver, event: ShipSegments) -> None:
        written = source.replicas[event.group].written
        items = Shipped(written.upto(event.position), written.cleaned_upto)
        target = self.driver(event.group, event.target.node)
        delay_us = int(self._random.random() * SECOND)

        def arrived() -> None:
            replica = target.replicas.get(event.group)
            if replica is not None and replica.me == event.target:
                replica.shipped[event.position] = items
                source.perform(
                    event.group,
                    lambda core, now_ms: core.shipped(event.group, event.target, event.position, now_ms),
                )

        self.world.call_after(delay_us, arrived)

    # -- the liveness phase ----------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more."""
        self.network.heal()
        self._good_network()
        for driver in self.drivers.values():
            driver.journal.stalled_until_us = 0
            if driver.process.is_paused:
                driver.process.resume()
            self._start(driver)

    def must_recover(self) -> None:
        """Every group commits again, and all its voters have the same."""
        self.heal()
        deadline_us = self.world.now_us + HEAL_US
        waiting = list(self.groups)
        while waiting and self.world.now_us < deadline_us:
            for group in waiting:
                self.produce_at_leaders(group, 1)
            before = {group: self.oracle.history(group).acked_end for group in waiting}
            self.world.run_for(SECOND)
            waiting = [group for group in waiting if self.oracle.history(group).acked_end == before[group]]
        if waiting:
            raise BrokenInvariantError(f"liveness: {self._state(waiting[0])} after {HEAL_US // SECOND} s of peace")
        self.world.run_for(LATE_US)
        for _second in range(SETTLE_US // SECOND):
            if self._are_level():
                break
            self.world.run_for(SECOND)
        for group in self.groups:
            self._all_have_everything(group)

    def _are_level(self) -> bool:
        try:
            for group in self.groups:
                self._all_have_everything(group)
        except AssertionError:
            return False
        return True

    def _all_have_everything(self, group: GroupId) -> None:
        found = self.leader(group)
        assert found is not None, f"nobody leads {group}"
        config = found[0].machine(group).log.config
        lost = {voter for voter, _mirror in self._lost.get(group, [])}
        voters = [replica for _driver, replica in self.replicas(group) if replica.me in config.voters - lost]
        self.oracle.at_the_end(group, [(replica.me, replica.durable) for replica in voters])
        for replica in voters:
            if replica.commit < self.oracle.history(group).committed:
                raise BrokenInvariantError(f"liveness: {replica.me} of {group} is behind: {self._state(group)}")

    def _state(self, group: GroupId) -> str:
        return f"group {group}: " + "; ".join(
            f"{replica.me.node}.{replica.me.incarnation} {driver.machine(group).role.value} "
            f"term {driver.machine(group).term} last {tuple(replica.written.last)} commit {tuple(replica.commit)}"
            for driver, replica in self.replicas(group) if driver.machine(group) is not None
        )  # fmt: skip
