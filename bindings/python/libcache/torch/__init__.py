# SPDX-License-Identifier: Apache-2.0
"""libcache for PyTorch: any data set, read from its source once per machine.

    from libcache.torch import CachedDataset
    train = CachedDataset(torchvision.datasets.ImageFolder("train"), transform=augment)
    loader = CachedLoader(train, batch_size=64, shuffle=True, num_workers=4)    # or DataLoader

CachedIterable is for data sets without an index, cached_loader for files that do not fit into memory decoded.

Every rank and every loader worker of the machine that makes the same data set finds the same cache: it is named by a
fingerprint of the data set (its files, parameters and operations), so that another list of files, another decode or
another version of your own code is another cache, never a wrong row.
"""
from ._cached_loader import CachedLoader
from ._collate import Rows, collate
from ._dataset import CachedDataset, RandomSampleError
from ._iterable import CachedIterable
from ._loader import cached_loader, decode_rgb
from ._samples import SampleError

__all__ = ["CachedDataset", "CachedIterable", "CachedLoader", "RandomSampleError", "Rows", "SampleError",
           "cached_loader", "collate", "decode_rgb"]
