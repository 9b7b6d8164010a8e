"""Links to the cores of other nodes: who was heard lately, under which boot id, and how much is under way.

Theory of operation
-------------------
Groups are many and links are few, so whatever costs per time is the links': a heartbeat of each link every 100 ms,
and one look at each link per tick. A group asks its leader's link whether the leader is *fresh* (raft-rules 3.5): heard
within 1-1.5 s, and under the boot id under which this leader was accepted. A core restarts in less than that and has
forgotten whom it led, so without the boot id its groups would follow a leader that does not know it for ever.

A heartbeat vouches for the core and not for a group: a leader that gives a group up says so (`Resign`), and heartbeats
repeat it for `resign_repeat_ms`, which is longer than it takes a link to be called silent: either the news arrives,
or the silence does the same.

Heartbeats may be said in the machine's place (`Vouching`), over another connection: then the machine sends its own only
now and then, and looks at who was heard so before it calls a link silent. That connection says nothing of
resignations, so a core that has one to repeat is not vouched for meanwhile, nor to whom its own frames do not get. A
core that is not heard is not told so either: both ends go back to the machine's heartbeats.

A silence that was noticed ends when something is heard, and by nothing else: not by patience that has grown meanwhile.
A group that was told of it (a leader sends nothing there, a follower may wait for a quorum) is told when the link is
heard again, and if it were fresh by then nobody would be told.

Frames of an earlier start of a core may arrive after those of a later one, also at a core that has just started
itself and remembers nothing. So boot ids rise from start to start, and a lower one than was heard neither refreshes
the link nor looks like one more start. A node with an empty disk counts anew, from a clock that may be behind: whoever
knows that it is another one (`RaftCore.another_life`) compares with nothing that was heard before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.raft.items import Address, GroupId
    from tpc_broker.raft.settings import Settings


BEFORE_ANY: Final = -1
"""Below every boot id."""
VOUCHED_EARLY_SHARE: Final = 0.3
"""Of what lies between two such heartbeats: a little more than a driver's round of half a second."""


def jitter(below: int, *parts: int) -> int:
    """A number in [0, below) that is the same for the same parts, and as good as chance for others."""
    mixed = 0
    for part in parts:  # a multiplicative hash, one round per part
        mixed = (mixed ^ part) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed % below if below > 0 else 0


@dataclass(frozen=True)
class LinkStatistics:
    address: Address
    boot_id: int | None
    is_fresh: bool
    inflight_bytes: int
    boots_seen: int


# Rule: Heartbeats that C sends promise no more than the machine's: there are none while a leadership that was given up
# is repeated, or while the machine's own connection is down. A silence that nobody looked at is a silence. Why:
# docs/decisions/2026-11-23-steady-state-in-c.md. See also native/replication/steady_beats.c,
# tpc_broker/node/replicas/beats.py. Held by tests/raft/test_vouching.py, tests/engine/test_steady.py,
# tests/node/test_replica_driver.py.
class Vouching:
    """Says in the machine's place that it is there, and hears others say it. This one does neither."""

    def begin(self, address: Address) -> bool:
        """Say it to a core from now on; False: that cannot be done now."""
        del address
        return False

    def end(self, address: Address) -> None:
        """Say it no more."""

    def late_ms(self) -> int:
        """How much later than it should have been this was said at worst since the last call."""
        return 0

    def busy_ms(self) -> int | None:
        """What this core has run and waited for a CPU so far; None: nobody knows."""
        return None

    def heard(self, address: Address, boot_id: int) -> tuple[int, int] | None:
        """Since when a core's machine, of this start of it, was heard without a gap, and when last. None: never."""
        del address, boot_id
        return None


