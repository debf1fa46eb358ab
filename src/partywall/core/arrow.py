"""Arrow columns as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers or truth values; a missing one is NaN. The result may share the column's memory.

    Arrow's own conversions, even that of a single value, import pandas where it is installed. That takes half a second.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
        given = _present(array).astype(bool)
    else:
        given = _present(array)
    return np.where(_present(array.is_valid().cast(pa.uint8())) == 1, given, np.nan) if array.null_count else given


def _present(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an array, with any number in place of a missing one."""
    whole = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.from_dlpack(whole)
