"""How far a stream is behind its topics, under the names that Spark's own Kafka source reports.

That source puts them into the progress of a query (`SourceProgress.metrics`). A Python data source cannot: in Spark 4.2
only the JVM's own sources report metrics. The progress has what they are made of, so they are computed from that.
"""

import json
from collections.abc import Mapping
from typing import Any

from tpc_broker.spark.names import TOPIC_ID


def offsets_behind_latest(source: Any) -> dict[str, str]:
    """`avg`, `min` and `maxOffsetsBehindLatest` over the partitions, of one entry of ``query.lastProgress.sources`` (or
    of its JSON). Empty where the source says nothing of that form, as before a query's first progress.
    """
    behind = list(offsets_behind(source).values())
    if not behind:
        return {}
    mean = sum(behind) / len(behind)
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(mean),
    }


def offsets_behind(source: Any) -> dict[tuple[str, str], int]:
    """By topic and partition: offsets between what an epoch reached and what the source had then."""
    reached, latest = _offsets(source, "endOffset"), _offsets(source, "latestOffset")
    before, now = _ids(source, "endOffset"), _ids(source, "latestOffset")
    for topic, number in [where for where in reached if before.get(where[0]) not in (None, now.get(where[0]))]:
        del reached[topic, number]  # of a topic that was deleted, and perhaps created again since
    return {where: max(0, end - reached.get(where, 0)) for where, end in latest.items()}


def _offsets(source: Any, name: str) -> dict[tuple[str, str], int]:
    """{"topic": {"partition": offset}} made flat; nothing where the source says nothing of that form."""
    members = _members(source, name).items()
    return {(topic, number): end for topic, ends in members for number, end in ends.items() if number != TOPIC_ID}


def _ids(source: Any, name: str) -> dict[str, Any]:
    return {topic: ends[TOPIC_ID] for topic, ends in _members(source, name).items() if TOPIC_ID in ends}


def _members(source: Any, name: str) -> dict[str, dict[str, Any]]:
    said = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    try:
        value = said if isinstance(said, Mapping) else json.loads(said or "{}")
        return {
            topic: {number: end if number == TOPIC_ID else int(end) for number, end in ends.items()}
            for topic, ends in value.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}
