"""Settings of the cleaner, by which topics with `cleanup.policy=compact` are compacted, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker import limits
from tpc_broker.metadata.config_types import INT_MAX, ConfigType, setting
from tpc_broker.metadata.ignored_settings import DOUBLE_MAX, IgnoredSettings

if TYPE_CHECKING:
    from collections.abc import Collection

DEDUPE_BYTES_MIN: Final = 1 << 20
"""Of each cleaner, as Kafka has it."""
_THREADS: Final = "log.cleaner.threads"
_DEDUPE_BYTES: Final = "log.cleaner.dedupe.buffer.size"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings(IgnoredSettings):
    """As `broker_config.Settings`."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        ConfigType.BOOLEAN,
        default=True,
        doc="Whether topics with cleanup.policy=compact are compacted.",
    )
    log_cleaner_threads: int = setting(
        _THREADS,
        ConfigType.INT,
        1,
        "Processes of a node that compact, at most; one is started when there is something to do. 0: none.",
        minimum=0,
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        15_000,
        "Time between two looks for what is to be compacted, when there was nothing.",
        minimum=0,
        dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        _DEDUPE_BYTES,
        ConfigType.LONG,
        128 << 20,
        "Memory for the keys of what is compacted, of all of the node's cleaners together: 24 bytes a key.",
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        DOUBLE_MAX,
        "What all of the node's cleaners together read and write in a second, at most.",
        dynamic=True,
    )
    max_decompressed_message_bytes: int = setting(
        "max.decompressed.message.bytes",
        ConfigType.INT,
        INT_MAX - 8,
        "A batch that unpacks to more is left as it is when its log is compacted, refused by compacted topics, and "
        "not looked into for a time stamp; "
        f"{limits.CLEANER_DECOMPRESSED_BYTES_MAX >> 20} MiB at most, whatever is set.",
        minimum=1,
        dynamic=True,
    )


class CleaningBounds(NamedTuple):
    """What the settings say for the jobs of a core."""

    is_on: bool
    threads: int
    """Cleaners of the node: more jobs than that at a time wait."""
    backoff_ms: int
    dedupe_bytes: int
    """Of one job."""
    decompressed_bytes_max: int


def decompressed_bytes_max(settings: CleanerSettings) -> int:
    """Of a batch, wherever the broker unpacks one that a client has sent."""
    return min(settings.max_decompressed_message_bytes, limits.CLEANER_DECOMPRESSED_BYTES_MAX)


def cleaning_bounds(settings: CleanerSettings) -> CleaningBounds:
    """What was stored while it had no effect may be out of its bounds; it is obeyed within them."""
    threads = settings.log_cleaner_threads if settings.log_cleaner_enable else 0
    dedupe_bytes = settings.log_cleaner_dedupe_buffer_size // max(threads, 1)
    return CleaningBounds(
        is_on=threads > 0,
        threads=threads,
        backoff_ms=settings.log_cleaner_backoff_ms,
        dedupe_bytes=min(max(dedupe_bytes, DEDUPE_BYTES_MIN), limits.CLEANER_MAP_BYTES_MAX),
        decompressed_bytes_max=decompressed_bytes_max(settings),
    )


NO_CLEANING: Final = cleaning_bounds(CleanerSettings(log_cleaner_enable=False))


def altered_cleaner_fault(settings: CleanerSettings, asked: Collection[str]) -> str | None:
    """What is wrong with settings of which somebody asks for some by name, in Kafka's words."""
    if not settings.log_cleaner_threads or not {_THREADS, _DEDUPE_BYTES} & set(asked):
        return None
    if settings.log_cleaner_dedupe_buffer_size / settings.log_cleaner_threads > DEDUPE_BYTES_MIN:
        return None
    return f"{_DEDUPE_BYTES} must be at least 1MB per cleaner thread."


def threads_fault(before: CleanerSettings, after: CleanerSettings, asked: Collection[str]) -> str | None:
    """What is wrong with another number of cleaners for a broker that runs, in Kafka's words."""
    current, wanted = before.log_cleaner_threads, after.log_cleaner_threads
    if _THREADS not in asked or current == wanted:
        return None
    if wanted < 1:
        return "Log cleaner threads should be at least 1"
    if wanted < current // 2:
        return f"Log cleaner threads cannot be reduced to less than half the current value {current}"
    if current and wanted > current * 2:  # Kafka does not start with none
        return f"Log cleaner threads cannot be increased to more than double the current value {current}"
    return None
