"""Times and bounds of replication, with the relations between them. A test may choose others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tpc_broker.limits import MIB

PEERS_MAX: Final = 6
"""Voters, old and new, and learners of a group beside its leader: the rows of the table that C keeps."""


@dataclass(frozen=True)
class Settings:
    """All in milliseconds, bytes or messages, as the names say."""

    heartbeat_ms: int = 100
    vouched_heartbeat_ms: int = 2_000
    """The same while somebody else says all the time that this core is there: it keeps the link itself alive."""
    link_silent_ms: int = 1_000
    """A link that was not heard for so long, and a jitter up to the next, is not fresh: its leaders may be replaced."""
    link_silent_ms_max: int = 128_000
    """The same where cores stand still for long now and then (`patience`) ..."""
    patience_kept_ms: int = 300_000
    """... halved when that was not needed for so long."""
    link_silent_jitter_ms: int = 20
    """Small: followers that find a leader silent at different times refuse each other until the last has found it."""
    notice_ms: int = 50
    """Between the silence and the first campaign, so that the other followers have noticed it too."""
    rank_delay_ms: int = 50
    """The voters of a group whose leader is gone stand one after the other, so that votes do not split."""
    election_timeout_ms: int = 1_000
    """A campaign without result is given up after this and a jitter up to as much again."""
    yield_ms: int = 3_000
    """Who would be a bad leader stands so much later: by then another one leads, or nobody else is elected."""
    elections_min: int = 8
    """Elections of a core that are under way at once: at least so many if others wait ..."""
    elections_max: int = 64
    """... and at most so many: an answer is never far behind its question."""
    commit_silence_ms: int = 5
    """A commit rides on the next items; alone it leaves after this."""
    resend_ms: int = 300
    """What was sent and not answered is tried again; only groups with something under way ask for it ..."""
    resend_ms_max: int = 2_400
    """... after twice as long each time, up to this."""
    in_vain_ms: int = 1_500
    """Who was sent more and more for so long, and acknowledged nothing of it, takes nothing."""
    resign_repeat_ms: int = 3_000
    """Heartbeats repeat a resignation for so long: until the link is silent or the news has arrived."""
    disk_hangs_ms: int = 4_000
    """The disk has owed an answer for so long: the core leads nothing any more, and others do before 5 s are over."""
    looks_ms_max: int = 1_100
    """Between two looks at the disk as much counts at most: a little more than a driver's longest rest."""
    change_timeout_ms: int = 10_000
    """The joint term is not committed after so long: the leader that began it goes back, if the old voters let it."""
    finish_ms: int = 50
    """Between the two terms of a change what came first is committed, if that takes no longer."""
    inflight_messages_max: int = 256
    """AppendEntries to one peer of a group without an answer."""
    inflight_bytes_max: int = 4 * MIB
    """The same, in bytes."""
    link_inflight_bytes_max: int = 64 * MIB
    """Over all groups of a link."""
    append_items_max: int = 1_024
    append_bytes_max: int = MIB
    """One AppendEntries; a single batch may be larger."""
    uncommitted_bytes_max: int = 16 * MIB
    """Above it a leader refuses proposals: memory and journal would have to hold them until a quorum comes back."""
    ships_to_empty: bool = True
    """Whether a replica that has nothing gets segments at once, and not items as long as these are all there."""
    adopts: bool = True
    """Whether an Install replaces the log; else the driver does that, and creates the group anew: until then it
    contains nothing of what was shipped, and an Install changes nothing.
    """
    caught_up_bytes: int = MIB
    """A learner this close to the leader's end counts as one that can vote soon ..."""
    caught_up_ms: int = 1_000
    """... and so does one whose last round took no longer: under full load nobody is ever within so few bytes."""
    peers_max: int = PEERS_MAX

    def __post_init__(self) -> None:
        assert self.link_silent_ms >= 5 * self.heartbeat_ms, "a late heartbeat is not a death"
        assert self.rank_delay_ms > self.link_silent_jitter_ms, "ranks stand in their order"
        assert self.notice_ms >= self.link_silent_jitter_ms, "who stands first is not refused by who notices last"
        assert self.link_silent_ms <= self.link_silent_ms_max, "patience only grows"
        assert self.in_vain_ms > self.resend_ms, "what was sent is not in vain before it is sent again"
        assert self.resign_repeat_ms > self.link_silent_ms + self.link_silent_jitter_ms, "heard, or the link is silent"
        assert self.yield_ms > 2 * self.election_timeout_ms, "others fail once before who yields stands"
        assert 0 < self.elections_min <= self.elections_max, "somebody may stand"
        assert self.append_bytes_max <= self.inflight_bytes_max <= self.link_inflight_bytes_max, "one message must fit"
        assert self.peers_max <= PEERS_MAX, "C has so many rows"
