# SPDX-License-Identifier: Apache-2.0
"""What a column may be made of. The C part stores plain arrays, bytes and str by itself and asks here for the rest."""
from __future__ import annotations

from typing import Any

import numpy as np

from ._capi import lib

#: cache_dtype by NumPy dtype, in the machine's byte order
DTYPES: dict[np.dtype, int] = {
    np.dtype(name): getattr(lib, "CACHE_" + name.upper())
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                 "float64")}

_ADVICE = {
    "c": "store array.view(float) with a last dimension of 2",
    "m": "store array.view('int64')",
    "M": "store array.view('int64')",
    "S": "store bytes, or array.view('uint8')",
    "U": "store a str, or the strings one by one",
    "V": "store its fields as columns of their own",
    "O": "store numbers, bytes or str",
    "f": "convert it to float64",
}


def storable(value: Any, position: int) -> np.ndarray:
    """`value` as an array that can be stored as it is: a plain, C-contiguous ndarray of a dtype of libcache in the
    machine's byte order. TypeError, naming column `position`, if it is nothing that libcache stores."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"column {position}: a masked array would lose its mask; store array.data and array.mask")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise TypeError(f"column {position}: {type(value).__name__} is no array: {error}") from error
    native = array.dtype.newbyteorder("=")
    if native not in DTYPES:
        advice = _ADVICE.get(native.kind, "convert it")
        kind = type(value).__name__
        raise TypeError(f"column {position}: dtype {array.dtype} of a {kind} cannot be stored; {advice}")
    return np.require(array, dtype=native, requirements="C").view(np.ndarray)
