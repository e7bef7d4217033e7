# SPDX-License-Identifier: Apache-2.0
"""Caches for MindSpore's own data sets.

    import libcache.dataset, libcache.mindspore
    import mindspore.dataset as ds

    cache = libcache.dataset.DatasetCache(session_id=1456416665)            # cache_admin -g shows the id
    data = ds.MnistDataset("mnist").map(vision.Resize((32, 32)), "image")
    data = libcache.mindspore.cached(data, cache).batch(32)                 # and so on; Model.train runs unchanged

cached() takes any of MindSpore's data sets, also generators, batches, filtered and zipped data, which its own cache
does not take.
"""
from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from typing import Any, Optional

import mindspore.dataset as ds

from ._errors import Error
from ._fingerprint import fingerprint
from .dataset import DatasetCache
from .dataset._check import of_type
from .dataset._sources import file_stamp
from .dataset._tensor import from_stored, to_stored

_FORMAT = "libcache.mindspore 1"
_ONE_TO_ONE = ("MapDataset", "ProjectDataset", "RenameDataset")

# What nodes and operations hold besides that which makes their rows
_NOISE = {"cache", "callbacks", "children", "dataset_size", "device_target", "estimated_output_shapes",
          "implementation", "max_rowsize", "num_parallel_workers", "offload", "parent", "prepared_source",
          "process_pool", "python_multiprocessing", "runtime_context", "sample_fn", "saved_output_shapes",
          "saved_output_types", "seed", "source_len"}
_SAID_BY_SAMPLER = {"num_samples", "num_shards", "shard_id", "shuffle_flag"}


def cached(dataset: Any, cache: DatasetCache, key: Optional[str] = None, num_parallel_workers: int = 1) -> Any:
    """The rows of `dataset`, each made once, as a mindspore.dataset.GeneratorDataset that reads the cache by index.
    When it returns all of them are in the cache: put there by this process, or by another one with the same data set.

    dataset  any data set of MindSpore. Where it is a source, or a source with map, project and rename, its sampler,
             shards, number of samples and shuffle come to bear after the cache, so that all shards share it. Elsewhere
             what it gives is kept in one order, and is shuffled as a whole if something in it was shuffled
    cache    a libcache.dataset.DatasetCache; one object per data set
    key      names the rows, in place of a fingerprint of the data set, where that is not possible
    num_parallel_workers  of the GeneratorDataset

    Random operations below are refused: the cache would freeze them. A function of one's own is promised to give the
    same for the same argument.
    """
    of_type("dataset", dataset, ds.Dataset)
    of_type("cache", cache, DatasetCache)
    _check_random(dataset)
    plain, order = _without_order(dataset)
    tag = fingerprint((_FORMAT, ("key", key) if key is not None else _described(plain)), "dataset")
    rows = _Rows(plain, cache, tag)
    return ds.GeneratorDataset(rows, dataset.get_col_names(), num_parallel_workers=num_parallel_workers,
                               python_multiprocessing=False, **order)


class _Rows:
    """The rows of a data set by index, from the cache, into which it puts all of them first: what GeneratorDataset
    reads. MindSpore's pipelines do not bear being run by another thread, nor within each other."""

    def __init__(self, dataset: Any, cache: DatasetCache, tag: str) -> None:
        self._core = cache.cache_client
        label = f"{' over '.join(type(node).__name__ for node in _nodes(dataset))} of MindSpore"
        names = list(dataset.get_col_names())

        def read(skip: int) -> Iterator[list[Any]]:
            rows = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
            for row in itertools.islice(rows, skip, None):
                self._core.misses += 1
                yield list(map(to_stored, row))

        self._stream = self._core.stream(tag, label, names, read)
        try:
            self._length = self._stream.build_here()
        except Error as error:
            raise self._core.explained(error) from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        try:
            row = self._stream.row(int(index))
        except Error as error:
            raise self._core.explained(error) from error
        if row is None:
            raise IndexError(f"row {index} is beyond the {self._length} rows of the data set")
        self._core.hits += 1
        return tuple(map(from_stored, row))


def _nodes(dataset: Any) -> Iterator[Any]:
    yield dataset
    for child in dataset.children:
        yield from _nodes(child)


