# SPDX-License-Identifier: Apache-2.0
"""Operations that cut a part out of a picture, or turn it over."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from .._check import INT32_MAX, of_type, within
from .._random import generator
from ..transforms._operation import TensorOperation
from ._pixels import Decode, Size, height_and_width, pixels, resized
from .utils import Border, Inter

Padding = Union[int, Sequence[int]]


def _probability(prob: float) -> float:
    of_type("prob", prob, float, int)
    if not 0 <= prob <= 1:
        raise ValueError("Input prob is not within the required interval of [0.0, 1.0].")
    return float(prob)


class CenterCrop(TensorOperation):
    """The middle (height, width) of a picture; where the picture is smaller, zeros stand around it."""

    def __init__(self, size: Size) -> None:
        self._height, self._width = height_and_width(size)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        missing = [max(0, wanted - there) for wanted, there in zip((self._height, self._width), array.shape)]
        if any(missing):
            around = [(extent // 2, extent - extent // 2) for extent in missing]
            array = np.pad(array, around + [(0, 0)] * (array.ndim - 2))
        top, left = (array.shape[0] - self._height) // 2, (array.shape[1] - self._width) // 2
        return np.ascontiguousarray(array[top:top + self._height, left:left + self._width])


class RandomCrop(TensorOperation):
    """A part of that size from a random place.

    size           (height, width), or one number for both
    padding        put around the picture before: one number; (left and right, top and bottom); or (left, top, right,
                   bottom)
    pad_if_needed  a picture smaller than size is filled up; else it is an error
    fill_value     of padding with Border.CONSTANT: one number, or one per channel
    """

    random = True

    def __init__(self, size: Size, padding: Union[None, Padding] = None, pad_if_needed: bool = False,
                 fill_value: Union[int, Sequence[int]] = 0, padding_mode: Border = Border.CONSTANT) -> None:
        self._height, self._width = height_and_width(size)
        self._padding = None if padding is None else _four(padding)
        of_type("pad_if_needed", pad_if_needed, bool)
        self._fill_up, self._value, self._mode = pad_if_needed, fill_value, Border(padding_mode)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        if self._padding is not None:
            array = self._padded(array, *self._padding)
        if self._fill_up:
            high, wide = max(0, self._height - array.shape[0]), max(0, self._width - array.shape[1])
            if high or wide:
                array = self._padded(array, wide, high, wide, high)
        spare = array.shape[0] - self._height, array.shape[1] - self._width
        if min(spare) < 0:
            raise ValueError(f"RandomCrop: the crop of {self._height} x {self._width} is larger than the picture, "
                             f"{array.shape[0]} x {array.shape[1]}; say pad_if_needed=True")
        rng = generator()
        top, left = int(rng.integers(spare[0] + 1)), int(rng.integers(spare[1] + 1))
        return np.ascontiguousarray(array[top:top + self._height, left:left + self._width])

    def _padded(self, array: np.ndarray, left: int, top: int, right: int, bottom: int) -> np.ndarray:
        around = [(top, bottom), (left, right)] + [(0, 0)] * (array.ndim - 2)
        if self._mode is not Border.CONSTANT:
            return np.pad(array, around, mode=self._mode.value)
        shape = [extent + sum(both) for extent, both in zip(array.shape, around)]
        made = np.broadcast_to(np.asarray(self._value, array.dtype), shape).copy()
        made[top:top + array.shape[0], left:left + array.shape[1]] = array
        return made


def _four(padding: Padding) -> tuple[int, int, int, int]:
    """left, top, right, bottom"""
    listed = [padding] * 4 if isinstance(padding, int) else list(padding)
    if len(listed) == 2:
        listed = listed * 2
    if len(listed) != 4:
        raise ValueError("padding is one number, or 2, or 4 of them.")
    for extent in listed:
        within("padding", extent, 0, INT32_MAX)
    return listed[0], listed[1], listed[2], listed[3]


class RandomHorizontalFlip(TensorOperation):
    """Left and right exchanged, with probability prob."""

    random = True

    def __init__(self, prob: float = 0.5) -> None:
        self._prob = _probability(prob)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        return np.ascontiguousarray(array[:, ::-1]) if generator().random() < self._prob else array


class RandomVerticalFlip(TensorOperation):
    """Top and bottom exchanged, with probability prob."""

    random = True

    def __init__(self, prob: float = 0.5) -> None:
        self._prob = _probability(prob)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        return np.ascontiguousarray(array[::-1]) if generator().random() < self._prob else array


class RandomResizedCrop(TensorOperation):
    """A part of random area and proportion, resized.

    size          (height, width) of the result, or one number for both
    scale         range of the part's share of the area
    ratio         range of its width / height
    max_attempts  for a part that lies within the picture; then the middle is taken
    """

    random = True

    def __init__(self, size: Size, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3),
                 interpolation: Inter = Inter.LINEAR, max_attempts: int = 10) -> None:
        self._height, self._width = height_and_width(size)
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                raise ValueError(f"{name} should be in (min, max) format, with 0 < min <= max. Got ({low}, {high}).")
        within("max_attempts", max_attempts, 1, INT32_MAX)
        self._scale, self._ratio, self._attempts = tuple(scale), tuple(ratio), max_attempts
        self._interpolation = Inter(interpolation)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        top, left, height, width = self._box(array.shape[0], array.shape[1])
        part = np.ascontiguousarray(array[top:top + height, left:left + width])
        return resized(part, self._height, self._width, self._interpolation)

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """top, left, height, width of the part."""
        rng = generator()
        for _ in range(self._attempts):
            area = height * width * rng.uniform(*self._scale)
            ratio = math.exp(rng.uniform(math.log(self._ratio[0]), math.log(self._ratio[1])))
            high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < high <= height and 0 < wide <= width:
                return int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1)), high, wide
        ratio = min(max(width / height, self._ratio[0]), self._ratio[1])
        high, wide = min(height, max(1, round(width / ratio))), min(width, max(1, round(height * ratio)))
        return (height - high) // 2, (width - wide) // 2, high, wide


class RandomCropDecodeResize(RandomResizedCrop):
    """Decode and RandomResizedCrop in one: takes an encoded picture, (bytes,) uint8."""

    def __call__(self, image: Any) -> np.ndarray:
        return super().__call__(Decode()(image))
