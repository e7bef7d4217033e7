# SPDX-License-Identifier: Apache-2.0
"""GeneratorDataset: rows that come from Python."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Optional


from . import _check
from ._pipeline import Dataset
from ._run import Indexed, Row, Run
from ._sources import MappableSource
from ._tensor import as_column
from .dtype import to_numpy


class GeneratorDataset(MappableSource):
    """Rows from a Python object: one with __getitem__ and __len__, whose rows have ids, or an iterable, or a function
    that gives an iterable, which is asked anew in each epoch.

    source        gives a row as an array, or a tuple of arrays, one per column
    column_names  of its columns
    column_types  a dtype for each; None: as they come

    shuffle, sampler and shards need __getitem__ and __len__. It takes no cache: its rows may be others each time; see
    libcache.torch.CachedDataset and libcache.mindspore.cached. Further arguments: see MappableSource.
    """

    def __init__(self, source: Any, column_names: Any = None, column_types: Optional[Sequence[Any]] = None,
                 schema: None = None, num_samples: Optional[int] = None, num_parallel_workers: int = 1,
                 shuffle: Optional[bool] = None, sampler: Any = None, num_shards: Optional[int] = None,
                 shard_id: Optional[int] = None, python_multiprocessing: bool = True, max_rowsize: Any = None) -> None:
        if schema is not None:
            raise ValueError("GeneratorDataset takes column_names and column_types in place of a schema.")
        self.samplable = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if not self.samplable and not callable(source) and not hasattr(source, "__iter__"):
            raise TypeError("Argument source must have __getitem__ and __len__, be an iterable, or a function that "
                            "gives one.")
        if sampler is not None or num_shards is not None or shuffle:
            self._check_samplable()
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id)
        if column_names is None:
            raise ValueError("Neither column_names nor schema are provided.")
        self.columns = tuple(_check.names("column_names", column_names))
        self._types = None if column_types is None else [to_numpy(each) for each in column_types]
        if self._types is not None and len(self._types) != len(self.columns):
            raise ValueError("column_names and column_types must have the same number of entries.")
        self._source_object = source
        self._limit = _check.samples(num_samples)

    def total(self) -> int:
        if self.samplable:
            return len(self._source_object)
        return sum(1 for _ in self._iterate())

    def _own_size(self, stripped: bool) -> int:
        if self.samplable:
            return super()._own_size(stripped)
        return self.total() if self._limit is None else min(self.total(), self._limit)

    def _load(self, row_id: int) -> Row:
        try:
            given = self._source_object[row_id]
        except Exception as error:
            raise RuntimeError(f"Exception thrown from user defined Python function in dataset: row {row_id} of "
                               f"{type(self._source_object).__name__}: {type(error).__name__}: {error}") from error
        return self._row(given, row_id)

    def _row(self, given: Any, number: int) -> Row:
        values = given if isinstance(given, tuple) else (given,)
        if len(values) != len(self.columns):
            raise RuntimeError(f"Invalid columns, row {number} of the generator has {len(values)} and column_names "
                               f"{len(self.columns)}: {list(self.columns)}.")
        columns = [as_column(value, f"the generator, row {number}, column {name}")
                   for value, name in zip(values, self.columns)]
        if self._types is not None:
            columns = [column.astype(dtype, copy=False) for column, dtype in zip(columns, self._types)]
        return tuple(columns)

    def _iterate(self) -> Iterator[Any]:
        return iter(self._source_object() if callable(self._source_object) else self._source_object)

    def _indexed(self, run: Run) -> Optional[Indexed]:
        return super()._indexed(run) if self.samplable else None

    def _rows(self, run: Run) -> Iterator[Row]:
        for number, given in enumerate(itertools.islice(self._iterate(), self._limit)):
            yield self._row(given, number)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise RuntimeError("There is currently no support for GeneratorOp under cache. libcache.torch.CachedDataset "
                           "and libcache.mindspore.cached keep what a generator gives.")
