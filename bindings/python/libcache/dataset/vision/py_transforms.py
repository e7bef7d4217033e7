# SPDX-License-Identifier: Apache-2.0
"""The names of libcache.dataset.vision as scripts of MindSpore's first generation use them with Python functions:
Decode gives a PIL image, and the picture that ToTensor made, (channels, height, width), is what Normalize takes."""
from collections.abc import Sequence

from . import (Border, CenterCrop, Inter, RandomColorAdjust, RandomCrop, RandomHorizontalFlip, RandomResizedCrop,
               RandomVerticalFlip, Resize, ToPIL, ToTensor, not_random)
from . import Decode as _Decode
from . import Normalize as _Normalize

__all__ = ["Border", "CenterCrop", "Decode", "Inter", "Normalize", "RandomColorAdjust", "RandomCrop",
           "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize", "ToPIL", "ToTensor",
           "not_random"]


class Decode(_Decode):
    """An encoded picture as a PIL image in RGB."""

    def __init__(self) -> None:
        super().__init__(to_pil=True)


class Normalize(_Normalize):
    """As vision.Normalize, of a picture (channels, height, width)."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(mean, std, is_hwc=False)
