"""Frames and their budget: what is charged comes back, refusal takes nothing."""

from tpc_broker._ring import ffi, lib


def test_a_budget_counts_capacities_and_returns_to_zero():
    budget = lib.tpc_budget_new(10_000)
    first = lib.tpc_frame_new(budget, 4_000)
    second = lib.tpc_frame_new(budget, 4_000)
    assert first != ffi.NULL
    assert second != ffi.NULL
    assert budget.frames == 2
    assert budget.bytes_used >= 8_000
    assert lib.tpc_frame_new(budget, 4_000) == ffi.NULL
    assert budget.refusals == 1
    forced = lib.tpc_frame_new_forced(budget, 4_000)
    assert forced != ffi.NULL
    assert budget.bytes_used > budget.bytes_max
    for frame in (first, second, forced):
        lib.tpc_frame_release(frame)
    assert (budget.frames, budget.bytes_used) == (0, 0)
    assert budget.bytes_peak >= 12_000
    lib.tpc_budget_free(budget)


def test_a_retained_frame_outlives_its_first_owner_and_its_budget():
    budget = lib.tpc_budget_new(1_000)
    frame = lib.tpc_frame_new(budget, 5)
    ffi.buffer(frame.data, 5)[:] = b"hello"
    assert lib.tpc_frame_retain(frame) == frame
    lib.tpc_frame_release(frame)
    lib.tpc_budget_free(budget)
    assert bytes(ffi.buffer(frame.data, 5)) == b"hello"
    lib.tpc_frame_release(frame)


def test_a_huge_refusal_does_not_overflow_the_sum():
    budget = lib.tpc_budget_new(2**62)
    budget.bytes_used = 2**62 - 100
    assert lib.tpc_frame_new(budget, 2**32 - 1) == ffi.NULL
    budget.bytes_used = 0
    lib.tpc_budget_free(budget)
