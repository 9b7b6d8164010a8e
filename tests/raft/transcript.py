"""Whole clusters as text: a transcript is a list of commands and what came of each, to be read, and to be made anew.

A file under `tests/raft/transcripts` holds blocks: a command, a line ``----``, what happened, an empty line. Lines that
begin with ``#`` explain. `play` carries the commands out and gives the text as it should be; with
``TPC_REWRITE_TRANSCRIPTS=1`` the test writes that into the file, and `git diff` shows what changed.

    cluster N [of M]     N nodes; the group's voters are the first M, or all
    lead N               node N becomes the leader
    run MS               time passes
    propose N K          K batches of one record each, at node N
    cut N [M]            N and M (or N and everybody) hear each other no more;   heal   all do
    crash N, restart N   only what is durable stays
    hold N, persist N    nothing more becomes durable at N; all of it does, as from now on
    fail N, reopen N     the journal of N fails, and is opened again
    learners A B         at the leader;   voters A B   the same, a change of voters
    transfer N           at the leader;   abort   the change under way
    read N               a read by read index at node N
    status               every node: role, term, last and durable and commit positions, configuration
    log N                the items of node N

What is told after a command: who became leader or stopped being one, what was committed, cut, refused, read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import NodeId
from tpc_broker.raft.items import Config, Item, Marker, Position, Voter
from tpc_broker.raft.output import (
    Accepted,
    ChangeAborted,
    Committed,
    ConfigCommitted,
    Event,
    LogCut,
    ReadFailed,
    ReadReady,
    Refusal,
    Role,
    RoleChanged,
)


def position(of: Position) -> str:
    return f"({of.epoch}, {of.offset})"


def members(voters: Iterable[Voter]) -> str:
    return "{" + " ".join(str(voter.node) for voter in sorted(voters)) + "}"


def config_of(config: Config | None) -> str:
    if config is None:
        return "no configuration"
    return members(config.old) if not config.is_joint else f"{members(config.old)}->{members(config.new)}"


def item(of: Item) -> str:
    if isinstance(of, Marker):
        return f"marker {of.epoch} at {of.end_offset}, {config_of(of.config)}"
    return f"batch {of.epoch} [{of.base_offset}, {of.end_offset})"


def event(of: Event) -> str | None:
    """One line; None for what is not told."""
    match of:
        case RoleChanged(role=Role.LEADER, term=term):
            return f"leads term {term}"
        case RoleChanged(role=role, term=term, leader=leader):
            return f"{role.value} in term {term}" + (f", follows {leader.node}" if leader is not None else "")
        case Committed(position=where):
            return f"committed {position(where)}"
        case LogCut(position=where):
            return f"cut at {position(where)}"
        case ConfigCommitted(config=config, removed=removed):
            return f"configuration {config_of(config)} committed" + (f", removed {members(removed)}" if removed else "")
        case ChangeAborted(target=target):
            return f"change to {members(target)} given up"
        case ReadReady(tokens=tokens, offset=offset):
            return f"read {', '.join(map(str, tokens))} may show what is below {offset}"
        case ReadFailed(tokens=tokens):
            return f"read {', '.join(map(str, tokens))} failed"
    return None


class Player:
    """Carries out commands on one cluster."""

    def __init__(self) -> None:
        self.cluster = Cluster(0, groups=0)
        self._reads = 0

    def play(self, command: str) -> list[str]:
        """What came of it, as lines."""
        words = command.split()
        told = getattr(self, f"do_{words[0]}")(*words[1:]) or []
        self.cluster.settle()
        return [*told, *self._events()]

    def _events(self) -> list[str]:
        lines = []
        for node in self.cluster.nodes:
            told = [event(one) for one in node.events]
            node.events.clear()
            lines += [f"{node.address.node}: {line}" for line in told if line is not None]
        return lines

    def _node(self, number: str) -> Node:
        return self.cluster.nodes[int(number)]

    def _leader(self) -> Node:
        return self.cluster.elect()

    def do_cluster(self, count: str, *of: str) -> None:
        self.cluster = Cluster(int(count), groups=0)
        voters = range(int(of[1]) if of else int(count))
        self.cluster.create(GROUP, voters, range(len(voters), int(count)))

    def do_lead(self, number: str) -> None:
        self.cluster.hand_to(int(number))

    def do_run(self, milliseconds: str) -> None:
        self.cluster.run(int(milliseconds))

    def do_propose(self, number: str, count: str) -> list[str]:
        node = self._node(number)
        try:
            found: Accepted | Refusal = self.cluster.propose(node, int(count))
        except AssertionError as refused:
            (found,) = refused.args
        if isinstance(found, Accepted):
            return [f"{number}: takes them, up to {position(found.position)}"]
        return [f"{number}: refuses: {found.value}"]

    def do_cut(self, number: str, other: str | None = None) -> None:
        if other is None:
            self.cluster.isolate(int(number))
        else:
            self.cluster.block(int(number), int(other))
            self.cluster.block(int(other), int(number))

    def do_heal(self) -> None:
        self.cluster.heal()

    def do_crash(self, number: str) -> None:
        self._node(number).crash()

    def do_restart(self, number: str) -> None:
        self._node(number).restart()

    def do_hold(self, number: str) -> None:
        self._node(number).persists = False

    def do_persist(self, number: str) -> None:
        self._node(number).persists = True

    def do_fail(self, number: str) -> None:
        self._node(number).fail_journal()

    def do_reopen(self, number: str) -> None:
        self._node(number).persists = True
        self._node(number).reopen_journal()

    def _voters(self, numbers: Iterable[str]) -> list[Voter]:
        return [Voter(NodeId(int(number)), 0) for number in numbers]

    def _refused(self, refusal: Refusal | None) -> list[str]:
        return [] if refusal is None else [f"refused: {refusal.value}"]

    def do_learners(self, *numbers: str) -> list[str]:
        core = self._leader().core
        return self._refused(core.set_learners(GROUP, self._voters(numbers), self.cluster.now_ms))

    def do_voters(self, *numbers: str) -> list[str]:
        core = self._leader().core
        return self._refused(core.change_voters(GROUP, self._voters(numbers), self.cluster.now_ms))

    def do_abort(self) -> None:
        led = max((node for node in self.cluster.nodes if node.up and node.group().is_leader),
                  key=lambda node: node.group().term)  # fmt: skip
        led.core.abort_change(GROUP, self.cluster.now_ms)

    def do_transfer(self, number: str) -> list[str]:
        (target,) = self._voters([number])
        return self._refused(self._leader().core.transfer_leadership(GROUP, target, self.cluster.now_ms))

    def do_read(self, number: str) -> list[str]:
        self._reads += 1
        return self._refused(self._node(number).core.read_index(GROUP, self._reads, self.cluster.now_ms))

    def do_status(self) -> list[str]:
        lines = []
        for node in self.cluster.nodes:
            if not node.up:
                lines.append(f"{node.address.node}: down")
                continue
            of = node.group()
            lines.append(
                f"{node.address.node}: {of.role.value} term {of.term} last {position(of.log.last)} "
                f"durable {position(of.durable)} commit {position(of.commit)} {config_of(of.config)}"
            )
        return lines

    def do_log(self, number: str) -> list[str]:
        return [f"{number}: {item(one)}" for one in self._node(number).group().log.items]


def play(text: str) -> str:
    """The transcript as it is when its commands are carried out now."""
    player, made = Player(), []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        if "----" in commands:
            commands = commands[: commands.index("----")]
        told = [line for command in commands for line in player.play(command)]
        made.append("\n".join([*comments, *commands, *(["----", *(told or ["nothing"])] if commands else [])]))
    return "\n\n".join(made) + "\n"


def transcripts() -> list[Path]:
    return sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
