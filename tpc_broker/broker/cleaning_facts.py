"""What is known of the compaction of one topic's partitions, for `tpc topic describe`: of all cores of this node.

Each replica cleans by itself, so each node tells of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpc_broker.errors import MailboxError
from tpc_broker.model import CoreId, PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.ports import CoreStorage

ASK_TIMEOUT_MS: Final = 5_000


class CleaningFacts:
    """Of one core, for itself and for all of its node."""

    def __init__(self, core: CoreGround, storage: CoreStorage) -> None:
        self._core = core
        self._storage = storage
        core.mailboxes.serve("cleaning.facts", self._serve)

    def here(self, topic: str) -> dict[str, dict[str, Any]]:
        """By the partition's number: `CleaningStatus.as_json`."""
        image, book = self._core.view.topic(topic), self._storage.cleaning
        if image is None:
            return {}
        keys = (TopicPartition(image.topic_id, PartitionIndex(each)) for each in range(image.partitions_count))
        return {str(key.partition): status.as_json() for key in keys if (status := book.status_of(key)) is not None}

    async def _serve(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        return {"partitions": self.here(payload["topic"])}, []

    async def of_node(self, topic: str) -> Payload:
        """Of the partitions that are to be compacted and were looked at; a core that does not answer tells nothing."""
        core, found = self._core, dict[str, Any]()
        for each in range(core.view.cores if core.view.topic(topic) is not None else 0):
            if each == core.core_id:
                found.update(self.here(topic))
                continue
            try:
                answer, _blobs = await core.mailboxes.call(
                    CoreId(each), "cleaning.facts", {"topic": topic}, timeout_ms=ASK_TIMEOUT_MS
                )
            except MailboxError:
                continue
            found.update(answer["partitions"])
        return {"node": core.view.node, "partitions": found}
