# SPDX-License-Identifier: Apache-2.0
"""Columns of a row: NumPy arrays, and the form in which those of text go through a cache."""
from __future__ import annotations

import json
from typing import Any

import numpy as np

_PACKED = "\0"  # begins the text of a column that is more than one plain str


class Tensor(np.ndarray):
    """A NumPy array that also answers asnumpy(), for scripts that expect MindSpore's tensors."""

    def asnumpy(self) -> np.ndarray:
        """The same values as a plain array, without a copy."""
        return self.view(np.ndarray)


def own(array: np.ndarray) -> np.ndarray:
    """An array that its receiver may write to: rows of a cache are read-only views of shared memory."""
    return array if array.flags.writeable else array.copy()


def as_column(value: Any, what: str) -> np.ndarray:
    """What a function gave, as an array of numbers or text. TypeError, naming `what`, for anything else."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{what} gave a value of type {type(value).__name__}, which is no array: {error}") from error
    if array.dtype.kind not in "biufUS":
        raise TypeError(f"{what} gave a value of type {type(value).__name__}, as an array {array.dtype}; rows are made "
                        f"of numbers, str and bytes")
    return array


def to_stored(array: np.ndarray) -> Any:
    """The column as libcache stores it: numbers as they are, text as one str."""
    if array.dtype.kind not in "US":
        return array
    if array.ndim == 0 and array.dtype.kind == "U" and not (text := str(array)).startswith(_PACKED):
        return text
    items = array.ravel().tolist()
    if array.dtype.kind == "S":
        items = [item.decode("latin-1") for item in items]
    return _PACKED + json.dumps([array.dtype.kind, array.shape, items])


def from_stored(column: Any) -> np.ndarray:
    """The column as it was before to_stored."""
    if not isinstance(column, str):
        return column
    if not column.startswith(_PACKED):
        return np.array(column)
    kind, shape, items = json.loads(column[len(_PACKED):])
    if kind == "S":
        return np.array([item.encode("latin-1") for item in items], "S").reshape(shape)
    return np.array(items, "U").reshape(shape)
