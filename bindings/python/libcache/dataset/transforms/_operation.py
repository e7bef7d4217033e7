# SPDX-License-Identifier: Apache-2.0
"""What the operations of transforms and vision have in common."""
from __future__ import annotations

from typing import Any


class TensorOperation:
    """An operation on one column: called with an array it returns another, and leaves its argument as it was.

    random  whether it gives different results for the same argument; then it may not stand below a cache
    """

    random = False

    def __call__(self, value: Any) -> Any:
        raise NotImplementedError


def not_random(function: Any) -> Any:
    """Promises that a function gives the same for the same argument, so that a cache may keep what it makes. Works as a
    decorator and on lambdas."""
    function.random = False
    return function
