# SPDX-License-Identifier: Apache-2.0
"""Arguments that go to the library as C numbers: what does not fit is refused by name, before C cuts it off."""
from __future__ import annotations

import operator
from typing import Any

from ._errors import InvalidArgument

UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


def whole(name: str, value: Any, high: int, low: int = 0, instead: str = "") -> int:
    """`value` as a number in low..high. instead: what who gave no number at all may have meant."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {type(value).__name__} {value!r}{instead}") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} {number} is not in {low}..{high}")
    return number
