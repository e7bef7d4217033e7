# SPDX-License-Identifier: Apache-2.0
"""Operations that treat the whole picture: decoding, sizes, values, order of axes."""
from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from .._check import INT32_MAX, of_type, within
from ..dtype import to_numpy
from ..transforms._operation import TensorOperation
from .utils import Inter

Size = Union[int, Sequence[int]]


def pixels(image: Any) -> np.ndarray:
    """A picture, given as an array or a PIL image, as (height, width) or (height, width, channels)."""
    array = np.asarray(image)
    if array.ndim not in (2, 3):
        raise ValueError(f"a picture is (height, width) or (height, width, channels), not {array.shape}; has it been "
                         f"decoded?")
    return array


def height_and_width(size: Size) -> tuple[int, int]:
    """A size argument: one number for both, or (height, width)."""
    listed = [size, size] if isinstance(size, int) else list(size)
    if len(listed) != 2:
        raise ValueError("size is one number, or a list of height and width.")
    for extent in listed:
        within("size", extent, 1, INT32_MAX)
    return listed[0], listed[1]


def resized(image: np.ndarray, height: int, width: int, interpolation: Inter) -> np.ndarray:
    """The picture in another size; element type and number of axes stay."""
    from PIL import Image
    if image.shape[:2] == (height, width):
        return image
    methods = {Inter.NEAREST: Image.NEAREST, Inter.ANTIALIAS: Image.LANCZOS, Inter.LINEAR: Image.BILINEAR,
               Inter.CUBIC: Image.BICUBIC, Inter.AREA: Image.BOX, Inter.PILCUBIC: Image.BICUBIC}
    method = methods[Inter(interpolation)]
    if image.dtype == np.uint8 and (image.ndim == 2 or image.shape[2] == 3):
        return np.asarray(Image.fromarray(image).resize((width, height), method))
    planes = image[..., None] if image.ndim == 2 else image
    kind = np.uint8 if image.dtype == np.uint8 else np.float32
    images = [Image.fromarray(np.ascontiguousarray(planes[..., channel], kind)) for channel in range(planes.shape[2])]
    made = [np.asarray(each.resize((width, height), method)) for each in images]
    result = np.stack(made, axis=-1)
    if image.dtype.kind in "iu" and kind is np.float32:
        result = np.rint(result)
    return result.astype(image.dtype, copy=False).reshape(height, width, *image.shape[2:])


class Decode(TensorOperation):
    """An encoded picture, (bytes,) uint8, as (height, width, 3) uint8 in RGB order.

    to_pil  gives a PIL image instead, for functions of one's own; it cannot be the last operation
    """

    def __init__(self, rgb: bool = True, to_pil: bool = False) -> None:
        of_type("to_pil", to_pil, bool)
        if rgb is not True:
            raise ValueError("Decode gives RGB only.")
        self._to_pil = to_pil

    def __call__(self, image: Any) -> Any:
        from PIL import Image
        data = np.asarray(image)
        if data.ndim != 1 or data.dtype != np.uint8:
            raise ValueError(f"Decode takes the bytes of a file, (bytes,) uint8, not {data.shape} {data.dtype}")
        with Image.open(io.BytesIO(data.tobytes())) as opened:
            made = opened.convert("RGB")
        return made if self._to_pil else np.array(made)


class Resize(TensorOperation):
    """A picture in another size.

    size  (height, width), or the length of the shorter side, the other keeping its proportion
    """

    def __init__(self, size: Size, interpolation: Inter = Inter.LINEAR) -> None:
        self._size = None if isinstance(size, int) else height_and_width(size)
        self._shorter = size if isinstance(size, int) else 0
        if isinstance(size, int):
            within("size", size, 1, INT32_MAX)
        self._interpolation = Inter(interpolation)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        height, width = array.shape[:2]
        if self._size is not None:
            return resized(array, *self._size, self._interpolation)
        if height < width:
            return resized(array, self._shorter, int(self._shorter * width / height), self._interpolation)
        return resized(array, int(self._shorter * height / width), self._shorter, self._interpolation)


class Rescale(TensorOperation):
    """value * rescale + shift, as float32."""

    def __init__(self, rescale: float, shift: float) -> None:
        of_type("rescale", rescale, float, int)
        of_type("shift", shift, float, int)
        self._rescale, self._shift = np.float32(rescale), np.float32(shift)

    def __call__(self, image: Any) -> np.ndarray:
        return np.asarray(image).astype(np.float32) * self._rescale + self._shift


class Normalize(TensorOperation):
    """(value - mean) / std per channel, as float32.

    is_hwc  the channels are the last axis; else the first
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        if len(mean) != len(std):
            raise ValueError("Length of mean and std must be equal.")
        if min(std) <= 0:
            raise ValueError("std is not within the required interval of (0, INF).")
        of_type("is_hwc", is_hwc, bool)
        self._mean, self._std = np.array(mean, np.float32), np.array(std, np.float32)
        self._is_hwc = is_hwc

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image).astype(np.float32)
        if self._is_hwc:
            return (array - self._mean) / self._std
        return (array - self._mean[:, None, None]) / self._std[:, None, None]


class HWC2CHW(TensorOperation):
    """(height, width, channels) as (channels, height, width)."""

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        if array.ndim != 3:
            raise ValueError(f"HWC2CHW takes (height, width, channels), not {array.shape}")
        return np.ascontiguousarray(array.transpose(2, 0, 1))


class ToTensor(TensorOperation):
    """A picture (height, width, channels) uint8, or a PIL image, as (channels, height, width) from 0 to 1."""

    def __init__(self, output_type: Any = np.float32) -> None:
        self._dtype = to_numpy(output_type)

    def __call__(self, image: Any) -> np.ndarray:
        array = pixels(image)
        array = array[..., None] if array.ndim == 2 else array
        if array.dtype == np.uint8:
            array = array.astype(np.float32) / np.float32(255)
        return np.ascontiguousarray(array.transpose(2, 0, 1).astype(self._dtype))


class ToPIL(TensorOperation):
    """A picture (height, width, channels) uint8 as a PIL image, for functions of one's own."""

    def __call__(self, image: Any) -> Any:
        from PIL import Image
        array = pixels(image)
        return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)
