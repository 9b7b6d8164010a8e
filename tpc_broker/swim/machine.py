"""The membership protocol of one node as a machine: SWIM with Lifeguard. No I/O, no clock, no chance of its own.

Sources: Das, Gupta, Motivala, "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership Protocol", DSN
2002; and Lifeguard (`lifeguard`). Section numbers below are theirs. `tests/swim` has one test per claim.

Theory of operation
-------------------
*Probing* (SWIM 3.1, 4.3). Each period the next member in turn gets a PING. No ACK within the ack time-out: k other
members get a PING_REQ, ping it themselves (a `_Relay`), and pass its ACK on, or say NACK. Nothing by the end of the
period: the member is suspected. So load and time to the first detection do not depend on the number of members.

*Suspicion* (SWIM 4.2). A suspected member is still a member. It hears of the suspicion, because it is told by whoever
pings it (Lifeguard's buddy system) and by rumour, and refutes it with a higher incarnation. When the time-out ends
without that, it is dead.

*Dissemination* (SWIM 4.1). Whatever changes the table is a rumour and rides on pings and answers (`rumours`).

*Local health* (Lifeguard). `LocalHealth` stretches this node's period and time-outs while it looks slow itself. A
deadline that is served more than a period late (a stopped virtual machine) is such a sign too, and what it would have
judged is put off by the delay: nobody is accused of a silence in which we did not listen.

*Exchange*. Rumours miss some, and say nothing to those who come later. So two members exchange the whole state over a
stream: a new one with a seed, every member with a random one now and then (anti-entropy), and both sides of a healed
partition, found by pings to those held dead. DEAD from an exchange is only a suspicion of a member that is held alive:
otherwise the two halves of a healed partition would bury each other's members once more.

*Forgetting*. DEAD and LEFT are kept for a while, so that no late claim of an earlier life brings a member back. If
each counted that time from when it heard of the death, who joins later would hand on what the others have
forgotten, to whom he tells it again, and no member would ever be forgotten. So exchanges say how long ago it was, the
earliest time that anybody tells counts, and all forget at about the same time. What was gone for nine tenths of
its time is not learned any more: whoever did not know it may be who has just forgotten it.

*Return*. A process that starts again has incarnation 0 and a new boot id, and hears in its first exchange, or with the
answer to its first ping, what is held of its former life: a claim about itself, which it outranks.

The driver
----------
1. Give it what came: `receive` for each datagram that the codec accepted, `merge` for each frame of a stream. Read the
   sockets empty before `on_deadline`.
2. Call `on_deadline` at `next_deadline_ms` (None: it has left).
3. After either, do what `ready` says: send datagrams (one that cannot be sent is lost, and need not be told), open an
   exchange and end it with `exchange_ended`, tell the events. An exchange sends `snapshot` both ways.

Verdicts are hints. They may start an election or, after a delay, a move of replicas; they never fence: epochs do.
Datagrams are as trustworthy as the network that carries them; the codec refuses other clusters, not liars.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tpc_broker.limits import SWIM_RELAYS_MAX
from tpc_broker.model import NodeId
from tpc_broker.swim.lifeguard import LocalHealth, Suspicion
from tpc_broker.swim.members import Below, Member, Members
from tpc_broker.swim.model import (
    GONE,
    INCARNATION_MAX,
    Address,
    Change,
    Kind,
    MemberEvent,
    Message,
    NodeInfo,
    Ready,
    Sender,
    Settings,
    State,
    SwimStatistics,
    Update,
)
from tpc_broker.swim.rumours import Rumours, retransmissions_max

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID


_SEQUENCES: Final = 2**32
_DEFAULT_SETTINGS: Final = Settings()
_LEAVE_PERIODS: Final = 3
_NAMESAKE_CLAIMS: Final = 10
"""Claims by one other process under our id, each above our answer to the one before, that make a conflict."""
_LEARNED_PERCENT: Final = 90
"""Of the time that a member is remembered for after its end; who was gone for longer is not learned any more."""
_EXCHANGE_EVERY_MEMBERS: Final = 32
"""Up to so many members the interval of exchanges is as set; each doubling beyond adds another one."""


@dataclass(slots=True)
class _Probe:
    """The question of one period."""

    node: NodeId
    sequence: int
    indirect_ms: int
    """When others are asked."""
    is_answered: bool = False
    are_helpers_asked: bool = False
    helpers: set[NodeId] = field(default_factory=set)
    nacks: set[NodeId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Relay:
    """A ping for somebody else: whom to tell, under which sequence."""

    subject: NodeId
    origin: Address
    sequence: int
    nack_ms: int
    ends_ms: int


@dataclass(slots=True)
class _Counts:
    """The counters of `SwimStatistics`."""

    probes: int = 0
    probes_failed: int = 0
    suspicions: int = 0
    burials: int = 0
    refutations: int = 0
    datagrams_sent: int = 0
    datagrams_received: int = 0
    datagrams_ignored: int = 0
    exchanges: int = 0
    exchanges_failed: int = 0
    members_refused: int = 0


class Swim:
    """One node's part in the protocol.

    `below(n)` gives a random whole number in [0, n). `update_bytes` is what an update takes in a datagram and
    `header_bytes` what a datagram with that address takes without updates, at most: the codec's. Times are of one
    monotonic clock.
    """

    def __init__(  # noqa: PLR0913  who one is, the protocol's settings, and everything that it may not have by itself
        self,
        node: NodeId,
        info: NodeInfo,
        *,
        below: Below,
        update_bytes: Callable[[Update], int],
        header_bytes: Callable[[Address | None], int],
        now_ms: int,
        seeds: Sequence[Address] = (),
        settings: Settings = _DEFAULT_SETTINGS,
    ) -> None:
        self.node = node
        self.info = info
        self.incarnation = 0
        self.members = Members(below, settings.dead_retention_ms)
        self.health = LocalHealth(settings.local_health_max)
        self._settings = settings
        self._below = below
        self._update_bytes = update_bytes
        self._header_bytes = header_bytes
        self._rumours = Rumours(update_bytes)
        self._ready = Ready()
        self._counts = _Counts()
        self._sequence = below(_SEQUENCES)
        self._probe: _Probe | None = None
        self._relays: dict[int, _Relay] = {}
        self._timers: list[tuple[int, str, int]] = []
        """Suspicions to end, relays to answer or drop: (when, what, of whom). Never taken back: looked at when due."""
        self._period_ends_ms = now_ms + below(settings.period_ms)
        self._seeds = [seed for seed in seeds if seed != info.address]
        self._is_joined = not self._seeds
        self._join_ms = now_ms
        self._exchange_ms = now_ms + 1 + below(settings.exchange_interval_ms)
        self._exchange_ends_ms: int | None = None
        self._reconnect_ms = now_ms + 1 + below(settings.reconnect_interval_ms)
        self._reconnect_sequence: int | None = None
        self._news: NodeInfo | None = None
        self._news_ms = now_ms
        self._namesake: tuple[UUID, int] | None = None
        self._leave_ends_ms: int | None = None
        self._farewell_ms = now_ms
        self._farewells: set[int] = set()
        self._is_farewell_heard = False
        self.has_left = False
        self._announce()

    # What the driver gives.

    def receive(self, source: Address, message: Message, now_ms: int) -> None:
        """A datagram has come from `source`."""
        self._counts.datagrams_received += 1
        if self.has_left or message.sender.node == self.node:
            self._counts.datagrams_ignored += 1
            return
        for update in message.updates:
            self._apply(update, now_ms)
        match message.kind:
            case Kind.PING:
                self._on_ping(source, message)
            case Kind.ACK:
                self._on_ack(source, message, now_ms)
            case Kind.PING_REQ:
                self._on_ping_req(source, message, now_ms)
            case Kind.NACK:
                self._on_nack(message)

    def merge(self, updates: Iterable[Update], now_ms: int, *, is_answer: bool = False) -> None:
        """A part of another member's whole state has come over a stream, of one that began here if it `is_answer`.

        What a node that joins is answered is the whole cluster, and no news: it is not told on.
        """
        is_news = self._is_joined or not is_answer
        for update in updates:
            member = self.members.get(update.node)
            if update.state is State.DEAD and member is not None and member.state not in GONE:
                self._apply(Update(update.node, update.incarnation, State.SUSPECT, update.source), now_ms)
            else:
                self._apply(update, now_ms, is_news=is_news)

    def exchange_ended(self, now_ms: int, *, succeeded: bool) -> None:
        """The exchange that `ready` asked for is over."""
        self._exchange_ends_ms = None
        if succeeded:
            self._counts.exchanges += 1
            self._is_joined = True
        else:
            self._counts.exchanges_failed += 1
            self._join_ms = now_ms + self._settings.join_retry_ms

    def update_info(self, info: NodeInfo, now_ms: int) -> None:
        """Tell this of oneself from now on, or as soon as the last news are old enough."""
        assert info.boot_id == self.info.boot_id, "another boot is another process"
        self._news = None if info == self.info or self._leave_ends_ms is not None else info
        self._tell_news(now_ms)

    def leave(self, now_ms: int) -> None:
        """Say good-bye: to λ log n members at once, and again each period, until one has answered and will tell it on.

        LEAVE_DONE says that this is so, that nobody is there, or that nobody answered for three periods; then this
        node answers nothing any more.
        """
        if self._leave_ends_ms is None:
            self._leave_ends_ms = now_ms + _LEAVE_PERIODS * self._settings.period_ms
            self._news = None
            self._say_farewell(now_ms)
            self._leave_if_said(now_ms)

    def on_deadline(self, now_ms: int) -> None:
        """The time of `next_deadline_ms` has come; earlier is harmless."""
        if self.has_left:
            return
        self._forgive_own_pause(now_ms)
        self._serve_timers(now_ms)
        for member in self.members.outlived(now_ms):
            self._forget(member)
        if self._probe is not None and self._awaits_helpers(self._probe) and now_ms >= self._probe.indirect_ms:
            self._ask_helpers(self._probe, now_ms)
        if now_ms >= self._period_ends_ms:
            self._end_probe(now_ms)
            self._begin_probe(now_ms)
        self._serve_exchanges(now_ms)
        self._tell_news(now_ms)
        self._leave_if_said(now_ms)

    # What the driver asks.

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` is to be called; None when this node has left."""
        if self.has_left:
            return None
        due = [self._period_ends_ms, self._reconnect_ms]
        due.append(self._exchange_ms if self._is_joined else self._join_ms)
        if self._exchange_ends_ms is not None:
            due[-1] = self._exchange_ends_ms
        if self._probe is not None and self._awaits_helpers(self._probe):
            due.append(self._probe.indirect_ms)
        if self._timers:
            due.append(self._timers[0][0])
        if self.members.forget_ms is not None:
            due.append(self.members.forget_ms)
        if self._news is not None:
            due.append(self._news_ms)
        if self._leave_ends_ms is not None:
            due.append(min(self._leave_ends_ms, self._farewell_ms))
        return min(due)

    def ready(self) -> Ready:
        """What is to be done; each thing is given once."""
        given, self._ready = self._ready, Ready()
        return given

    def snapshot(self, now_ms: int) -> Iterator[Update]:
        """Everything held, this node first, every claim with its member's information: what an exchange sends."""
        yield self._own_update()
        for member in self.members:
            update = member.update(with_info=True)
            yield replace(update, gone_for_ms=max(0, now_ms - member.gone_ms)) if member.state in GONE else update

    def statistics(self) -> SwimStatistics:
        """Counts."""
        held, counts = self.members.counts, self._counts
        return SwimStatistics(
            alive=held[State.ALIVE] + (self._leave_ends_ms is None),
            suspect=held[State.SUSPECT],
            dead=held[State.DEAD],
            left=held[State.LEFT] + (self._leave_ends_ms is not None),
            local_health=self.health.score,
            rumours=len(self._rumours),
            is_joined=self._is_joined,
            incarnation=self.incarnation,
            **{name: getattr(counts, name) for name in _Counts.__slots__},
        )

    # Probing (SWIM 3.1; Lifeguard IV-A).

    def _begin_probe(self, now_ms: int) -> None:
        """Period and ack time-out are as long as the local health of this moment makes them."""
        self._period_ends_ms = now_ms + self.health.scaled(self._settings.period_ms)
        member = self.members.next_to_probe()
        if member is None:
            self._probe = None
            return
        self._counts.probes += 1
        indirect_ms = now_ms + self.health.scaled(self._settings.ack_timeout_ms)
        self._probe = _Probe(member.node, self._new_sequence(), indirect_ms)
        self._send(member.info.address, Kind.PING, self._probe.sequence, member.node, first=self._buddy(member))

    def _awaits_helpers(self, probe: _Probe) -> bool:
        return not (probe.is_answered or probe.are_helpers_asked)

    def _ask_helpers(self, probe: _Probe, now_ms: int) -> None:
        """PING_REQ to k members; each is to say NACK early enough that it comes within the period.

        However late this is, they have the rest of a period for it.
        """
        probe.are_helpers_asked = True
        member = self.members.get(probe.node)
        if member is None:
            return
        ack_timeout_ms = self.health.scaled(self._settings.ack_timeout_ms)
        rest_ms = self.health.scaled(self._settings.period_ms) - ack_timeout_ms
        self._period_ends_ms = max(self._period_ends_ms, now_ms + rest_ms)
        about = (member.info.address, ack_timeout_ms * 4 // 5)
        for helper in self.members.some_present(self._settings.helpers_count, probe.node):
            probe.helpers.add(helper.node)
            self._send(helper.info.address, Kind.PING_REQ, probe.sequence, probe.node, about=about)

    def _end_probe(self, now_ms: int) -> None:
        """No answer: the member is suspected. A helper that did not even say NACK speaks against ourselves."""
        probe, self._probe = self._probe, None
        if probe is None or probe.is_answered:
            return
        member = self.members.get(probe.node)
        if member is None or member.state in GONE:
            return
        self._counts.probes_failed += 1
        self.health.worse(2 if probe.helpers - probe.nacks else 1)
        self._apply(Update(member.node, member.incarnation, State.SUSPECT, self.node), now_ms)

    def _on_ping(self, source: Address, message: Message) -> None:
        """Answers who asks for this node, or for anybody. A stranger gets no news: a forged ping is answered small."""
        if message.subject not in (None, self.node):
            self._counts.datagrams_ignored += 1
            return
        self._send(source, Kind.ACK, message.sequence, self.node, first=self._correction(message.sender),
                   with_news=self.members.get(message.sender.node) is not None)  # fmt: skip

    def _on_ack(self, source: Address, message: Message, now_ms: int) -> None:
        probe, relay = self._probe, self._relays.get(message.sequence)
        if probe is not None and (probe.sequence, probe.node) == (message.sequence, message.subject):
            if not probe.is_answered:
                probe.is_answered = True
                self.health.better()
        elif relay is not None and relay.subject == message.subject:
            del self._relays[message.sequence]
            self._send(relay.origin, Kind.ACK, relay.sequence, relay.subject)
        elif message.sequence in self._farewells:
            self._is_farewell_heard = True
            self._leave_if_said(now_ms)
        elif message.sequence == self._reconnect_sequence:
            self._reconnect_sequence = None
            self._begin_exchange(source, now_ms)
        else:
            self._counts.datagrams_ignored += 1

    def _on_ping_req(self, source: Address, message: Message, now_ms: int) -> None:
        """Pings for another member. With a full table of relays we are a silent helper, and that is the truth."""
        is_stranger = self.members.get(message.sender.node) is None
        is_full = len(self._relays) >= SWIM_RELAYS_MAX
        if message.subject is None or message.address is None or is_stranger or is_full:
            self._counts.datagrams_ignored += 1
            return
        if message.subject == self.node:
            self._on_ping(source, message)
            return
        longest_ms = self._settings.period_ms * (self._settings.local_health_max + 1)
        nack_ms = now_ms + min(max(1, message.nack_after_ms), longest_ms)
        sequence = self._new_sequence()
        relay = _Relay(message.subject, source, message.sequence, nack_ms, nack_ms + self._settings.period_ms)
        self._relays[sequence] = relay
        heapq.heappush(self._timers, (nack_ms, "relay", sequence))
        heapq.heappush(self._timers, (relay.ends_ms, "relay", sequence))
        member = self.members.get(message.subject)
        self._send(message.address, Kind.PING, sequence, message.subject, first=self._buddy(member) if member else ())

    def _on_nack(self, message: Message) -> None:
        probe = self._probe
        if probe is not None and probe.sequence == message.sequence and message.sender.node in probe.helpers:
            probe.nacks.add(message.sender.node)
        else:
            self._counts.datagrams_ignored += 1

    # Claims (SWIM 4.2; Lifeguard IV-B).

    def _apply(self, update: Update, now_ms: int, *, is_news: bool = True) -> None:
        """Takes a claim over if it outranks what is held, and tells it on."""
        if update.node == self.node:
            self._answer_claim(update)
            return
        member = self.members.get(update.node)
        if member is None:
            self._welcome(update, now_ms, is_news=is_news)
            return
        if update.rank < member.rank:
            return
        if update.rank == member.rank and not _breaks_tie(update, member):
            if update.state is State.SUSPECT:
                self._confirm(member, update)
            elif update.state in GONE:
                self.members.gone_since(member, min(member.gone_ms, now_ms - update.gone_for_ms))
            return
        before, boot_before = member.state, member.info.boot_id
        member.incarnation, member.source = update.incarnation, update.source
        member.info = update.info or member.info
        self.members.set_state(member, update.state)
        self._rumours.add(update)
        self._enter(member, update, now_ms)
        for change in _changes(before, update.state, restarted=member.info.boot_id != boot_before):
            self._tell(change, member)

    def _welcome(self, update: Update, now_ms: int, *, is_news: bool) -> None:
        """A member that was not known. Without its information there is nothing to be held of it."""
        if update.info is None or self._is_nearly_forgotten(update):
            return
        if len(self.members) >= self._settings.members_max - 1:
            longest = self.members.longest_gone()
            if longest is None or update.state in GONE:
                self._counts.members_refused += 1
                return
            self._forget(longest)
        member = Member(update.node, update.info, update.incarnation, update.state, update.source)
        self.members.add(member)
        if update.state not in GONE:
            self._tell(Change.JOINED, member)
        if update.state is State.SUSPECT:
            self._tell(Change.SUSPECTED, member)
        if update.state not in GONE and is_news:
            self._rumours.add(update)
        self._enter(member, update, now_ms)

    def _enter(self, member: Member, update: Update, now_ms: int) -> None:
        """What a state begins with."""
        member.suspicion = None
        if update.state is State.SUSPECT:
            self._counts.suspicions += 1
            member.suspicion = Suspicion(now_ms, self.members.present_count + 1, self.health.score)
            member.suspicion.confirm(update.source, self._settings)
            heapq.heappush(self._timers, (member.suspicion.deadline_ms, "suspicion", member.node))
        elif update.state in GONE:
            self._counts.burials += update.state is State.DEAD and update.source == self.node
            self.members.gone_since(member, now_ms - update.gone_for_ms)

    def _confirm(self, member: Member, update: Update) -> None:
        """Another one suspects it independently: less time is left, and that is news."""
        if member.suspicion is not None and member.suspicion.confirm(update.source, self._settings):
            self._rumours.add(update)
            heapq.heappush(self._timers, (member.suspicion.deadline_ms, "suspicion", member.node))

    def _answer_claim(self, update: Update) -> None:
        """A claim about this node: refuted if it says anything but what this process says of itself.

        Only claims of the present incarnation or above matter. One above is of a former life, of which several may
        still be told, or of another process under the same id: that one refutes our answer in turn, for ever.
        """
        if self._leave_ends_ms is not None or update.incarnation < self.incarnation:
            return
        is_foreign = update.info is not None and update.info.boot_id != self.info.boot_id
        if update.state is State.ALIVE and not is_foreign and update.incarnation == self.incarnation:
            return
        if update.state in (State.SUSPECT, State.DEAD) and update.incarnation == self.incarnation:
            self._counts.refutations += 1
            self.health.worse()
        if update.state is State.ALIVE and is_foreign and update.info is not None:
            boot, times = self._namesake or (update.info.boot_id, 0)
            self._namesake = (update.info.boot_id, times + 1 if boot == update.info.boot_id else 1)
            if self._namesake[1] == _NAMESAKE_CLAIMS:
                event = MemberEvent(Change.CONFLICT, self.node, update.incarnation, update.info)
                self._ready.events.append(event)
        self.incarnation = min(update.incarnation + 1, INCARNATION_MAX)
        self._announce()

    def _buddy(self, member: Member) -> tuple[Update, ...]:
        """What a member must hear first when it is pinged: that it is suspected, or held dead (Lifeguard IV-C)."""
        return () if member.state is State.ALIVE else (member.update(),)

    def _correction(self, sender: Sender) -> tuple[Update, ...]:
        """What is held of a sender, if that is not what it says of itself and it has not outranked it."""
        member = self.members.get(sender.node)
        if member is None or member.incarnation < sender.incarnation:
            return ()
        is_same = member.incarnation == sender.incarnation and member.info.boot_id == sender.boot_id
        return () if is_same and member.state is State.ALIVE else (member.update(with_info=not is_same),)

    # Time.

    def _forgive_own_pause(self, now_ms: int) -> None:
        """A step of the probe more than a period late: what was to be judged waits as much longer.

        There is always such a step to come, while other deadlines may be long past when they begin to count.
        """
        probe = self._probe
        due_ms = self._period_ends_ms if probe is None or not self._awaits_helpers(probe) else probe.indirect_ms
        late_ms = now_ms - due_ms
        if late_ms <= self.health.scaled(self._settings.period_ms):
            return
        self.health.worse()
        if probe is not None and not probe.is_answered:
            self._period_ends_ms += late_ms
            probe.indirect_ms += late_ms
        for member in self.members:
            suspicion = member.suspicion
            if suspicion is not None and suspicion.started_ms < now_ms - late_ms:
                suspicion.started_ms += late_ms
                suspicion.deadline_ms += late_ms
                heapq.heappush(self._timers, (suspicion.deadline_ms, "suspicion", member.node))

    def _serve_timers(self, now_ms: int) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            _due_ms, what, key = heapq.heappop(self._timers)
            if what == "relay":
                self._serve_relay(key, now_ms)
                continue
            member = self.members.get(NodeId(key))
            if member is None:
                continue
            if member.suspicion is not None and member.suspicion.deadline_ms <= now_ms:
                self._apply(Update(member.node, member.incarnation, State.DEAD, self.node), now_ms)

    def _serve_relay(self, sequence: int, now_ms: int) -> None:
        relay = self._relays.get(sequence)
        if relay is None:
            return
        if relay.ends_ms <= now_ms:
            del self._relays[sequence]
        elif relay.nack_ms <= now_ms:
            self._send(relay.origin, Kind.NACK, relay.sequence, relay.subject)

    def _is_nearly_forgotten(self, update: Update) -> bool:
        return update.gone_for_ms * 100 > self._settings.dead_retention_ms * _LEARNED_PERCENT

    def _forget(self, member: Member) -> None:
        self.members.remove(member)
        self._rumours.forget(member.node)
        self._tell(Change.FORGOTTEN, member)

    # Exchanges: joining, anti-entropy, healed partitions.

    def _serve_exchanges(self, now_ms: int) -> None:
        if self._exchange_ends_ms is not None and now_ms >= self._exchange_ends_ms:
            self.exchange_ended(now_ms, succeeded=False)
        if not self._is_joined and now_ms >= self._join_ms:
            self._join_ms = now_ms + self._settings.join_retry_ms
            self._begin_exchange(self._seeds[self._below(len(self._seeds))], now_ms)
        elif self._is_joined and now_ms >= self._exchange_ms:
            self._exchange_ms = now_ms + self._exchange_interval_ms()
            for member in self.members.some_present(1, suspects=True):
                self._begin_exchange(member.info.address, now_ms)
        if now_ms >= self._reconnect_ms:
            self._reconnect_ms = now_ms + self._settings.reconnect_interval_ms
            self._reconnect()

    def _exchange_interval_ms(self) -> int:
        """Longer in a large cluster: what one node has to take in of others' exchanges stays bearable."""
        doublings = math.log2((self.members.present_count + 1) / _EXCHANGE_EVERY_MEMBERS)
        return self._settings.exchange_interval_ms * (1 + max(0, math.ceil(doublings)))

    def _begin_exchange(self, address: Address, now_ms: int) -> None:
        """One at a time: another one begins when this has ended, or is due again."""
        if self._exchange_ends_ms is None and self._leave_ends_ms is None:
            self._exchange_ends_ms = now_ms + self._settings.exchange_timeout_ms
            self._ready.exchanges.append(address)

    def _reconnect(self) -> None:
        """Pings somebody who may be on the other side of a partition: one held dead, or a seed where nobody is known.

        The answer begins an exchange. Only this node does that, not everybody who hears of the return.
        """
        dead = self.members.some_dead()
        known = {member.info.address for member in self.members if member.state not in GONE}
        lost = [seed for seed in self._seeds if seed not in known]
        choice = self._below((dead is not None) + len(lost)) if dead is not None or lost else None
        if choice is None:
            return
        self._reconnect_sequence = self._new_sequence()
        if dead is not None and choice == len(lost):
            self._send(dead.info.address, Kind.PING, self._reconnect_sequence, dead.node, first=self._buddy(dead))
        else:
            self._send(lost[choice], Kind.PING, self._reconnect_sequence, None)

    # Telling.

    @property
    def _retransmissions(self) -> int:
        return retransmissions_max(self._settings.retransmit_lambda, self.members.present_count + 1)

    def _own_update(self) -> Update:
        state = State.ALIVE if self._leave_ends_ms is None else State.LEFT
        return Update(self.node, self.incarnation, state, self.node, self.info)

    def _announce(self) -> None:
        self._rumours.add(self._own_update())

    def _tell_news(self, now_ms: int) -> None:
        if self._news is not None and now_ms >= self._news_ms:
            self.info, self._news = self._news, None
            members_count = self.members.present_count + 1
            self._news_ms = now_ms + self._settings.info_interval_ms_per_member * members_count
            self.incarnation = min(self.incarnation + 1, INCARNATION_MAX)
            self._announce()

    def _say_farewell(self, now_ms: int) -> None:
        self._announce()
        self._farewell_ms = now_ms + self._settings.period_ms
        for member in self.members.some_present(self._retransmissions, suspects=True):
            sequence = self._new_sequence()
            self._farewells.add(sequence)
            self._send(member.info.address, Kind.PING, sequence, member.node, first=(self._own_update(),))

    def _leave_if_said(self, now_ms: int) -> None:
        if self._leave_ends_ms is None or self.has_left:
            return
        if now_ms >= self._farewell_ms:
            self._say_farewell(now_ms)
        if self._is_farewell_heard or now_ms >= self._leave_ends_ms or not self.members.present_count:
            self.has_left = True
            self._ready.events.append(MemberEvent(Change.LEAVE_DONE, self.node, self.incarnation, self.info))

    def _tell(self, change: Change, member: Member) -> None:
        self._ready.events.append(MemberEvent(change, member.node, member.incarnation, member.info))

    def _new_sequence(self) -> int:
        self._sequence = (self._sequence + 1) % _SEQUENCES
        return self._sequence

    def _send(  # noqa: PLR0913  the fields of a datagram
        self,
        target: Address,
        kind: Kind,
        sequence: int,
        subject: NodeId | None,
        *,
        first: tuple[Update, ...] = (),
        about: tuple[Address | None, int] = (None, 0),
        with_news: bool = True,
    ) -> None:
        """A datagram with `first`, then with as many rumours as there is room for."""
        updates = list(first)
        if with_news:
            taken_bytes = self._header_bytes(about[0]) + sum(map(self._update_bytes, first))
            rumours = self._rumours.take(self._settings.datagram_bytes_max - taken_bytes, self._retransmissions)
            updates += [update for update in rumours if update not in first]
        sender = Sender(self.node, self.incarnation, self.info.boot_id)
        message = Message(kind, sender, sequence, subject, *about, tuple(updates))
        self._counts.datagrams_sent += 1
        self._ready.datagrams.append((target, message))


def _breaks_tie(update: Update, member: Member) -> bool:
    """Two processes claim one id with one incarnation: all members choose the same of them, by its boot id."""
    return (
        update.state is State.ALIVE and update.info is not None and update.info.boot_id.int > member.info.boot_id.int
    )


def _changes(before: State, after: State, *, restarted: bool) -> tuple[Change, ...]:
    """What the driver is told of a claim that was taken over; nothing of a death told to be a farewell after all.

    A suspicion may be the first that is heard of a return or of another boot: that is told before it.
    """
    if after in GONE:
        return () if before in GONE else (Change.DIED if after is State.DEAD else Change.LEFT,)
    came = Change.JOINED if before in GONE else Change.RESTARTED if restarted else None
    if after is State.ALIVE:
        return (came or (Change.CLEARED if before is State.SUSPECT else Change.CHANGED),)
    if came is not None:
        return came, Change.SUSPECTED
    return (Change.SUSPECTED,) if before is State.ALIVE else ()
