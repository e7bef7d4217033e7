# SPDX-License-Identifier: Apache-2.0
"""The names of libcache.dataset.transforms, for scripts of MindSpore's first generation."""
from . import Compose, OneHot, TypeCast, not_random

__all__ = ["Compose", "OneHot", "TypeCast", "not_random"]
