# SPDX-License-Identifier: Apache-2.0
"""Choices for operations on pictures."""
import enum


class Inter(enum.IntEnum):
    """How a picture is resized."""

    NEAREST = 0
    ANTIALIAS = 1
    LINEAR = 2
    BILINEAR = 2
    CUBIC = 3
    BICUBIC = 3
    AREA = 4
    PILCUBIC = 5


class Border(str, enum.Enum):
    """What stands in the padding around a picture."""

    CONSTANT = "constant"    #: a value
    EDGE = "edge"            #: the outermost pixel
    REFLECT = "reflect"      #: the picture mirrored, without its outermost pixel
    SYMMETRIC = "symmetric"  #: the picture mirrored