class Link:
    """What one core knows of another. `heard_elsewhere`: `Vouching.heard` of it."""

    __slots__ = (
        "address",
        "boot_id",
        "has_tried",
        "heard_elsewhere",
        "heard_ms",
        "inflight_bytes",
        "inflight_bytes_max",
        "is_vouched",
        "mute",
        "next_heartbeat_ms",
        "number",
        "silent_after_ms",
        "silent_jitter_ms",
        "starts_seen",
        "told_ms",
        "try_ms",
        "trying",
        "waiting",
        "was_fresh",
    )

    def __init__(self, address: Address, settings: Settings, own_boot_id: int, now_ms: int) -> None:
        self.address = address
        self.boot_id: int | None = None
        self.starts_seen = 0
        self.heard_ms: int | None = None
        self.silent_jitter_ms = jitter(settings.link_silent_jitter_ms, own_boot_id, *address)
        self.silent_after_ms = settings.link_silent_ms + self.silent_jitter_ms
        self.told_ms = 0
        """So long its core wants to be waited for."""
        self.was_fresh = False
        self.heard_elsewhere: Callable[[int], tuple[int, int] | None] = lambda _boot_id: None
        self.is_vouched = False
        """To the other end it is said in the machine's place that this core is there."""
        self.next_heartbeat_ms = now_ms
        self.number = 0
        self.inflight_bytes = 0
        self.inflight_bytes_max = settings.link_inflight_bytes_max
        self.waiting: dict[GroupId, None] = {}
        """Groups that have something to send and found no room."""
        self.mute: dict[GroupId, None] = {}
        """Groups whose peer there takes nothing (`mute_peers`), those that are to ask next in front ..."""
        self.trying: GroupId | None = None
        """... the one of them that may send it something ..."""
        self.has_tried = False
        """... whether there was one in this round ..."""
        self.try_ms = now_ms
        """... and when the next round begins."""

    def is_fresh(self, now_ms: int) -> bool:
        """Heard lately, and not called silent since."""
        if self.heard_ms is None or not self.was_fresh:
            return False
        if now_ms - self.heard_ms >= self.silent_after_ms:
            self.look()
        return now_ms - self.heard_ms < self.silent_after_ms

    def be_patient(self, milliseconds: int) -> None:
        """So long it may be silent, or for as long as its core wants to be waited for."""
        self.silent_after_ms = max(milliseconds, self.told_ms) + self.silent_jitter_ms

    def heartbeat_every_ms(self, settings: Settings) -> int:
        """Between two of the machine's own."""
        return settings.vouched_heartbeat_ms if self.is_vouched else settings.heartbeat_ms

    def heartbeat_may_leave(self, settings: Settings, now_ms: int) -> bool:
        """When it is due; a rare one also somewhat before, with whatever is done then: it costs no turn of its own."""
        early_ms = int(settings.vouched_heartbeat_ms * VOUCHED_EARLY_SHARE) if self.is_vouched else 0
        return now_ms >= self.next_heartbeat_ms - early_ms

    def look(self) -> None:
        """Learn of what was heard elsewhere, of a link that was never silent in between."""
        if self.heard_ms is None or self.boot_id is None or not self.was_fresh:
            return
        found = self.heard_elsewhere(self.boot_id)
        if found is not None and found[0] < self.heard_ms + self.silent_after_ms:
            self.heard_ms = max(self.heard_ms, found[1])

    def has_turned(self, now_ms: int) -> bool:
        """In each tick: whether it has fallen silent since the last one, or is heard again elsewhere; `was_fresh` says
        which. Whoever was not looked at lately is, so that all links are looked at in one tick.
        """
        if self.heard_ms is None or self.boot_id is None:
            return False
        if not self.was_fresh:
            return self._is_back(self.boot_id, self.heard_ms, now_ms)
        if now_ms - self.heard_ms >= self.silent_after_ms // 2:
            self.look()
        self.was_fresh = self.is_fresh(now_ms)
        return not self.was_fresh

    def _is_back(self, boot_id: int, heard_ms: int, now_ms: int) -> bool:
        found = self.heard_elsewhere(boot_id)
        if found is not None and found[1] > heard_ms and now_ms - found[1] < self.silent_after_ms:
            self.heard_ms, self.was_fresh = found[1], True
        return self.was_fresh

    def forget(self) -> None:
        """Nobody listens there: not fresh, until it is heard again."""
        self.heard_ms, self.was_fresh = None, False

    def forget_life(self) -> None:
        """Any boot id is a later one than those that were heard."""
        if self.boot_id is not None:
            self.boot_id = BEFORE_ANY

    @property
    def silent_at_ms(self) -> int | None:
        """When it will be called silent; None if it is already."""
        return self.heard_ms + self.silent_after_ms if self.was_fresh and self.heard_ms is not None else None

    def has_room(self) -> bool:
        return self.inflight_bytes < self.inflight_bytes_max

    def hear(self, boot_id: int, now_ms: int) -> bool:
        """A frame has come. True if its sender was silent (perhaps without a tick that noticed it), or has started anew
        since the last one.
        """
        if self.boot_id is not None and boot_id < self.boot_id:
            return False
        anew = boot_id != self.boot_id or not self.is_fresh(now_ms)
        self.starts_seen += boot_id != self.boot_id
        self.boot_id = boot_id
        self.heard_ms, self.was_fresh = now_ms, True
        return anew

    def statistics(self, now_ms: int) -> LinkStatistics:
        return LinkStatistics(self.address, self.boot_id, self.is_fresh(now_ms), self.inflight_bytes, self.starts_seen)
