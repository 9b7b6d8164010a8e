"""No file is mapped into memory: what is mapped is anonymous, or shared by cores, or a map of the kernel's program."""

import ast
import re
from pathlib import Path

from tests.support.sources import nodes_of
from tests.tidy.test_tidy import ROOT, c_sources, room_of, sources

OF_THE_KERNELS_PROGRAM = {"tpc_broker/process/listening.py"}
OF_A_NODE_S_CORES = {"tpc_broker/engine/quotas.py", "tpc_broker/cleaner/shared_pace.py"}
"""Memory of memfd_create(2) that they, or its cleaners, share."""


def maps_of_python(path: Path) -> list[str]:
    """The first argument of each mapping: -1 is memory without a file."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    return [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "mmap.mmap"]


def maps_of_c(text: str) -> list[str]:
    return re.findall(r"\bmmap\(([^;]*)\);", text)


def test_no_file_is_mapped() -> None:
    product = [path for path in sources() if room_of(path) is not None]
    of_python = {str(path.relative_to(ROOT)): maps_of_python(path) for path in product}
    assert sum(map(len, of_python.values())) > 3
    wrong = [name for name, maps in of_python.items() if {*maps} - {"-1"}]
    wrong = [name for name in wrong if name not in OF_THE_KERNELS_PROGRAM | OF_A_NODE_S_CORES]
    assert wrong == []
    of_c = [arguments for path in c_sources() for arguments in maps_of_c(path.read_text())]
    assert of_c
    assert [arguments for arguments in of_c if "MAP_ANONYMOUS" not in arguments] == []


def test_the_check_finds_a_mapped_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("memory = mmap.mmap(-1, 10)\nmapped = mmap.mmap(file.fileno(), 0)\n")
    assert maps_of_python(wrong) == ["-1", "file.fileno()"]
    shared = "p = mmap(NULL, n, PROT_READ, MAP_SHARED,\n fd, 0);"
    assert maps_of_c(shared) == ["NULL, n, PROT_READ, MAP_SHARED,\n fd, 0"]
