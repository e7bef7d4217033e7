# SPDX-License-Identifier: Apache-2.0
"""libcache for PyTorch: any map-style data set, read from its source once per machine.

    from libcache.torch import CachedDataset
    train = CachedDataset(torchvision.datasets.ImageFolder("train"), transform=augment)

Every rank and every loader worker of the machine that makes the same data set finds the same cache: it is named by a
fingerprint of the data set (its files, parameters and operations), so that another list of files, another decode or
another version of your own code is another cache, never a wrong row.
"""
from ._dataset import CachedDataset, RandomSampleError, Rows, collate
from ._loader import cached_loader, decode_rgb
from ._samples import SampleError

__all__ = ["CachedDataset", "RandomSampleError", "Rows", "SampleError", "cached_loader", "collate",
           "decode_rgb"]
