# SPDX-License-Identifier: Apache-2.0
"""Operations on pictures: arrays (height, width, channels), made with Pillow and NumPy. Sizes are in pixels.

Results are those of Pillow: Resize averages when it makes a picture smaller, where MindSpore's takes single pixels, so
values differ a little from MindSpore's. Scripts of the first generation find the names in c_transforms and
py_transforms.
"""
from ..transforms._operation import not_random
from ._color import RandomColorAdjust
from ._crop import (CenterCrop, RandomCrop, RandomCropDecodeResize, RandomHorizontalFlip, RandomResizedCrop,
                    RandomVerticalFlip)
from ._pixels import Decode, HWC2CHW, Normalize, Rescale, Resize, ToPIL, ToTensor
from .utils import Border, Inter

__all__ = ["Border", "CenterCrop", "Decode", "HWC2CHW", "Inter", "Normalize", "RandomColorAdjust", "RandomCrop",
           "RandomCropDecodeResize", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Rescale",
           "Resize", "ToPIL", "ToTensor", "not_random"]
