"""Numbers that Python and C share have one source, from which the C header is made."""

import re
import runpy
from pathlib import Path

from tests.support import journal_file
from tpc_broker import _bytes, _ring
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.log import in_place
from tpc_broker.log.journal import ENTRY_MAY_SKIP, EntryKind

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_facts.py"))
ERROR_DEFINED = re.compile(r"\b(?:TPC_)?ERROR_([A-Z_]+) = -?\d")


def test_the_header_is_what_the_tool_makes():
    assert TOOL["TARGET"].read_text() == TOOL["header_text"](), "run: .venv/bin/python tools/generate_facts.py"


def test_no_other_c_file_defines_an_error_code():
    names = set(ErrorCode.__members__)
    files = [path for path in (ROOT / "native").rglob("*.[ch]") if path != TOOL["TARGET"]]
    assert len(files) > 30
    defined = [(path.name, name) for path in files for name in ERROR_DEFINED.findall(path.read_text())]
    assert [(file, name) for file, name in defined if name in names] == []


def test_c_has_room_for_every_api():
    """A request whose key is beyond it would be refused, or not be counted."""
    rooms = (_bytes.lib.TPC_API_KEYS_COUNT, _ring.lib.TPC_LATENCY_APIS)
    assert rooms == (max(ApiKey) + 1,) * 2


FORMAT = (ROOT / "native" / "bytes" / "journal_format.h").read_text()
C_TYPES = {
    "uint8_t": "B", "uint16_t": "H", "int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q",
}  # fmt: skip
STRUCT = re.compile(r"typedef struct __attribute__\(\(packed\)\) \{(.*?)\} (\w+);", re.DOTALL)
FIELD = re.compile(r"^\s*(\w+) \w+(?:\[(\d+)\])?;", re.MULTILINE)


def layouts():
    """The packed structs of the journal's format, by name, in the words of Python's `struct`."""
    return {
        name: "<" + "".join(f"{count}s" if count else C_TYPES[kind] for kind, count in FIELD.findall(fields))
        for fields, name in STRUCT.findall(FORMAT)
    }


def test_python_knows_the_journals_entries_as_its_format_has_them():
    """C writes and reads them; Python has the kinds, one payload, and a second opinion for tests."""
    kinds = re.search(r"enum tpc_journal_kind \{(.*?)\};", FORMAT, re.DOTALL)[1]
    named = {name: int(value) for name, value in re.findall(r"TPC_JOURNAL_(\w+) = (\d+)", kinds)}
    assert named == {kind.name: kind.value for kind in EntryKind}
    assert f"#define TPC_JOURNAL_MAY_SKIP 0x{ENTRY_MAY_SKIP:02x}u" in FORMAT
    assert layouts() == {
        "tpc_journal_commit_header": journal_file._COMMIT.format,
        "tpc_journal_entry_header": journal_file._ENTRY.format,
        "tpc_journal_in_place_header": in_place._HEADER.format,
    }
