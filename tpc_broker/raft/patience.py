"""How long a core may be silent before others take its place: longer where cores stand still now and then.

Theory of operation
-------------------
A core with little CPU has long steps: with a tenth of a CPU, 0.2 s of work are two seconds in which it says nothing.
If those are taken for its end, all that it led is elected anew; what that takes are long steps again, of all cores,
and nobody is ever led for good. No fixed time is long enough for every share of a CPU.

So a core notes how late it was to say that it is there, and says with its heartbeats how long it wants to be waited
for: some times that, no more than twice as long as before each time, and less again when it was not needed for minutes.
It grants as much to others, for it hears them late as well. Who is cut off or dead was not late, and is missed as soon
as ever. Nor was who was stopped (SIGSTOP, a debugger): only what a core ran and waited for a CPU says how long its
steps take.

Long steps may be rare, and answers quick in between. So a campaign has longer only where campaigns were given up for
want of answers: twice as long after each such time, as long as there are late cores (`leisure`), and half as long when
they are over soon again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.raft.items import Address, GroupId
    from tpc_broker.raft.links import Link
    from tpc_broker.raft.settings import Settings

TIMES_LATE: Final = 4
"""An answer is there after some turns of both ends, each as long as the one that was late."""
LEISURE_KEPT: Final = 8
"""Times as long as a campaign has, or as this core wants to be waited for: so long without another campaign that was
given up it stays so.
"""


# Rule: A core that stands still now and then is waited for, so groups come to rest with any share of a CPU. A core that
# is cut off or dead is missed as soon as ever, and a silence that was noticed ends only when something is heard. Why:
# docs/decisions/2026-11-26-cores-that-stand-still.md. See also tpc_broker/raft/links.py. Held by
# tests/raft/test_patience.py (cores whose turns take as long as their work).
class Patience:
    """Of one core with these links. `ms`: how long it wants to be waited for, and waits for others at least.
    `slowness`: how many times as long as usual who is waited for longest. `leisure`: the same of a campaign.
    """

    def __init__(self, settings: Settings, links: Mapping[Address, Link]) -> None:
        self._least, self._most = settings.link_silent_ms, settings.link_silent_ms_max
        self._kept_ms = settings.patience_kept_ms
        self._links = links
        self._campaign_ms = settings.election_timeout_ms
        self.ms = self._least
        self.slowness = self.leisure = 1
        self._longer_since_ms = 0
        self.promised_ms: int | None = None
        """When this core is to say that it is there at the latest, where it says so itself."""
        self._needed_ms = 0
        self._busy_every_ms = settings.heartbeat_ms
        self._busy_ms: int | None = None
        self._busy_asked_ms = 0

    def look(self, late_ms: int, now_ms: int, busy_ms: Callable[[], int | None] = lambda: None) -> None:
        """What says so in its place was so late at worst since the last look. `busy_ms`: of `Vouching`."""
        promised_ms, self.promised_ms = self.promised_ms, None
        own_late_ms = 0
        if promised_ms is not None and not all(link.is_vouched for link in self._links.values()):
            own_late_ms = now_ms - promised_ms
        if now_ms - self._busy_asked_ms >= self._busy_every_ms:  # always when it is late by more than that
            before_ms, self._busy_ms, self._busy_asked_ms = self._busy_ms, busy_ms(), now_ms
            if before_ms is not None and self._busy_ms is not None:
                own_late_ms = min(own_late_ms, self._busy_ms - before_ms)
        late_ms = max(late_ms, own_late_ms)
        kept_ms = LEISURE_KEPT * max(self.leisure * self._campaign_ms, self.ms)
        if self.leisure > 1 and now_ms - self._longer_since_ms >= kept_ms:
            self._longer_since_ms = now_ms
            self.leisure //= 2
        before = self.ms
        self._adapt(min(TIMES_LATE * late_ms, self._most), now_ms)
        if self.ms != before:
            self._tell_links()
            for link in self._links.values():
                link.next_heartbeat_ms = now_ms

    def _adapt(self, wanted: int, now_ms: int) -> None:
        if 2 * wanted > self.ms:
            self._needed_ms = now_ms
        if wanted > self.ms:
            self.ms = min(wanted, 2 * self.ms)
        elif self.ms > self._least and now_ms - self._needed_ms >= self._kept_ms:
            self._needed_ms = now_ms
            self.ms = max(self._least, self.ms // 2)

    def told(self, link: Link, silent_ms: int) -> None:
        """How long a core wants to be waited for, by its heartbeat."""
        if silent_ms != link.told_ms:
            link.told_ms = min(silent_ms, self._most)
            self._tell_links()

    def _tell_links(self) -> None:
        longest = self.ms
        for link in self._links.values():
            link.be_patient(self.ms)
            longest = max(longest, link.told_ms)
        self.slowness = -(-longest // self._least)
        self.leisure = min(self.leisure, self.slowness)

    def not_elected(self, now_ms: int) -> None:
        """A campaign was given up: many are at once, which counts as one."""
        if now_ms - self._longer_since_ms >= self.leisure * self._campaign_ms:
            self._longer_since_ms = now_ms
            self.leisure = min(2 * self.leisure, self.slowness)

    def elected(self, took_ms: int) -> None:
        """One is over after so long."""
        if 4 * took_ms < self.leisure * self._campaign_ms:
            self.leisure = max(1, self.leisure // 2)


class Resignations:
    """What heartbeats repeat of leaderships that were given up: all of them for a while. Where links may be silent for
    longer than that, also now and then until such a silence is over in any case.
    """

    def __init__(self, settings: Settings) -> None:
        self._every_ms = settings.resign_repeat_ms
        self._again_ms = 5 * settings.heartbeat_ms
        self._stages: list[deque[tuple[int, GroupId, int]]] = [deque()]
        """Of each the instant from which on a resignation is repeated; those of one stage are repeated equally long."""

    def add(self, group: GroupId, term: int, now_ms: int) -> None:
        self._stages[0].append((now_ms, group, term))

    def __len__(self) -> int:
        return sum(map(len, self._stages))

    def clear(self) -> None:
        for stage in self._stages:
            stage.clear()

    def due(self, now_ms: int, silent_ms: int) -> list[tuple[GroupId, int]]:
        """Those that a heartbeat repeats now. `silent_ms`: how long a link may be silent at most."""
        found: list[tuple[GroupId, int]] = []
        for number, stage in enumerate(self._stages):
            length_ms = self._again_ms if number else self._every_ms
            while stage and stage[0][0] + length_ms < now_ms:
                self._next_stage(number, stage.popleft(), silent_ms)
            for from_ms, group, term in stage:
                if from_ms > now_ms:
                    break
                found.append((group, term))
        return found

    def _next_stage(self, number: int, ended: tuple[int, GroupId, int], silent_ms: int) -> None:
        """After twice as long each time, until no silence covers the first and the last."""
        from_ms, group, term = ended
        if self._every_ms << number >= silent_ms:
            return
        if number + 1 == len(self._stages):
            self._stages.append(deque())
        between_ms = self._every_ms << max(1, number)
        self._stages[number + 1].append((from_ms + between_ms, group, term))

    def is_due(self, now_ms: int) -> bool:
        """Whether there is anything to repeat now."""
        return any(stage and stage[0][0] <= now_ms for stage in self._stages)