def _operations(operations: Any) -> Iterator[Any]:
    """The operations of a map, and those that they are composed of."""
    for operation in operations:
        yield operation
        yield from _operations(getattr(operation, "transforms", None) or ())


def _check_random(dataset: Any) -> None:
    for node in _nodes(dataset):
        for operation in _operations(getattr(node, "operations", None) or ()):
            name = getattr(operation, "__name__", type(operation).__name__)
            if getattr(operation, "random", False) or name.startswith("Random"):
                raise RuntimeError(f"MapNode containing random operation is not supported as a descendant of cache: "
                                   f"{name} would be frozen in what it gave first. Put it into a map above cached().")


def _without_order(dataset: Any) -> tuple[Any, dict[str, Any]]:
    """A copy that gives its rows in one order, and the arguments of GeneratorDataset that choose among them."""
    plain = copy.deepcopy(dataset)
    shuffled = False
    while type(plain).__name__ == "ShuffleDataset":
        plain, shuffled = plain.children[0], True
    node = plain
    while type(node).__name__ in _ONE_TO_ONE:
        node = node.children[0]
    if not node.children:
        order = _take_order(node)
        return plain, {"shuffle": True} if shuffled and not order.keys() & {"sampler", "num_shards"} else order
    for node in list(_nodes(plain)):
        shuffled |= _bypass_shuffles(node)
        if not node.children:
            shuffled |= _still(node)
    return plain, {"shuffle": shuffled}


def _take_order(source: Any) -> dict[str, Any]:
    """Takes sampler, shards, number of samples and shuffle away from a source."""
    if hasattr(source, "sampler"):
        sampler = source.sampler
        if sampler is None or type(sampler) is ds.PKSampler:  # an iterable; a sampler that looks at the labels
            return {"shuffle": False}
        source.sampler = ds.SequentialSampler()
        return {"sampler": sampler}
    order: dict[str, Any] = {"shuffle": source.shuffle_flag > 0}
    if source.num_samples:
        order["num_samples"] = source.num_samples
    if source.num_shards not in (None, 1):
        order.update(num_shards=source.num_shards, shard_id=source.shard_id)
    source.num_samples, source.num_shards, source.shard_id, source.shuffle_flag = 0, 1, 0, 0
    return order


def _still(source: Any) -> bool:
    """Keeps a source below other nodes from shuffling; True if it did. Which rows it gives stays as it is."""
    if not hasattr(source, "sampler"):
        shuffled, source.shuffle_flag = source.shuffle_flag > 0, 0
        return shuffled
    sampler = source.sampler
    if type(sampler) is ds.RandomSampler and not sampler.replacement and not sampler.num_samples:
        source.sampler = ds.SequentialSampler()
        return True
    if type(sampler) is ds.DistributedSampler and str(sampler.shuffle).upper().rpartition(".")[2] != "FALSE":
        source.sampler = ds.DistributedSampler(sampler.num_shards, sampler.shard_id, False, sampler.num_samples,
                                               sampler.offset)
        return True
    return False


def _bypass_shuffles(node: Any) -> bool:
    found = False
    for place, child in enumerate(node.children):
        while type(child).__name__ == "ShuffleDataset":
            child, found = child.children[0], True
        node.children[place] = child
    return found


def _described(value: Any) -> Any:
    """What makes the rows: of MindSpore's objects their kind and state without noise, files with their sizes and
    times."""
    if isinstance(value, ds.Dataset):
        return "node", type(value).__name__, _state(value), [_described(child) for child in value.children]
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    if isinstance(value, ds.Schema):
        return "schema", value.to_json()
    if isinstance(value, str) and os.path.isfile(value):
        return "file", file_stamp(value)
    if isinstance(value, str) and os.path.isdir(value):
        return "folder", os.path.realpath(value), os.stat(value).st_mtime_ns
    if type(value).__module__.startswith("mindspore.") and hasattr(value, "__dict__"):
        return "object", type(value).__name__, _state(value)
    return value


def _state(value: Any) -> dict[str, Any]:
    noise = _NOISE | _SAID_BY_SAMPLER if hasattr(value, "sampler") else _NOISE
    return {name: _described(item) for name, item in vars(value).items()
            if name not in noise and not name.startswith("_")}
