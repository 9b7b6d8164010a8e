"""Makes `native/bytes/facts.h` from what Python knows and C needs too: ``.venv/bin/python tools/generate_facts.py``.

`tests/native_bytes/test_facts.py` compares what is committed with what this makes.
"""

from __future__ import annotations

from pathlib import Path

from tpc_broker import limits
from tpc_broker.broker.handlers.table import ROWS
from tpc_broker.error_codes import ErrorCode

TARGET = Path(__file__).parent.parent / "native" / "bytes" / "facts.h"


def header_text() -> str:
    """The whole header, as clang-format has it."""
    errors = ",\n".join(f"    TPC_ERROR_{code.name} = {code.value}" for code in ErrorCode)
    waiting = " || ".join(f"(key) == {key:d}" for key in sorted(ROWS) if ROWS[key].may_wait)
    return f"""\
/* Made by tools/generate_facts.py from tpc_broker/limits.py, error_codes.py and the rows of APIs: change those. */
#ifndef TPC_FACTS_H
#define TPC_FACTS_H

#define TPC_BLOCK_BYTES {limits.BLOCK_BYTES}u
#define TPC_JOURNAL_REGION_BLOCK_FIRST {limits.JOURNAL_REGION_BLOCK_FIRST}u
#define TPC_FETCH_SESSION_BYTES_MAX {limits.FETCH_SESSION_BYTES_MAX}u
#define TPC_API_MAY_WAIT(key) ({waiting})

enum tpc_error {{
{errors}
}};

#endif
"""


if __name__ == "__main__":
    TARGET.write_text(header_text())
