# SPDX-License-Identifier: Apache-2.0
"""Samplers: which rows of a source an epoch visits, and in which order.

A sampler turns the number of rows below it into positions among them. It may have a child, whose choice it then chooses
from. What is random is so by a key that names seed, iterator and epoch: the same key gives the same order.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from . import config
from ._check import INT32_MAX, of_type, samples, shards, within

Key = tuple[int, ...]


class Sampler:
    """The base of samplers of one's own: __iter__ yields row ids, 0..self.dataset_size-1, which is set before.

        class Backwards(ds.Sampler):
            def __iter__(self):
                yield from range(self.dataset_size - 1, -1, -1)
    """

    def __init__(self, num_samples: Optional[int] = None) -> None:
        self.num_samples = samples(num_samples)
        self.dataset_size = 0
        self.child_sampler: Optional[Sampler] = None

    def add_child(self, sampler: "Sampler") -> None:
        """Lets this sampler choose from what `sampler` has chosen. One child at most."""
        of_type("sampler", sampler, Sampler)
        if getattr(self, "child_sampler", None) is not None:
            raise RuntimeError("Cannot add a child sampler: this sampler has one already.")
        self.child_sampler = sampler

    def get_child(self) -> Optional["Sampler"]:
        return getattr(self, "child_sampler", None)

    def get_num_samples(self) -> Optional[int]:
        return getattr(self, "num_samples", None)

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def _positions(self, rows: int, key: Key, labels: Optional[Callable[[], np.ndarray]]) -> np.ndarray:
        self.dataset_size = rows
        return np.fromiter((int(position) for position in self), np.int64)

    def _count(self, rows: int) -> int:
        return len(self._positions(rows, (0,), None))

    def _begin(self) -> None:
        """An iterator is being made."""


class _Iterable(Sampler):
    """Any iterable of row ids that was given as sampler."""

    def __init__(self, ids: Any) -> None:
        super().__init__()
        self._ids = ids

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)


class SequentialSampler(Sampler):
    """Rows in order, from start_index on."""

    def __init__(self, start_index: Optional[int] = None, num_samples: Optional[int] = None) -> None:
        super().__init__(num_samples)
        if start_index is not None:
            within("start_index", start_index, 0, 2**63 - 1)
        self.start_index = start_index or 0

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        if self.start_index > rows:
            raise RuntimeError(f"SequentialSampler: start_index {self.start_index} is beyond the {rows} rows there "
                               f"are.")
        return np.arange(self.start_index, rows)


class RandomSampler(Sampler):
    """Rows in random order, each once; with replacement: num_samples draws."""

    def __init__(self, replacement: bool = False, num_samples: Optional[int] = None) -> None:
        super().__init__(num_samples)
        of_type("replacement", replacement, bool)
        self.replacement = replacement

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        rng = np.random.default_rng(key)
        if self.replacement:
            return rng.integers(0, rows, self.num_samples or rows) if rows else np.empty(0, np.int64)
        return rng.permutation(rows)

    def _count(self, rows: int) -> int:
        return (self.num_samples or rows) if self.replacement and rows else rows


class DistributedSampler(Sampler):
    """One of num_shards shares of the rows. The shares together are all rows; where these cannot be divided evenly some
    come twice, so that every share is of the same size, unless offset is given.

    shuffle  all shards use one order, another one in each epoch
    offset   shares begin with shard (offset) and are not evened out: 0..num_shards; -1: evened out
    """

    def __init__(self, num_shards: int, shard_id: int, shuffle: bool = True, num_samples: Optional[int] = None,
                 offset: int = -1) -> None:
        super().__init__(num_samples)
        shards(num_shards, shard_id)
        of_type("shuffle", shuffle, bool)
        within("offset", offset, -1, num_shards)
        self.num_shards, self.shard_id, self.shuffle, self.offset = num_shards, shard_id, shuffle, offset
        self._iterators = 0

    def _begin(self) -> None:
        self._iterators += 1

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        if self.offset >= 0:
            own = np.arange(self.shard_id - self.offset, rows, self.num_shards)
            own = own[own >= 0]
        else:
            own = (self.shard_id + self.num_shards * np.arange(-(-rows // self.num_shards))) % max(rows, 1)
        if not self.shuffle:
            return own
        # Not from the iterator's seed, which the processes of the other shards do not know
        epoch = key[-1]
        return np.random.default_rng((config.get_seed(), self._iterators, epoch)).permutation(rows)[own]


class SubsetSampler(Sampler):
    """The rows of a list, in its order."""

    def __init__(self, indices: Sequence[int], num_samples: Optional[int] = None) -> None:
        super().__init__(num_samples)
        self.indices = [int(index) for index in (indices if hasattr(indices, "__iter__") else [indices])]

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        return np.array(self.indices, np.int64)


class SubsetRandomSampler(SubsetSampler):
    """The rows of a list, in random order."""

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        return np.random.default_rng(key).permutation(np.array(self.indices, np.int64))


class WeightedRandomSampler(Sampler):
    """num_samples rows drawn with these weights, which need not add up to 1."""

    def __init__(self, weights: Sequence[float], num_samples: Optional[int] = None, replacement: bool = True) -> None:
        super().__init__(num_samples)
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1 or not len(self.weights) or (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ValueError("weights must be a list of numbers that are not negative, and not all of them 0.")
        of_type("replacement", replacement, bool)
        self.replacement = replacement

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        count = self.num_samples or len(self.weights)
        return np.random.default_rng(key).choice(len(self.weights), count, self.replacement,
                                                 self.weights / self.weights.sum())


class PKSampler(Sampler):
    """num_val rows of each of num_class classes (all of them by default), class after class."""

    def __init__(self, num_val: int, num_class: Optional[int] = None, shuffle: bool = False,
                 class_column: str = "label", num_samples: Optional[int] = None) -> None:
        super().__init__(num_samples)
        within("num_val", num_val, 1, INT32_MAX)
        if num_class is not None:
            within("num_class", num_class, 1, INT32_MAX)
        self.num_val, self.num_class, self.shuffle, self.class_column = num_val, num_class, shuffle, class_column

    def _positions(self, rows: int, key: Key, labels: Optional[Callable[[], np.ndarray]]) -> np.ndarray:
        if labels is None:
            raise RuntimeError("PKSampler needs a source with one class per row.")
        found = labels()
        rng = np.random.default_rng(key)
        chosen = []
        for each in np.unique(found)[:self.num_class]:
            members = np.flatnonzero(found == each)
            if len(members) < self.num_val:
                raise RuntimeError(f"PKSampler: class {each} has {len(members)} rows, and num_val is {self.num_val}.")
            chosen.append(rng.permutation(members)[:self.num_val] if self.shuffle else members[:self.num_val])
        return np.concatenate(chosen)


class _Split(Sampler):
    """Rows [start, stop) of a fixed order: in it, or anew in random order each epoch."""

    def __init__(self, start: int, stop: int, order: Optional[int], shuffle: bool) -> None:
        super().__init__()
        self.start, self.stop, self.order, self.shuffle = start, stop, order, shuffle

    def _positions(self, rows: int, key: Key, labels: Any) -> np.ndarray:
        fixed = np.arange(rows) if self.order is None else np.random.default_rng(self.order).permutation(rows)
        part = fixed[self.start:self.stop]
        return np.random.default_rng(key).permutation(part) if self.shuffle else part

    def _count(self, rows: int) -> int:
        return self.stop - self.start


def choose(sampler: Optional[Any], num_samples: Optional[int], shuffle: Optional[bool], num_shards: Optional[int],
           shard_id: Optional[int]) -> Sampler:
    """The sampler that a source's arguments mean."""
    shards(num_shards, shard_id)
    limit = samples(num_samples)
    if sampler is None:
        if num_shards is not None:
            return DistributedSampler(num_shards, shard_id, shuffle is None or bool(shuffle), limit)
        return SequentialSampler(num_samples=limit) if shuffle is False else RandomSampler(num_samples=limit)
    if shuffle is not None:
        raise RuntimeError("sampler and shuffle cannot be specified at the same time.")
    if num_shards is not None:
        raise RuntimeError("sampler and sharding cannot be specified at the same time.")
    if isinstance(sampler, Sampler):
        made = sampler
    elif isinstance(sampler, (list, tuple)) and all(isinstance(each, (int, np.integer)) for each in sampler):
        made = SubsetSampler(sampler)
    elif hasattr(sampler, "__iter__"):
        made = _Iterable(sampler)
    else:
        raise TypeError(f"Unsupported sampler object of type ({type(sampler).__name__})")
    if limit is None:
        return made
    first = SequentialSampler(num_samples=limit)
    first.add_child(made)
    return first


