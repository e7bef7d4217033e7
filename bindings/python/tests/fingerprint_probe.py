# SPDX-License-Identifier: Apache-2.0
"""A value with everything in it whose order or address could differ between two processes."""
import functools

import numpy as np


class Step:
    """One with code, a default and a class attribute."""

    kind = {"b", "a", "c"}

    def __init__(self, size):
        self.size = size

    def __call__(self, value, scale=np.float32(2)):
        return np.add(value, scale) * self.size


def make():
    offset = 3
    return [Step(2), lambda x: x + offset, {"x", "y", "z", 1}, frozenset("abcdef"), functools.partial(Step, 4), Step,
            {"k": np.arange(4), "f": print}, object]
