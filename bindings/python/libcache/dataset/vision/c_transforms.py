# SPDX-License-Identifier: Apache-2.0
"""The names of libcache.dataset.vision, for scripts of MindSpore's first generation."""
from . import (Border, CenterCrop, Decode, HWC2CHW, Inter, Normalize, RandomColorAdjust, RandomCrop,
               RandomCropDecodeResize, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Rescale, Resize,
               ToPIL, ToTensor, not_random)

__all__ = ["Border", "CenterCrop", "Decode", "HWC2CHW", "Inter", "Normalize", "RandomColorAdjust", "RandomCrop",
           "RandomCropDecodeResize", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Rescale",
           "Resize", "ToPIL", "ToTensor", "not_random"]
