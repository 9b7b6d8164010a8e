"""Clients of the classic protocol beside those of KIP-848, which do as they are told: they do not know of which kind
their group is.
"""

from tests.coordinator.consumer.scenario import ConsumerScenario
from tpc_broker.coordinator.consumer.client_protocol import read_assignment, read_subscription
from tpc_broker.coordinator.messages import JoinRequest
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import encode, messages

EAGER, COOPERATIVE = "range", "cooperative-sticky"
OUT, JOINING, SYNCING, IN = "out", "joining", "syncing", "in"
SESSION_MS = 10_000


def said(*topics, owned=None, version=3, **details):
    """A subscription; `owned` by topic name."""
    kind = messages.ConsumerProtocolSubscription
    partitions = [kind.TopicPartition(topic=name, partitions=sorted(each)) for name, each in (owned or {}).items()]
    message = kind(topics=list(topics), owned_partitions=partitions, **details)
    return version.to_bytes(2, "big") + encode("ConsumerProtocolSubscription", version, message)


def given(partitions, version=3, user_data=None):
    """An assignment, by topic name."""
    kind = messages.ConsumerProtocolAssignment
    assigned = [kind.TopicPartition(topic=name, partitions=sorted(each)) for name, each in partitions.items()]
    message = kind(assigned_partitions=assigned, user_data=user_data)
    return version.to_bytes(2, "big") + encode("ConsumerProtocolAssignment", version, message)


class MixedScenario(ConsumerScenario):
    """`batches` has what was asked to be written, write by write. Its clock begins long after the last assignment."""

    def __init__(self, topics=None, assignors=None, **limits):
        self.batches = []
        limits.setdefault("initial_rebalance_delay_ms", 0)
        super().__init__(topics, assignors, **limits)
        self.now = 1_000_000

    def run(self, effects):
        self.batches += [write.records for write in effects.writes]
        super().run(effects)

    def classic_group(self, *names, topics=("t",), group="g", **details):
        """A stable classic group of these clients, by name."""
        clients = {name: ClassicClient(self, name, *topics, group=group, **details) for name in names}
        self.until_in(*clients.values())
        return clients

    def until_in(self, *clients, rounds=40):
        """They go on until all of them have what they are to have, and hear nothing new."""
        for _ in range(rounds):
            before = [client.seen for client in clients]
            for client in clients:
                client.go_on()
            if before == [client.seen for client in clients] and all(client.is_settled for client in clients):
                return
            self.wait(250)
        raise AssertionError([client.seen for client in clients])

    def described_now(self, group="g"):
        """A group as it is decided, whatever is durable of that."""
        return self.machine._consumers.described(group, self.settings)

    def kind(self, group="g"):
        """Of a group: "classic", "consumer", or None."""
        return next((each.group_type for each in self.machine.list_groups() if each.group_id == group), None)


class ClassicClient:
    """`owned`: what it works on, by topic name."""

    def __init__(self, scenario, name, *topics, group="g", protocol=EAGER, instance=None, version=3, also=()):
        self.s = scenario
        self.name = name
        self.group = group
        self.topics = topics or ("t",)
        self.protocol = protocol
        self.also = also
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.owned = {}
        self.state = OUT
        self.token = None
        self.told = None
        """The last error code that it was told."""

    @property
    def seen(self):
        return self.state, self.generation, self.owned

    @property
    def is_settled(self):
        return self.state == IN and self.told is ErrorCode.NONE

    def protocols(self):
        owned = self.owned if self.protocol == COOPERATIVE else {}
        metadata = said(*self.topics, owned=owned, version=self.version)
        return tuple((name, metadata) for name in (self.protocol, *self.also))

    def go_on(self):
        """Hears what it was answered, and does what follows from it; otherwise sends a heartbeat."""
        if self.state in {JOINING, SYNCING}:
            if self.token not in self.s.replies:
                return
            response = self.s.replies[self.token]
            self.told = response.error_code
            if self.state == JOINING:
                self._joined(response)
            else:
                self._synced(response)
        elif self.state == IN:
            self.beat()
        else:
            self.join()

    def beat(self):
        self.told = self.s.heartbeat(self.member_id, self.generation, self.group, self.instance)
        if self.told is ErrorCode.REBALANCE_IN_PROGRESS:
            self.state = OUT
        elif self.told is not ErrorCode.NONE:
            self._forget()
        return self.told

    def join(self):
        if self.protocol == EAGER:
            self.owned = {}
        self.token = self.s.token(f"join {self.name}")
        request = JoinRequest(
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocols=self.protocols(),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            client_id=self.name,
        )
        self.state = JOINING
        self.s.run(self.s.machine.join_group(request, self.token, self.s.now, f"{self.name}-{self.s.tokens}"))

    def _joined(self, response):
        self.state = OUT
        if response.error_code is ErrorCode.NONE:
            self.member_id, self.generation = response.member_id, response.generation_id
            shares = self._shares(response.members) if response.leader == response.member_id else ()
            self.token = self.s.sync(
                self.name, self.member_id, self.generation, shares, self.group,
                protocol_type="consumer", protocol_name=response.protocol_name,
            )  # fmt: skip
            self.state = SYNCING
        elif response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif response.error_code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._forget()

    def _synced(self, response):
        self.state = OUT
        if response.error_code is ErrorCode.NONE:
            before, self.owned = self.owned, dict(read_assignment(response.assignment).partitions)
            lost = any(not each <= self.owned.get(name, frozenset()) for name, each in before.items())
            self.state = OUT if lost else IN
        elif response.error_code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._forget()

    def _forget(self):
        """It was put out: whatever it had is not its own."""
        self.state, self.generation, self.owned = OUT, -1, {}
        if self.told in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self.member_id = ""

    def _shares(self, members):
        """As the leader: each topic's partitions in turn, but what another one still has is given to nobody."""
        told = {each.member_id: read_subscription(each.metadata) for each in members}
        shares = {member_id: {} for member_id in told}
        for name in sorted({topic for each in told.values() for topic in each.topic_names}):
            takers = sorted(member_id for member_id, each in told.items() if name in each.topic_names)
            topic = self.s.topics.named(name)
            for partition in range(0 if topic is None else topic.partitions_count):
                taker = takers[partition % len(takers)]
                if not any(partition in told[each].owned.get(name, ()) for each in takers if each != taker):
                    shares[taker].setdefault(name, set()).add(partition)
        return [(member_id, given(share)) for member_id, share in shares.items()]

    def leave(self):
        token = self.s.leave((self.member_id, self.instance), group=self.group)
        self._forget()
        self.member_id = ""
        return token
