# SPDX-License-Identifier: Apache-2.0
"""RandomDataset: rows made up, for trying a pipeline."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np

from . import _check, config
from ._run import Row, Run
from ._schema import Column, Schema, load
from ._sources import StreamSource
from .samplers import sample_ids

_MOST_ROWS = 1000  # of one that does not say how many


class RandomDataset(StreamSource):
    """Rows of random numbers. The same arguments (and config.set_seed) give the same rows.

    total_rows    how many; None: between 1 and 1,000
    schema        path of a JSON file, or a Schema; None: one is made up
    columns_list  these columns, in this order

    shuffle is False unless given. Further arguments: see StreamSource.
    """

    def __init__(self, total_rows: Optional[int] = None, schema: Union[None, str, Schema] = None,
                 columns_list: Optional[Sequence[str]] = None, num_samples: Optional[int] = None,
                 num_parallel_workers: Optional[int] = None, cache: Any = None, shuffle: Optional[bool] = None,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None) -> None:
        if total_rows is not None:
            _check.within("total_rows", total_rows, 0, 2**63 - 1)
        if shuffle is not None:
            _check.of_type("shuffle", shuffle, bool)
        super().__init__(num_samples, num_parallel_workers, bool(shuffle), num_shards, shard_id, cache)
        self._seed = config.get_seed()
        rng = np.random.default_rng(self._seed)
        self._total = total_rows or int(rng.integers(1, _MOST_ROWS + 1))
        found = load(schema) or _made_up(rng)
        known = {column.name: column for column in found.columns}
        listed = None if not columns_list else _check.names("columns_list", columns_list)
        missing = [name for name in listed or () if name not in known]
        if missing:
            raise RuntimeError(f"the columns {missing} of columns_list are not in the schema; there are "
                               f"{sorted(known)}.")
        self._columns = [known[name] for name in listed or known]
        self.columns = tuple(column.name for column in self._columns)

    def label(self) -> str:
        return f"{self._total} random rows"

    def total(self) -> int:
        return self._total

    def _rows(self, run: Run) -> Iterator[Row]:
        if run.building:
            ids = np.arange(run.skip, self._total)
        else:
            ids = sample_ids(self.sampler, self._total, run.next_pass(self))
        return map(self._row, ids.tolist())

    def _row(self, number: int) -> Row:
        rng = np.random.default_rng((self._seed, number))
        return tuple(_numbers(column, rng) for column in self._columns)

    def _identity(self) -> Any:
        columns = [(column.name, column.dtype.str, column.shape, column.rank) for column in self._columns]
        return "RandomDataset", self._seed, self._total, columns


def _made_up(rng: np.random.Generator) -> Schema:
    schema = Schema()
    for number in range(int(rng.integers(1, 5))):
        schema.add_column(f"c{number}", rng.choice(["uint8", "int32", "int64", "float32"]),
                          rng.integers(1, 32, int(rng.integers(1, 4))))
    return schema


def _numbers(column: Column, rng: np.random.Generator) -> np.ndarray:
    """Random values: numbers of all sizes, floats from [0, 1), words of letters."""
    shape = column.shape if column.shape is not None else () if column.rank == 0 else (1,)
    if column.dtype.kind == "f":
        return np.asarray(rng.random(shape), column.dtype)
    if column.dtype.kind == "U":
        letters = rng.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint32)
        return np.ascontiguousarray(letters).view("U8")[..., 0]
    if column.dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(column.dtype)
    limits = np.iinfo(column.dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, column.dtype, endpoint=True))
