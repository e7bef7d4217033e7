# SPDX-License-Identifier: Apache-2.0
"""split(): disjoint parts of a pipeline."""
from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Optional, Union

import numpy as np

from . import _rules, config
from ._pipeline import Dataset
from ._run import Indexed, Row, Run
from ._sources import MappableSource
from .samplers import DistributedSampler, RandomSampler, _Split


def split(dataset: Dataset, sizes: Sequence[Union[int, float]], randomize: bool) -> list[Dataset]:
    """On a source with ids the parts are sources with samplers of their own."""
    counts = _counts(dataset.get_dataset_size(), sizes)
    bounds = np.cumsum([0, *counts]).tolist()
    order = config.next_seed()[0] if randomize else None
    if isinstance(dataset, MappableSource) and dataset.samplable:
        return [_part(dataset, start, stop, order) for start, stop in zip(bounds, bounds[1:])]
    return [Part(dataset, start, stop, order) for start, stop in zip(bounds, bounds[1:])]


def _part(source: MappableSource, start: int, stop: int, order: Optional[int]) -> Dataset:
    if isinstance(source.sampler, DistributedSampler):
        raise RuntimeError("Dataset should not be sharded before split: split first, and shard the parts.")
    part = copy.copy(source)
    sampler = source.sampler
    part.sampler = _Split(start, stop, order, isinstance(sampler, RandomSampler) and not sampler.replacement)
    if not (part.sampler.shuffle and sampler.num_samples is None and sampler.get_child() is None):
        part.sampler.child_sampler = sampler
    return part


def _counts(rows: int, sizes: Sequence[Union[int, float]]) -> list[int]:
    """Numbers of rows, from numbers or from shares."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise ValueError("sizes is a list of numbers of rows, or of shares that add up to 1; it cannot be empty.")
    if all(isinstance(size, int) for size in sizes):
        counts = list(sizes)
        if min(counts) <= 0 or sum(counts) != rows:
            raise RuntimeError(f"Sum of split sizes {sum(counts)} is not equal to dataset size {rows}, or one is not "
                               f"positive.")
        return counts
    if not all(isinstance(size, float) and 0 < size <= 1 for size in sizes):
        raise ValueError("sizes is a list of positive ints, or of floats between 0 and 1.")
    if abs(sum(sizes) - 1) > 1e-9:
        raise ValueError("sizes is a list of float, but the percentages do not sum up to 1.")
    counts = [round(size * rows) for size in sizes]
    for place in range(len(counts)):  # what rounding has left over, or missed, goes to the first parts
        if sum(counts) == rows:
            break
        counts[place] += 1 if sum(counts) < rows else -1
    if min(counts) <= 0:
        raise RuntimeError(f"percentages {list(sizes)} are too small: a part of the {rows} rows would be empty.")
    return counts


class Part(Dataset):
    """Rows [start, stop) of a fixed order, wherever an epoch has them: the part of a pipeline that is not split at its
    source. Rows without ids are known by their position: a stream that is shuffled below is split anew in each
    epoch."""

    def __init__(self, child: Dataset, start: int, stop: int, order: Optional[int]) -> None:
        super().__init__(child)
        self._start, self._stop, self._order = start, stop, order

    def _own_size(self, stripped: bool) -> int:
        return self._stop - self._start

    def _members(self, rows: int) -> np.ndarray:
        fixed = np.arange(rows) if self._order is None else np.random.default_rng(self._order).permutation(rows)
        return fixed[self._start:self._stop]

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        if below is None:
            return None
        by_id = np.argsort(below.ids, kind="stable")
        return below._replace(ids=below.ids[np.sort(by_id[self._members(len(by_id))])])

    def _rows(self, run: Run) -> Iterator[Row]:
        members = set(self._members(self.children[0]._size()).tolist())
        return (row for position, row in enumerate(self.children[0]._run_rows(run)) if position in members)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("TakeNode (possibly from Split)")
