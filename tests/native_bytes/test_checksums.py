from pathlib import Path

import crc32c as other
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.contents import content
from tests.support.native_batches import crc32c_method
from tpc_broker._bytes import ffi, lib
from tpc_broker.native_bytes import crc32c

LANE_EDGES = [
    0, 1, 7, 8, 9, 255, 256, 511, 512, 513, 575, 576, 639, 640, 767, 768, 769, 1535, 1536,
    12287, 12288, 12289, 13056, 24576, 100_003,
]  # fmt: skip


def test_the_check_value_of_the_castagnoli_polynomial():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_rfc_3720_vectors():
    """Appendix B.4: 32 zeros, 32 ones, 32 rising bytes."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", LANE_EDGES)
def test_hardware_tables_and_another_library_agree(size):
    data = content(size)
    assert crc32c(data) == lib.tpc_crc32c_portable(0, data, size) == other.crc32c(data)
    assert lib.tpc_crc32c_lanes(0, data, size) == crc32c(data)


def test_any_alignment():
    data = content(20_000)
    base = ffi.from_buffer(data)
    for shift in range(17):
        expected = other.crc32c(data[shift : shift + 13_000])
        assert lib.tpc_crc32c(0, base + shift, 13_000) == lib.tpc_crc32c_lanes(0, base + shift, 13_000) == expected


@given(st.binary(max_size=4000), st.integers(0, 4000))
def test_in_two_parts_as_in_one(data, cut):
    cut = min(cut, len(data))
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data) == other.crc32c(data)


def test_it_uses_the_hardware_where_there_is_some():
    flags = Path("/proc/cpuinfo").read_text()
    if " avx512f " in flags and " vpclmulqdq " in flags:
        assert crc32c_method() == "vpclmulqdq"
    elif " sse4_2 " in flags:
        assert crc32c_method() == "sse4.2"
    else:
        assert crc32c_method() in ("portable", "armv8")
