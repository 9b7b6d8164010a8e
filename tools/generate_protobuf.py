"""Makes `*_pb2.py` and `*_pb2.pyi` from the committed `.proto` files: ``python tools/generate_protobuf.py``.

The compiler is that of one version of grpcio-tools, installed from the package registry into an environment of its own,
so that the same bytes come out everywhere. It is an old one on purpose: generated code runs with the library of its own
version and newer ones, up to the next major version, and never with an older one. `tests/swim/test_generated.py`
compares what is committed with what any compiler says of the `.proto`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILER = "grpcio-tools==1.74.0"
"""Writes code for protobuf 6.31.1: the least version that pyproject.toml allows."""


def main() -> None:
    """Generates all."""
    sources = sorted(ROOT.glob("tpc_broker/**/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", COMPILER], check=True)
        for source in sources:
            outputs = [f"--python_out={ROOT}", f"--pyi_out={ROOT}"]
            subprocess.run([python, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs, source], check=True)


if __name__ == "__main__":
    main()
