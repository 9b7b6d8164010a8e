"""The data plane in memory of `tpc_broker.testing`, which refuses what a test tells it to."""

from __future__ import annotations

from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.testing.plane import MemoryPlane as Plane


class MemoryPlane(Plane):
    """`refuses`: of the next requests."""

    def __init__(self, connections=None, clock=None):
        super().__init__(connections, clock)
        self.refuses: list[ProduceFallback] = []

    def produce_with(self, request, verdicts, endpoints):
        return self.refuses.pop(0) if self.refuses else super().produce_with(request, verdicts, endpoints)
