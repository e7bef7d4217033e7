# SPDX-License-Identifier: Apache-2.0
"""libcache.dataset: MindSpore's data sets and its DatasetCache, for scripts that were written for them.

    import libcache.dataset as ds
    import libcache.dataset.vision as vision

    cache = ds.DatasetCache(session_id=1456416665, size=0, spilling=True)      # cache_admin -g shows the id
    data = ds.MnistDataset("mnist", cache=cache)
    data = data.map(vision.Resize((32, 32)), input_columns="image").shuffle(10_000).batch(32, drop_remainder=True)
    for row in data.create_dict_iterator(num_epochs=1, output_numpy=True):
        row["image"], row["label"]

The first epoch fills the cache while it is read; later ones, and other processes with the same pipeline and session,
read it. Images are decoded by Pillow (python3-pil); TFRecord files need python3-protobuf and python3-crc32c. MindSpore
is not needed; for MindSpore's own data sets see libcache.mindspore.
"""
from collections.abc import Sequence

from . import config, dtype, transforms, vision
from ._cache import CacheError, CacheStat, DatasetCache
from ._cifar import Cifar10Dataset, Cifar100Dataset
from ._coco import CocoDataset
from ._folder import ImageFolderDataset
from ._generator import GeneratorDataset
from ._iterators import DictIterator, TupleIterator
from ._mnist import MnistDataset
from ._operations import Zip
from ._pipeline import Dataset
from ._random_rows import RandomDataset
from ._schema import Schema
from ._tensor import Tensor
from ._tfrecord import TFRecordDataset
from ._voc import VOCDataset
from .samplers import (DistributedSampler, PKSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
                       SubsetSampler, WeightedRandomSampler)
from ._shuffle import Shuffle

__all__ = ["CacheError", "CacheStat", "Cifar100Dataset", "Cifar10Dataset", "CocoDataset", "Dataset", "DatasetCache",
           "DictIterator", "DistributedSampler", "GeneratorDataset", "ImageFolderDataset", "MnistDataset", "PKSampler",
           "RandomDataset", "RandomSampler", "Sampler", "Schema", "SequentialSampler", "Shuffle", "SubsetRandomSampler",
           "SubsetSampler", "TFRecordDataset", "Tensor", "TupleIterator", "VOCDataset", "WeightedRandomSampler",
           "config", "dtype", "transforms", "vision", "zip"]


def zip(datasets: Sequence[Dataset]) -> Dataset:  # noqa: A001 - the original's name
    """The columns of several pipelines side by side: ds.zip((images, labels))."""
    return Zip(datasets)
