"""Which core has a partition, where the cluster's metadata may be older than the partitions' places.

A partition belongs to the journal and the checkpoint of one core, and the metadata say which. Metadata that were
restored from a copy may say another. Two cores that write into one folder destroy it, so a folder that is there and
that this core's journal knows nothing of is taken only when every other core has said that it is not its own. A core
that has what the metadata give to another tells core 0, and the metadata follow: what was acknowledged is where it is.

A replica that was given up, and comes back, may come to another core of its node. The journal of the core that had it
says that its folder is deleted, up to that core's next checkpoint, and the folder's name is the same: a start of that
core would delete what the other one has by then. So it is made only when no other core has, or remembers, any of it.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.errors import MailboxError, PartitionNotMadeError
from tpc_broker.metadata.controller import Controller
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition

if TYPE_CHECKING:
    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload, Row
    from tpc_broker.broker.ports import CoreStorage

log = logging.getLogger(__name__)

RETRY_S: Final = 0.25
ASK_TIMEOUT_MS: Final = 5_000


class Holders:
    """Of one core."""

    def __init__(self, core: CoreGround, storage: CoreStorage, cores_count: int) -> None:
        self._core = core
        self._storage = storage
        self._others = [CoreId(number) for number in range(cores_count) if number != core.core_id]
        self._in_two: set[TopicPartition] = set()
        core.mailboxes.serve("partitions.has", self._serve_has)
        core.mailboxes.serve("partitions.follow", self._serve_follow)
        core.mailboxes.serve("partitions.forget", self._serve_forget)

    # Rule: A folder that this core's journal knows nothing of is taken only when every other core has said that it does
    # not have the partition. Metadata that are older than the partitions' places follow them. Held by
    # tests/durability/test_misplaced.py, tests/broker/test_holders.py.
    async def ask_others(self, key: TopicPartition) -> None:
        """PartitionNotMadeError: another core has the partition, or has not said yet that it has not."""
        for other in self._others:
            try:
                has = await self._has(other, key)
            except MailboxError as error:
                reason = f"its folder is there, and core {other} does not say whether it has the partition ({error})"
                raise PartitionNotMadeError(reason) from error
            if has:
                if self._storage.released(key) is not None and not self._core.view.image.nodes:
                    self._core.start_soon(self._report_adopted, other, key)
                raise PartitionNotMadeError(f"core {other} has the partition that the cluster's metadata give to this")

    # Rule: A replica that comes back to another core of its node is made only when no core of the node has any of the
    # one before, or would find any at a start. Held by tests/broker/test_holders.py,
    # tests/broker/test_returning_replicas.py.
    async def others_forget(self, keys: list[TopicPartition]) -> None:
        """Of what came back here as other replicas. PartitionNotMadeError: another core has one of them yet, or would
        find its end at a start, or does not say.
        """
        for other in self._others:
            try:
                answer, _blobs = await self._core.mailboxes.call(
                    other, "partitions.forget", {"partitions": _to_json(keys)}, timeout_ms=ASK_TIMEOUT_MS
                )
            except MailboxError as error:
                reason = f"core {other} does not say whether it has an earlier replica of it ({error})"
                raise PartitionNotMadeError(reason) from error
            if not answer["forgotten"]:
                raise PartitionNotMadeError(f"core {other} has not done yet with the replica before")

    async def _report_adopted(self, other: CoreId, key: TopicPartition) -> None:
        """A move from here was cancelled when all but its last record was done."""
        try:
            told = {"partitions": _to_json([key]), "holder": other}
            await self._core.mailboxes.call(METADATA_CORE, "partitions.follow", told)
        except MailboxError as error:
            log.debug("where a partition is was not told: %s", error)  # it is asked for again, and told again

    async def report_misplaced(self) -> None:
        """Until the metadata give this core what it has; ends at once where they do, as always but after a restore."""
        while True:
            try:
                keys = await self._nobody_else_has(self._misplaced())
                if keys:
                    await self._core.mailboxes.call(METADATA_CORE, "partitions.follow", {"partitions": _to_json(keys)})
            except MailboxError as error:
                log.debug("misplaced partitions: %s", error)
            if not set(self._misplaced()) - self._in_two:
                return
            await trio.sleep(RETRY_S)

    def _misplaced(self) -> list[TopicPartition]:
        if self._core.view.image.nodes:
            return []  # the metadata of several nodes are no copy of this one's that may be old
        owner_of, moving = self._core.view.image.owner_of, self._core.view.image.moving
        return [
            key for key in self._storage.unclaimed()
            if key not in moving and owner_of(key) not in (None, self._core.core_id)
        ]  # fmt: skip

    async def _nobody_else_has(self, keys: list[TopicPartition]) -> list[TopicPartition]:
        """Those that their owners by the metadata do not have. MailboxError: one of them does not answer."""
        found = []
        for key in keys:
            owner = self._core.view.image.owner_of(key)
            if owner is None or key in self._in_two:
                continue
            if await self._has(owner, key):
                self._in_two.add(key)
                log.error(
                    "partition %d of topic id %s is in the journals of the cores %d and %d; the second serves it, "
                    "as the metadata say", key.partition, key.topic_id, self._core.core_id, owner,
                )  # fmt: skip
            else:
                found.append(key)
        return found

    async def _has(self, other: CoreId, key: TopicPartition) -> bool:
        """Of one that was released here the other core says so by metadata as new as this one's: no move that was under
        way before these can still bring it there.
        """
        version = self._core.view.image.version if self._storage.released(key) is not None else 0
        asked = {"partitions": _to_json([key]), "version": version}
        answer, _blobs = await self._core.mailboxes.call(other, "partitions.has", asked, timeout_ms=ASK_TIMEOUT_MS)
        if answer["has"] is None:
            raise MailboxError(f"core {other} has older metadata")
        return bool(answer["has"])

    async def _serve_has(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        has: bool | None = any(self._storage.has(key) for key in _from_json(payload["partitions"]))
        if not has and self._core.view.image.version < payload.get("version", 0):
            self._core.metadata.behind.set()
            has = None
        return {"has": has}, []

    async def _serve_forget(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        keys = _from_json(payload["partitions"])
        has = any(self._storage.has(key) for key in keys)
        return {"forgotten": not has and (not self._storage.remembers(keys) or await self._storage.checkpoint())}, []

    async def _serve_follow(self, caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """Core 0: these belong to the caller from now on, or to the "holder" that it names."""
        keys, holder = _from_json(payload["partitions"]), CoreId(payload.get("holder", caller))
        await self._core.metadata.change(
            lambda image: (Controller(image, self._core.configuration).follow_holder(holder, keys), None)
        )
        for key in keys:
            topic = self._core.view.image.topic_by_id(key.topic_id)
            if topic is not None:
                log.warning("%s-%d: the cluster's metadata gave it to another core than core %d, which has it: "
                            "they follow it", topic.name, key.partition, holder)  # fmt: skip
        return {}, []


def _to_json(keys: list[TopicPartition]) -> list[Row]:
    return [[key.topic_id.hex, key.partition] for key in keys]


def _from_json(rows: list[Row]) -> list[TopicPartition]:
    return [TopicPartition(TopicId(uuid.UUID(hex=topic)), PartitionIndex(number)) for topic, number in rows]
