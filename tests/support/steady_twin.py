"""C as a leader in the steady state, beside the machine that it is held equal to (`raft.steady.Steady`)."""

from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches
from tests.support.steady_peers import ACK, APPEND, INCARNATION, OWN, TERM, entry, frame
from tpc_broker.engine.steady_plane import SteadyPeerState
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.raft.steady import NONE, OWN_BIT, Input, Outcome, PeerState, Steady, SteadyPeer, SteadyRole

UNBOUNDED = 1 << 40


def ends_of(log):
    return max((one["base_offset"] + one["last_offset_delta"] + 1 for one in read_batches(log)), default=None)


class LeaderTwin:
    """C and `Steady` as leader of the same log, with peers by hand. `own`: whether the leader votes; `silent`: peers
    that nothing is sent to.
    """

    def __init__(self, bench, steady, handle, chance):
        self.bench, self.steady, self.handle, self.chance = bench, steady, handle, chance
        self.count = chance.randint(1, 4)
        self.peers = [steady.adopt(node + 1) if chance.random() < 0.8 else None for node in range(self.count)]
        bench.plane.arm(handle, TERM)
        rows = [
            SteadyPeerState(0, INCARNATION, NONE, 0, 0, votes=True)
            if peer is None
            else SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True)
            for peer in self.peers
        ]
        assert steady.steady_lead(handle, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
        twins = [SteadyPeer() for _ in self.peers]
        for twin, peer in zip(twins, self.peers, strict=True):
            twin.state = PeerState.PROBE if peer is None else PeerState.REPLICATE
            twin.match = twin.known = twin.told = NONE if peer is None else 0
        voters = OWN_BIT | ((1 << self.count) - 1)
        self.twin = Steady(SteadyRole.LEADER, TERM, 0, 0, 0, 0, twins, voters, voters, 1 << 30, UNBOUNDED)
        self.received = [0] * self.count
        self.ends = [0]
        self.said = 0

    def append(self):
        for _ in range(self.chance.randint(1, 3)):
            size = self.chance.choice([10, 500, 5_000, 20_000])
            made = self.bench.plane.append(self.handle, records_of(self.chance.randint(1, 3), value=bytes(size)))
            assert made.error_code == E.NONE
            self.twin.step(Input.APPEND, made.next_offset)
            self.ends.append(made.next_offset)

    def acknowledge(self):
        number = self.chance.randrange(self.count)
        if self.peers[number] is None:
            return
        # Whole batches; also of what it was sent before it was asked again.
        offset = self.chance.choice([end for end in self.ends if end <= self.received[number]])
        term = self.chance.choice([TERM, TERM, TERM, TERM - 1])
        commit = self.chance.randint(NONE, max(NONE, self.twin.commit_offset))
        is_late = offset > self.twin.peers[number].next
        if is_late:  # then `next` rises: what left before that has to be heard
            self.arrive()
        self.peers[number].say(frame(ACK, entry(offset, commit, term=term)))
        self.twin.step(Input.ACK, number, term, term, offset, commit)
        self.said += term == TERM
        if is_late:
            self.arrive()

    def durable(self):
        self.bench.settle()
        self.twin.step(Input.DURABLE, self.bench.plane.state(self.handle).durable_offset)

    def ask(self):
        """Whoever owes an answer is asked again: at once, however often it was."""
        self.meet()
        asked = self.steady.steady_ask_again(1 << 62, 0)
        lacking = [n for n, row in enumerate(self.twin.peers) if self.peers[n] is not None and row.match < row.next]
        assert [one.peer for one in asked] == lacking
        assert [one.offset for one in asked] == [self.twin.peers[number].match for number in lacking]
        for number in range(self.count):
            self.twin.step(Input.SILENT, number)

    def meet(self):
        """Everything that is under way has arrived, and both are the same."""
        self.durable()
        self.arrive()
        state = self.steady.steady_state(self.handle)
        twin = self.twin
        assert (state.end_offset, state.durable_offset) == (twin.end_offset, twin.durable_offset)
        assert state.commit_offset == twin.commit_offset
        for row, other, peer in zip(state.peers, twin.peers, self.peers, strict=True):
            if peer is not None:
                assert (row.match, row.next, row.known) == (other.match, other.next, other.known)
        have = [state.durable_offset, *(row.match for row in state.peers)]
        assert sum(offset >= state.commit_offset for offset in have) * 2 > len(have)

    def arrive(self):
        self.bench.until(lambda: self.steady.steady_statistics()["acks_taken"] == self.said)
        self.bench.until(self._all_is_sent)

    def _all_is_sent(self):
        for number, peer in enumerate(self.peers):
            if peer is None:
                continue
            for kind, offset, commit, batches in peer.heard():
                assert kind == APPEND
                assert commit <= self.twin.commit_offset
                if batches:
                    assert self.twin.step(Input.SEND, number) is Outcome.SEND
                    assert offset == self.twin.peers[number].next
                    end_offset = ends_of(batches)
                    self.received[number] = max(self.received[number], end_offset)
                    self.twin.step(Input.SENT, number, end_offset, len(batches))
                else:
                    assert offset == self.twin.peers[number].next
        return all(
            peer is None or self.twin.step(Input.SEND, number) is not Outcome.SEND
            for number, peer in enumerate(self.peers)
        )
