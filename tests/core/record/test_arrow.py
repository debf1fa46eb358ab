"""Arrow columns as NumPy arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from partywall.core.arrow import values


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2, 3], pa.int32()), [1, 2, 3]),
        (pa.array([9, 1, 2, 3]).slice(1), [1, 2, 3]),
        (pa.chunked_array([pa.array([1]), pa.array([2, 3])]), [1, 2, 3]),
        (pa.chunked_array([pa.array([7, 1]).slice(1)]), [1]),
        (pa.chunked_array([], pa.int64()), []),
        (pa.array([1, None, 3]), [1.0, np.nan, 3.0]),
        (pa.array([None, None], pa.float32()), [np.nan, np.nan]),
        (pa.array([False, True, True]).slice(1), [True, True]),
        (pa.array([], pa.bool_()), []),
    ],
)
def test_a_column_has_the_values_that_it_had(column, expected):
    np.testing.assert_array_equal(values(column), expected)


def test_the_array_outlives_its_column():
    result = values(pa.chunked_array([pa.array(range(100_000)), pa.array(range(100_000))]))
    assert result.sum() == 99_999 * 100_000


def test_pandas_is_not_imported():
    code = (
        "import sys; import pyarrow as pa; from partywall.core.arrow import values; values(pa.nulls(2, pa.int64())); "
        "values(pa.nulls(2).is_null()); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
