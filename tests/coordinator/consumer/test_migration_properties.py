"""Random histories of groups with members of both protocols: no two of them ever work on one partition.

Members come, go, die, come back as instances of either protocol, and the group changes its kind whenever that follows.
The log is slow, and is cut off by restarts. A history is its seed: a failure names it.
"""

import random
from dataclasses import replace

import pytest

from tests.coordinator.consumer.classic_client import (
    COOPERATIVE,
    EAGER,
    JOINING,
    OUT,
    SESSION_MS,
    SYNCING,
    ClassicClient,
    MixedScenario,
)
from tpc_broker.error_codes import ErrorCode

STEPS = 300
PATIENCE_MS = SESSION_MS - 1_000
"""Of the coordinator, less than any of its deadlines: a member that does nothing for so long may be out."""
TOPICS = {"t": 5, "u": 3}
INSTANCE = "i"


class Classic(ClassicClient):
    """One that begins anew when the coordinator does not answer."""

    def hear(self):
        if self.state in {JOINING, SYNCING} and self.token in self.s.replies:
            self.go_on()

    def lose_answer(self):
        if self.state in {JOINING, SYNCING}:
            self.state = OUT

    def die(self):
        self.state, self.member_id, self.generation, self.owned = OUT, "", -1, {}

    def go(self):
        self.leave()

    @property
    def works_on(self):
        return {(name, partition) for name, each in self.owned.items() for partition in each}


class New:
    """One of KIP-848 whose answers may take a while."""

    def __init__(self, scenario, name, *topics, instance=None):
        self.s = scenario
        self.name = name
        self.topics = topics
        self.instance = instance
        self.lives = 0
        self.die()

    def die(self):
        self.lives += 1
        self.member_id = f"{self.name}-{self.lives}"
        self.epoch, self.owned, self.token, self.told = 0, {}, None, None

    def lose_answer(self):
        self.token = None

    def go_on(self):
        if self.token is None:
            whole = {"topic_names": self.topics, "rebalance_timeout_ms": SESSION_MS} if self.epoch == 0 else {}
            self.token = self.s.beat(self.member_id, self.epoch, owned=self.owned, instance_id=self.instance, **whole)

    def hear(self):
        if self.token is None or self.token not in self.s.replies:
            return
        response, self.token = self.s.replies[self.token], None
        self.told = response.error_code
        if response.error_code is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = response.assignment
        elif response.error_code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            self.epoch, self.owned = 0, {}
        elif response.error_code in {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID}:
            self.die()
            self.told = response.error_code

    def go(self):
        if self.epoch > 0:
            self.s.beat(self.member_id, -1, owned={}, instance_id=self.instance)
        self.die()

    @property
    def is_settled(self):
        return self.told is ErrorCode.NONE and self.epoch > 0

    @property
    def works_on(self):
        names = self.s.names(self.owned)
        return {(name, partition) for name, each in names.items() for partition in each}


class History:
    def __init__(self, seed, protocol):
        self.random = random.Random(seed)
        self.s = MixedScenario(topics=TOPICS)
        self.s.settings = replace(self.s.settings, session_timeout_ms=SESSION_MS)
        self.s.commit(offset=7)
        self.s.hold = True
        classic = {"protocol": protocol}
        self.as_classic = Classic(self.s, "i", "t", "u", instance=INSTANCE, **classic)
        self.as_new = New(self.s, "i", "t", "u", instance=INSTANCE)
        self.clients = [
            Classic(self.s, "a", "t", **classic),
            Classic(self.s, "b", "t", "u", **classic),
            New(self.s, "m", "t"),
            New(self.s, "n", "t", "u"),
            self.as_classic,
        ]
        self.running = {}
        """Clients, and when they last did anything."""
        self.settled_ms = self.s.now
        self.kinds = []
        self.mood = Classic
        """Who comes now; the others go."""

    def step(self):
        operations = {
            self.act: 20,
            self.wait: 8,
            self.settle: 10,
            self.come: 2,
            self.leave: 1.5,
            self.die: 0.3,
            self.turn: 0.4,
            self.change: 1,
            self.crash: 0.3,
        }
        self.random.choices(list(operations), list(operations.values()))[0]()
        if self.s.now - self.settled_ms > 2_000:
            self.settle()
        self.hear()
        self.check()

    def hear(self):
        """Answers are heard at once, and by who is alive; who was silent for too long takes itself for dead."""
        for client, since_ms in list(self.running.items()):
            client.hear()
            if self.s.now - since_ms >= PATIENCE_MS:
                client.die()
                del self.running[client]

    def act(self):
        if self.running:
            client = self.random.choice(list(self.running))
            self.running[client] = self.s.now
            client.go_on()

    def wait(self):
        self.s.wait(self.random.choice([10, 100, 500, 1_000]))

    def settle(self):
        self.s.settle()
        self.settled_ms = self.s.now

    def turn(self):
        self.mood = self.random.choice([Classic, New])

    def come(self):
        stopped = [each for each in self.clients if each not in self.running and isinstance(each, self.mood)]
        if stopped:
            self.running[self.random.choice(stopped)] = self.s.now

    def leave(self):
        others = [client for client in self.running if not isinstance(client, self.mood)]
        if others:
            client = self.random.choice(others)
            client.lose_answer()
            if getattr(client, "member_id", ""):
                client.go()
            client.die()
            del self.running[client]

    def die(self):
        if self.running:
            client = self.random.choice(list(self.running))
            client.die()
            del self.running[client]

    def change(self):
        """The instance comes back as one of the other protocol."""
        old = self.as_classic if self.as_classic in self.clients else self.as_new
        new = self.as_new if old is self.as_classic else self.as_classic
        if isinstance(new, self.mood):
            old.die()
            self.running.pop(old, None)
            self.clients[-1] = new
            self.running[new] = self.s.now

    def crash(self):
        self.s.start()
        for client in self.clients:
            client.lose_answer()

    def check(self):
        for client in self.running:
            for other in self.running:
                if client is not other:
                    both = client.works_on & other.works_on
                    assert not both, (client.name, other.name, both)
        assert self.s.offset() == 7
        kind = self.s.kind()
        if kind != (self.kinds or [None])[-1]:
            self.kinds.append(kind)

    def end(self):
        """Who is left comes to rest, and all is divided."""
        self.s.hold = False
        self.settle()
        for client in self.clients:
            if not self.running:
                self.running[client] = self.s.now
        for _ in range(400):
            for client in list(self.running):
                self.running[client] = self.s.now
                client.go_on()
                client.hear()
            self.s.wait(250)
            self.check()
            self.hear()
            if all(client.is_settled for client in self.running) and self.is_divided():
                break
        else:
            raise AssertionError((self.kinds, [(each.name, each.works_on) for each in self.running]))
        before = sorted(self.s.stored_records())
        self.s.start()
        assert sorted(self.s.stored_records()) == before

    def is_divided(self):
        wanted = {name for client in self.running for name in client.topics}
        found = {pair for client in self.running for pair in client.works_on}
        return found == {(name, partition) for name in wanted for partition in range(TOPICS[name])}


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("number", range(20))
def test_no_two_members_work_on_one_partition(seed, number, protocol):
    history = History(f"{seed} {number} {protocol}", protocol)
    for _ in range(STEPS):
        history.step()
    history.end()


def test_such_histories_have_groups_that_change_their_kind_both_ways(seed):
    history = History(f"{seed} kinds", EAGER)
    for _ in range(100 * STEPS):
        history.step()
        if min(map(history.kinds.count, ("classic", "consumer"))) >= 3:
            return
    raise AssertionError(history.kinds)
