"""SQL over a record: processors that DuckDB cannot run on are refused by name."""

import pytest

from partywall.core.query import check_processor
from partywall.errors import CapabilityError


def processor(tmp_path, line):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor: 0\n{line}\n")
    return file


def test_a_processor_without_avx2_is_refused_where_duckdb_needs_it(tmp_path):
    old = processor(tmp_path, "flags\t\t: fpu sse2 avx")
    with pytest.raises(CapabilityError, match=r"DuckDB 2\.0\.0 needs a processor with avx2.*duckdb<2"):
        check_processor(old, "2.0.0")
    check_processor(old, "1.4.2")


def test_others_are_not(tmp_path):
    check_processor(processor(tmp_path, "flags: fpu avx2"), "2.0.0")
    # arm64 has no such line.
    check_processor(processor(tmp_path, "Features: fp asimd"), "2.1.0")
    check_processor(tmp_path / "missing", "2.0.0")
