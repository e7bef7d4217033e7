# SPDX-License-Identifier: Apache-2.0
"""Names of element types, for scripts that say `from mindspore.common import dtype as mstype`."""
from __future__ import annotations

from typing import Any

import numpy as np

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
string = np.dtype(np.str_)


def to_numpy(value: Any) -> np.dtype:
    """The NumPy dtype of a NumPy dtype, a name such as "int32", or a dtype object of MindSpore, whose str() is
    "Int32"."""
    if isinstance(value, str) and value in ("string", "str"):
        return string
    try:
        return np.dtype(value)
    except TypeError:
        name = str(value).rpartition(".")[2].lower().rstrip("_")
        return string if name == "string" else np.dtype(name)
