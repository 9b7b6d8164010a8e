"""A plane on a journal of its own, with all features of the kernel and with those of 5.8 only."""

import pytest

from tests.support.plane_bench import PlaneBench


@pytest.fixture(params=["", "5.8"], ids=["all-features", "as-5.8"])
def make_bench(request, monkeypatch, tmp_path):
    monkeypatch.setenv("TPC_HIDE_FEATURES", request.param)
    benches = []

    def make(**options):
        benches.append(PlaneBench(tmp_path / f"{len(benches)}.journal", **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.shut()


@pytest.fixture
def bench(make_bench):
    return make_bench()
