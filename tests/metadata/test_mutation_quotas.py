"""Token buckets of changes of topics, with a clock of the tests, against a model of one bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.metadata import mutation_quotas
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.mutation_quotas import MutationQuotas
from tpc_broker.metadata.quotas import CONTROLLER_MUTATION_RATE, QuotaIndex

BURST_S = 11.0


def index(rate, entity=(("user", None),)):
    return QuotaIndex({entity: {CONTROLLER_MUTATION_RATE: rate}})


@given(
    st.floats(0.01, 1e4),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 50), st.booleans()), max_size=30),
)
def test_what_is_let_in_is_what_a_bucket_has(rate, asked):
    """(ms since the one before, partitions, strict) each."""
    quotas, now_ms, tokens = MutationQuotas(), 5_000, rate * BURST_S
    for passed_ms, partitions, strict in asked:
        now_ms += passed_ms
        tokens = min(rate * BURST_S, tokens + rate * passed_ms / 1000)
        ticket = quotas.ticket(index(rate), "u", "c", now_ms, BURST_S, strict=strict)
        refused = False
        try:
            ticket.charge(partitions)
        except Refusal as refusal:
            refused = refusal.code == 89
        assert refused == (strict and tokens < 0)
        if not refused:
            tokens -= partitions
        if refused or (not strict and tokens < 0):
            assert ticket.throttle_ms == pytest.approx(min(2**31 - 1, -tokens / rate * 1000), abs=1.5)
        else:
            assert ticket.throttle_ms == 0


def test_each_user_has_a_bucket_and_who_has_no_quota_none():
    quotas = MutationQuotas()
    for user in ("a", "b"):
        ticket = quotas.ticket(index(1.0), user, "c", 0, BURST_S, strict=True)
        ticket.charge(100)
        with pytest.raises(Refusal):
            ticket.charge(1)
    free = quotas.ticket(QuotaIndex({}), "a", "c", 0, BURST_S, strict=True)
    free.charge(10**6)
    assert free.throttle_ms == 0


def test_the_buckets_are_bounded(monkeypatch):
    monkeypatch.setattr(mutation_quotas, "BUCKETS_MAX", 3)
    quotas = MutationQuotas()
    for number in range(10):
        quotas.ticket(index(1.0), f"u{number}", "", 0, BURST_S, strict=True).charge(100)
    assert len(quotas._buckets) == 3
    with pytest.raises(Refusal):
        quotas.ticket(index(1.0), "u9", "", 0, BURST_S, strict=True).charge(1)
