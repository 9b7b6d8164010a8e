"""Where our answers about compacted topics differ from Kafka's on purpose, beside those of `intended`."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_COMPACTION: list[Intended] = []