def sample_ids(sampler: Sampler, rows: int, key: Key, labels: Optional[Callable[[], np.ndarray]] = None) -> np.ndarray:
    """Row ids of one epoch of a source with that many rows."""
    child = sampler.get_child()
    below = None if child is None else sample_ids(child, rows, key, labels)
    count = rows if below is None else len(below)
    positions = sampler._positions(count, key, labels)[:sampler.get_num_samples()]
    if len(positions) and not 0 <= positions.min() <= positions.max() < count:
        wrong = positions[(positions < 0) | (positions >= count)][0]
        raise RuntimeError(f"{type(sampler).__name__} gave row {wrong}, and there are the rows 0 to {count - 1}.")
    return positions if below is None else below[positions]


def sample_count(sampler: Sampler, rows: int, labels: Optional[Callable[[], np.ndarray]] = None) -> int:
    """How many rows an epoch has."""
    child = sampler.get_child()
    below = rows if child is None else sample_count(child, rows, labels)
    if isinstance(sampler, PKSampler):
        count = len(sampler._positions(below, (0,), labels))
    else:
        count = sampler._count(below)
    limit = sampler.get_num_samples()
    return count if limit is None else min(count, limit)


def begin(sampler: Sampler) -> None:
    """Tells a sampler and its children that an iterator is being made."""
    current: Optional[Sampler] = sampler
    while current is not None:
        current._begin()
        current = current.get_child()
