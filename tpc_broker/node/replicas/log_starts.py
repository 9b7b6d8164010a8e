"""Where logs start. That is no part of a log, so it is not replicated with it: what a leader has deleted goes at its
followers too, sooner or later, and for certain only when they say so.

A follower deletes no more than it knows to be committed, nothing by the word of who does not lead it, and nothing that
its journal does not take. It answers where its logs start then. Of one that starts earlier than its leader's it is told
again, or what was deleted would come back when it leads. What a replica has said is kept by voter: one that was given
up and begins anew on the same core, over the same connection, has deleted nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.errors import MailboxError, PartitionOfflineError
from tpc_broker.raft.items import Voter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.raft.items import Address

log = logging.getLogger(__name__)

LOG_STARTS: Final = "replicas.log_starts"
LOOKS_AT_ONCE: Final = 200
"""Partitions whose log's start is looked at in one round."""


class LogStarts:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas) -> None:
        self._replicas = replicas
        self._told: dict[str, dict[Voter, tuple[Address, int]]] = {}
        """Of groups, where the logs of others start at least, and the cores that have said so."""
        self._to_look: list[TopicPartition] = []

    async def tell(self, led: Iterable[TopicPartition]) -> None:
        """One round. A core that was away is told anew."""
        changed: dict[Address, dict[str, list[int]]] = {}
        asked: dict[tuple[Address, str], list[Voter]] = {}
        self._to_look = self._to_look or list(led)
        keys, self._to_look = self._to_look[:LOOKS_AT_ONCE], self._to_look[LOOKS_AT_ONCE:]
        for key in keys:
            group, machine = self._replicas.group_name(key), self._replicas.machine_of(key)
            # it may have been removed since the round began in which it is looked at
            bounds = self._replicas.bounds_of(key)
            if machine is None or bounds is None or not bounds.log_start_offset:
                continue
            starts = bounds.log_start_offset
            for voter in machine.others():
                address = machine.address_of(voter)
                told = self._told.get(group, {}).get(voter)
                if told != (address, starts) and self._replicas.links.is_up(address):
                    changed.setdefault(address, {})[group] = [machine.term, starts]
                    asked.setdefault((address, group), []).append(voter)
        for address, told_now in changed.items():
            try:
                answer = await self._replicas.links.ask(address, LOG_STARTS, told_now)
            except MailboxError as error:
                log.debug("log starts were not told to %s: %s", address, error)
                continue
            found, lives = answer.get("starts"), answer.get("lives", {})
            for group, (_term, starts) in told_now.items():
                if found is None or found.get(group, -1) >= starts:
                    here = [Voter(address.node, lives[group])] if group in lives else asked[address, group]
                    self._note(group, here, (address, starts))

    def _note(self, group: str, voters: Iterable[Voter], told: tuple[Address, int]) -> None:
        """`voters`: who has said it. One of an earlier release does not say who it is, or where its logs start."""
        if self._replicas.key_of(group) is not None:  # not removed while it was asked
            self._told.setdefault(group, {}).update(dict.fromkeys(voters, told))

    def connected(self, address: Address) -> None:
        """It may be another life of that core."""
        for told in self._told.values():
            for voter in [voter for voter, (where, _starts) in told.items() if where == address]:
                del told[voter]

    def removed(self, group: str) -> None:
        self._told.pop(group, None)

    async def serve(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """Of groups, the leader's term and where its log starts. Where those that are here start now, and in which of
        their lives they are: the leader may know of another one than the replica that is here.
        """
        found: dict[str, int] = {}
        lives: dict[str, int] = {}
        for group, (term, starts) in payload.items():
            key = self._replicas.key_of(group)
            if key is None:
                continue
            await self._follow(key, hello.node, term, starts)
            bounds, machine = self._replicas.bounds_of(key), self._replicas.machine_of(key)
            if bounds is not None and machine is not None:
                found[group], lives[group] = bounds.log_start_offset, machine.me.incarnation
        return {"starts": found, "lives": lives}, ()

    async def _follow(self, key: TopicPartition, node: int, term: int, starts: int) -> None:
        machine, bounds = self._replicas.machine_of(key), self._replicas.bounds_of(key)
        leader = None if machine is None else machine.leader
        if machine is None or leader is None or (leader.node, machine.term) != (node, term):
            return
        if bounds is not None and bounds.log_start_offset < min(starts, bounds.high_watermark):
            with suppress(PartitionOfflineError):  # deleted, or its journal fails
                await self._replicas.set_log_start(key, min(starts, bounds.high_watermark))
