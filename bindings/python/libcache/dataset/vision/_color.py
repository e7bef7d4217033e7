# SPDX-License-Identifier: Apache-2.0
"""Operations on colours."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from .._random import generator
from ..transforms._operation import TensorOperation
from ._pixels import pixels

Amount = Union[float, Sequence[float]]


def _limits(name: str, amount: Amount, centre: float, lowest: float) -> tuple[float, float]:
    if isinstance(amount, (int, float)):
        low, high = max(lowest, centre - amount), centre + amount
    else:
        low, high = amount
    if not lowest <= low <= high:
        raise ValueError(f"{name} is one number that is not negative, or a range (min, max) from {lowest} on; got "
                         f"{amount}.")
    return float(low), float(high)


class RandomColorAdjust(TensorOperation):
    """Brightness, contrast, saturation and hue changed by random factors, of a picture (height, width, 3) uint8 in RGB.

    brightness, contrast, saturation  a: a factor from max(0, 1 - a) to 1 + a; (low, high): a factor from there
    hue                               a: turned by -a to a of the circle, at most 0.5; (low, high)
    """

    random = True

    def __init__(self, brightness: Amount = (1, 1), contrast: Amount = (1, 1), saturation: Amount = (1, 1),
                 hue: Amount = (0, 0)) -> None:
        self._factors = [_limits("brightness", brightness, 1, 0), _limits("contrast", contrast, 1, 0),
                         _limits("saturation", saturation, 1, 0)]
        self._hue = _limits("hue", hue, 0, -0.5)
        if self._hue[1] > 0.5:
            raise ValueError(f"hue is at most 0.5; got {hue}.")

    def __call__(self, image: Any) -> np.ndarray:
        from PIL import Image, ImageEnhance
        rng = generator()
        made = Image.fromarray(pixels(image))
        for enhance, limits in zip((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), self._factors):
            made = enhance(made).enhance(rng.uniform(*limits))
        if self._hue != (0, 0):
            planes = np.array(made.convert("HSV"))
            planes[..., 0] += np.uint8(round(rng.uniform(*self._hue) * 256) % 256)
            made = Image.fromarray(planes, "HSV").convert("RGB")
        return np.asarray(made)
