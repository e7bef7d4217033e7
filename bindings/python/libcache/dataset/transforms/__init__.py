# SPDX-License-Identifier: Apache-2.0
"""Operations on any column. Scripts of the first generation find them in c_transforms and py_transforms."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from .._check import INT32_MAX, of_type, within
from ..dtype import to_numpy
from ._operation import TensorOperation, not_random

__all__ = ["Compose", "OneHot", "TypeCast", "not_random"]


class TypeCast(TensorOperation):
    """The same values in another element type.

    output_type  a NumPy dtype, a name as "int32", one of libcache.dataset.dtype, or a dtype of MindSpore
    """

    def __init__(self, output_type: Any) -> None:
        self._dtype = to_numpy(output_type)

    def __call__(self, value: Any) -> np.ndarray:
        return np.asarray(value).astype(self._dtype)


class OneHot(TensorOperation):
    """A class number, (), as a vector (num_classes,), or (n,) as (n, num_classes), of the same element type.

    smoothing_rate  0..1: so much is taken from the class and spread over all; then the vector is float32
    """

    def __init__(self, num_classes: int, smoothing_rate: float = 0.0) -> None:
        within("num_classes", num_classes, 1, INT32_MAX)
        of_type("smoothing_rate", smoothing_rate, float, int)
        if not 0 <= smoothing_rate <= 1:
            raise ValueError("Input smoothing_rate is not within the required interval of [0.0, 1.0].")
        self._classes, self._smoothing = num_classes, smoothing_rate

    def __call__(self, value: Any) -> np.ndarray:
        labels = np.asarray(value)
        if labels.dtype.kind not in "iu" or labels.ndim > 1:
            raise ValueError(f"OneHot takes class numbers, () or (n,), not {labels.shape} {labels.dtype}")
        if labels.size and not 0 <= labels.min() <= labels.max() < self._classes:
            raise ValueError(f"OneHot: class {labels.max() if labels.min() >= 0 else labels.min()} is not below "
                             f"num_classes, which is {self._classes}")
        if not self._smoothing:
            return np.eye(self._classes, dtype=labels.dtype)[labels]
        spread = self._smoothing / self._classes
        return (np.eye(self._classes, dtype=np.float32) * (1 - self._smoothing) + spread).astype(np.float32)[labels]


class Compose(TensorOperation):
    """Operations one after the other, as one."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        of_type("transforms", transforms, list, tuple)
        if not transforms:
            raise ValueError("transforms list can not be empty.")
        self.transforms = list(transforms)

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether one of them is."""
        return any(getattr(operation, "random", True) for operation in self.transforms)

    def __call__(self, *values: Any) -> Union[Any, tuple[Any, ...]]:
        for operation in self.transforms:
            result = operation(*values)
            values = result if isinstance(result, tuple) else (result,)
        return values if len(values) > 1 else values[0]
