"""Errors that cross rooms, by culprit. Expected results of a request are error codes, not exceptions."""

from __future__ import annotations


class MailboxError(Exception):
    """A call to another core that got no answer."""


class NotDeliveredError(MailboxError):
    """The call never reached the other core, so that repeating it is safe."""


class MailboxFullError(NotDeliveredError):
    """No credit left towards that core; the client is to try again."""


class CoreDownError(MailboxError):
    """That core went away, or was too late: whether it did what was asked is not known."""


class CallFailedError(MailboxError):
    """The other core's handler raised."""


class OffsetOutOfRangeError(Exception):
    """An offset outside [log_start_offset, log_end_offset]."""


class PartitionOfflineError(Exception):
    """A partition whose files are damaged or cannot be read or written now: KAFKA_STORAGE_ERROR to clients."""


class RecordsDamagedError(PartitionOfflineError):
    """Records are there and cannot be read, as they are damaged: CORRUPT_MESSAGE to who asks for them."""


class LeadershipLostError(PartitionOfflineError):
    """The leader epoch ended while something waited to be committed: it may be or not, NOT_LEADER_OR_FOLLOWER."""


class LeaderSentDamageError(Exception):
    """What a leader has sent cannot be appended; the machine has taken it into its log."""


class PartitionNotMadeError(PartitionOfflineError):
    """Its files could not be made now (no space, or the deleted topic's folder is still there); it is tried again."""


class JournalStoppedError(PartitionOfflineError):
    """The core is about to end, and its journal takes nothing more."""


class MetadataUnreadableError(Exception):
    """The cluster's metadata are gone or damaged: without them nothing is opened, and above all nothing is deleted."""


class StorageFailedError(Exception):
    """A write or sync of a partition failed, or it was taken offline; the message says which and why."""
