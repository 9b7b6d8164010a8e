"""Whether the kernel's program can be loaded here; tests that need it are skipped with the reason elsewhere."""

from __future__ import annotations

import pytest

from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import Select, Steering


def skip_without(loader: str, select: Select) -> None:
    try:
        Steering(loader, 1, select).close()
    except LoaderUnavailableError as reason:
        pytest.skip(str(reason))
