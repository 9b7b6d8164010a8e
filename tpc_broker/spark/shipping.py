"""What is said where Spark's Python lacks this package.

Spark pickles data sources, readers and writers, and unpickles them in the Python that plans reads and in those of the
workers. Where a package is missing, that would be a bare `ModuleNotFoundError` behind thirty lines of others. So their
classes travel as names beside a function that Spark's cloudpickle carries whole, code and all, which imports them or
says what to do.
"""

import copyreg
from abc import ABCMeta
from collections.abc import Callable
from typing import Any


def _arrive(module: str, name: str) -> Any:
    """Where only Python and PySpark are certain to be there; so it names nothing of this module."""
    import importlib  # noqa: PLC0415
    import sys  # noqa: PLC0415

    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        message = (
            f"the Python that Spark uses here ({sys.executable}) has no tpc-broker that works: {error}. It has C "
            "extensions, which --py-files and addArtifacts cannot carry: install its wheel there, or send a packed "
            'environment along (docs/spark.md, "On a cluster")'
        )
        raise ImportError(message) from None


_arrive.__module__ = "__main__"  # so that cloudpickle takes the code along, and not the name


class ShippedType(ABCMeta):
    """Of classes that Spark pickles."""


def _ship(kind: ShippedType) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
    return _arrive, (kind.__module__, kind.__qualname__)


copyreg.pickle(ShippedType, _ship)
