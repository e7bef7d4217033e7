# SPDX-License-Identifier: Apache-2.0
"""The nodes that stand on sources: map, batch, shuffle, repeat, take, skip, zip, concat, project, rename, filter."""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from . import _check, _random, _rules, config
from ._check import INT32_MAX, within
from ._pipeline import Dataset, Names
from ._run import Indexed, Row, Run, in_order, shuffled
from ._tensor import as_column, own
from .transforms._operation import TensorOperation

_NOTHING = contextlib.nullcontext()


def column_places(names: Sequence[str], wanted: Sequence[str], what: str) -> list[int]:
    """Where the wanted columns stand. RuntimeError for one that is not there."""
    for name in wanted:
        if name not in names:
            raise RuntimeError(f"Invalid column, {what}: column name {name} does not exist; there are {list(names)}.")
    return [names.index(name) for name in wanted]


def _distinct(names: Sequence[str], what: str) -> tuple[str, ...]:
    for name in names:
        if list(names).count(name) > 1:
            raise RuntimeError(f"Invalid data, duplicate column {name} already exists, in {what}; columns: "
                               f"{list(names)}.")
    return tuple(names)


class Map(Dataset):
    """Operations on columns."""

    def __init__(self, child: Dataset, operations: Any, input_columns: Optional[Names], output_columns: Optional[Names],
                 column_order: Optional[Names], num_parallel_workers: Optional[int], cache: Any) -> None:
        super().__init__(child, num_parallel_workers=num_parallel_workers, cache=cache)
        self.operations = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        if not self.operations:
            raise ValueError("Input operations should not be an empty list.")
        for operation in self.operations:
            if not callable(operation):
                raise TypeError(f"operations: {operation!r} is neither an operation nor a function.")
        self._inputs = None if input_columns is None else _check.names("input_columns", input_columns)
        self._outputs = None if output_columns is None else _check.names("output_columns", output_columns)
        self._order = None if column_order is None else _check.names("column_order", column_order)
        self._has_random = any(map(_rules.is_random, self.operations))

    def _plan(self) -> tuple[list[int], list[int], tuple[str, ...], list[int]]:
        """Places of the inputs, places of the columns that stay, names of all that come out, and where in (outputs +
        staying) each of them stands."""
        names = self.children[0]._names()
        inputs = self._inputs or [names[0]]
        outputs = self._outputs or inputs
        taken = column_places(names, inputs, "map")
        staying = [place for place in range(len(names)) if place not in taken]
        made = [*outputs, *(names[place] for place in staying)]
        if len(outputs) == len(inputs):  # each stands where its input stood
            where = [taken.index(place) if place in taken else len(taken) + staying.index(place)
                     for place in range(len(names))]
        else:
            where = list(range(len(made)))
        listed = _distinct([made[place] for place in where], "map")
        if self._order is not None:
            where = [where[place] for place in column_places(listed, self._order, "map, column_order")]
            listed = tuple(self._order)
        return taken, staying, listed, where

    def _names(self) -> tuple[str, ...]:
        return self._plan()[2]

    def _maker(self, key: tuple[int, ...]) -> Callable[[int, Row, str], Row]:
        """The function from a row below to a row here. Its further arguments: position in the pass, and what to call
        the row in an error."""
        taken, staying, _, where = self._plan()
        expected = len(self._outputs or taken)

        def make(position: int, row: Row, called: str) -> Row:
            values: tuple[Any, ...] = tuple(row[place] for place in taken)
            with _random.row((*key, position)) if self._has_random else _NOTHING:
                for operation in self.operations:
                    values = _applied(operation, values, called)
            if len(values) != expected:
                raise RuntimeError(f"map operation: {_rules.name_of(self.operations[-1])} gave {len(values)} columns "
                                   f"of {called}, and {expected} are expected: {self._outputs or self._inputs}.")
            made = [as_column(value, _rules.name_of(self.operations[-1])) for value in values]
            made += [row[place] for place in staying]
            return tuple(made[place] for place in where)

        return make

    def _workers(self) -> int:
        return self.num_parallel_workers or config.get_num_parallel_workers()

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        if below is None:
            return None
        make, fetch, describe = self._maker(run.next_pass(self)), below.fetch, self._source().describe

        def fetch_made(position: int, row_id: int) -> Row:
            return make(position, fetch(position, row_id), describe(row_id))

        return below._replace(fetch=fetch_made, workers=max(below.workers, self._workers()))

    def _rows(self, run: Run) -> Iterator[Row]:
        make = self._maker(run.next_pass(self))
        rows = ((position, row, f"row {position}") for position, row in enumerate(self.children[0]._run_rows(run)))
        return in_order(make, rows, self._workers())

    def _identity(self) -> Any:
        return "map", self.operations, self._inputs, self._outputs, self._order


def _applied(operation: Any, values: tuple[Any, ...], called: str) -> tuple[Any, ...]:
    """What an operation makes of columns, as a tuple."""
    if not isinstance(operation, TensorOperation):  # somebody's function may write to its arguments
        values = tuple(own(value) if isinstance(value, np.ndarray) else value for value in values)
    try:
        result = operation(*values)
    except Exception as error:
        raise RuntimeError(f"map operation: [{_rules.name_of(operation)}] failed on {called}. Error description: "
                           f"{type(error).__name__}: {error}") from error
    return result if isinstance(result, tuple) else (result,)


class Batch(Dataset):
    """Rows in groups."""

    def __init__(self, child: Dataset, batch_size: int, drop_remainder: bool,
                 num_parallel_workers: Optional[int]) -> None:
        super().__init__(child, num_parallel_workers=num_parallel_workers)
        within("batch_size", batch_size, 1, INT32_MAX)
        _check.of_type("drop_remainder", drop_remainder, bool)
        self.batch_size, self._drop = batch_size, drop_remainder

    def _own_size(self, stripped: bool) -> int:
        rows = self.children[0]._size(stripped)
        if rows < 0:
            return rows
        return rows // self.batch_size if self._drop else -(-rows // self.batch_size)

    def _rows(self, run: Run) -> Iterator[Row]:
        names = self._names()
        rows = self.children[0]._run_rows(run)
        while group := list(itertools.islice(rows, self.batch_size)):
            if len(group) < self.batch_size and self._drop:
                return
            yield tuple(_stacked(name, columns) for name, columns in zip(names, zip(*group)))

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("BatchNode")


def _stacked(name: str, columns: Sequence[np.ndarray]) -> np.ndarray:
    first = columns[0]
    for column in columns:
        if column.shape != first.shape or (column.dtype != first.dtype and column.dtype.kind not in "US"):
            raise RuntimeError(f"Inconsistent batch shapes, column {name}: a batch needs rows of the same shape and "
                               f"type, and has {first.shape} {first.dtype} and {column.shape} {column.dtype}. Resize "
                               f"them before batch().")
    return np.stack(columns)


class ShuffleRows(Dataset):
    """Rows in random order."""

    def __init__(self, child: Dataset, buffer_size: int) -> None:
        super().__init__(child)
        within("buffer_size", buffer_size, 2, INT32_MAX)
        self.buffer_size = buffer_size

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        if below is None or run.building:
            return below
        order = shuffled(below.ids.tolist(), self.buffer_size, run.next_pass(self))
        return below._replace(ids=np.fromiter(order, np.int64))

    def _rows(self, run: Run) -> Iterator[Row]:
        rows = self.children[0]._run_rows(run)
        return rows if run.building else shuffled(rows, self.buffer_size, run.next_pass(self))

    def _identity(self) -> Any:
        return None  # it comes to bear after the cache


class Repeat(Dataset):
    """The rows several times."""

    def __init__(self, child: Dataset, count: Optional[int]) -> None:
        super().__init__(child)
        if count is not None:
            _check.of_type("count", count, int)
            if count != -1 and not 1 <= count <= INT32_MAX:
                raise ValueError("count should be either -1 or positive integer, range[1, INT32_MAX].")
        self.count_of_repeat = -1 if count is None else count

    def _own_size(self, stripped: bool) -> int:
        rows = self.children[0]._size(stripped)
        return -1 if self.count_of_repeat < 0 or rows < 0 else rows * self.count_of_repeat

    def _rows(self, run: Run) -> Iterator[Row]:
        passes = itertools.count() if self.count_of_repeat < 0 else range(self.count_of_repeat)
        for _ in passes:
            empty = True
            for row in self.children[0]._run_rows(run):
                empty = False
                yield row
            if empty:  # it would be so for ever
                return

    def _check_under_cache(self, cached: Dataset) -> None:
        if self._source().by_id:
            raise RuntimeError("A cache over a RepeatNode of a mappable dataset is not supported. Put repeat() above "
                               "the cache.")
        if self.count_of_repeat < 0:
            raise RuntimeError("A cache over a RepeatNode without end is not supported. Put repeat() above the cache.")

    def _identity(self) -> Any:
        return "repeat", self.count_of_repeat


class Take(Dataset):
    """The first rows."""

    def __init__(self, child: Dataset, count: int) -> None:
        super().__init__(child)
        _check.of_type("count", count, int)
        if count != -1 and not 0 < count <= INT32_MAX:
            raise ValueError(f"count should be either -1 or within the required interval of (0, {INT32_MAX}], got "
                             f"{count}.")
        self._count = None if count == -1 else count

    def _own_size(self, stripped: bool) -> int:
        rows = self.children[0]._size(stripped)
        return rows if self._count is None else self._count if rows < 0 else min(rows, self._count)

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        return below and below._replace(ids=below.ids[:self._count])

    def _rows(self, run: Run) -> Iterator[Row]:
        return itertools.islice(self.children[0]._run_rows(run), self._count)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("TakeNode (possibly from Split)")


class Skip(Dataset):
    """All but the first rows."""

    def __init__(self, child: Dataset, count: int) -> None:
        super().__init__(child)
        within("count", count, 0, INT32_MAX)
        self._count = count

    def _own_size(self, stripped: bool) -> int:
        rows = self.children[0]._size(stripped)
        return rows if rows < 0 else max(0, rows - self._count)

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        return below and below._replace(ids=below.ids[self._count:])

    def _rows(self, run: Run) -> Iterator[Row]:
        return itertools.islice(self.children[0]._run_rows(run), self._count, None)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("SkipNode")


class Zip(Dataset):
    """Columns side by side."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        _check_datasets(datasets, 2)
        super().__init__(*datasets)

    def _names(self) -> tuple[str, ...]:
        return _distinct([name for child in self.children for name in child._names()], "zip")

    def _own_size(self, stripped: bool) -> int:
        sizes = [size for child in self.children if (size := child._size(stripped)) >= 0]
        return min(sizes) if sizes else -1

    def _rows(self, run: Run) -> Iterator[Row]:
        self._names()
        for parts in zip(*(child._run_rows(run) for child in self.children)):
            yield tuple(column for row in parts for column in row)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("ZipNode")


class Concat(Dataset):
    """One pipeline after the other."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        _check_datasets(datasets, 2)
        super().__init__(*datasets)

    def _own_size(self, stripped: bool) -> int:
        sizes = [child._size(stripped) for child in self.children]
        return -1 if min(sizes) < 0 else sum(sizes)

    def _rows(self, run: Run) -> Iterator[Row]:
        names = self._names()
        for child in self.children:
            if set(child._names()) != set(names):
                raise RuntimeError(f"concat: the pipelines have different columns, {list(names)} and "
                                   f"{list(child._names())}. Use rename() or project().")
            where = column_places(child._names(), names, "concat")
            for row in child._run_rows(run):
                yield tuple(row[place] for place in where)

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("ConcatNode")


def _check_datasets(datasets: Any, least: int) -> None:
    _check.of_type("datasets", datasets, list, tuple)
    for dataset in datasets:
        _check.of_type("datasets", dataset, Dataset)
    if len(datasets) < least:
        raise ValueError(f"datasets: {len(datasets)} were given, and {least} are needed at least.")


class _Columns(Dataset):
    """A node that only picks columns."""

    def _where(self) -> list[int]:
        """Places, in the rows below, of the columns that stay."""
        raise NotImplementedError

    def _indexed(self, run: Run) -> Optional[Indexed]:
        below = self.children[0]._pass(run)
        if below is None:
            return None
        where, fetch = self._where(), below.fetch

        def fetch_picked(position: int, row_id: int) -> Row:
            row = fetch(position, row_id)
            return tuple(row[place] for place in where)

        return below._replace(fetch=fetch_picked)

    def _rows(self, run: Run) -> Iterator[Row]:
        where = self._where()
        for row in self.children[0]._run_rows(run):
            yield tuple(row[place] for place in where)


class Project(_Columns):
    """Some columns, in an order of their own."""

    def __init__(self, child: Dataset, columns: Names) -> None:
        super().__init__(child)
        self._columns = _check.names("columns", columns)

    def _where(self) -> list[int]:
        return column_places(self.children[0]._names(), self._columns, "project")

    def _names(self) -> tuple[str, ...]:
        self._where()
        return tuple(self._columns)

    def _identity(self) -> Any:
        return "project", self._columns


class Rename(_Columns):
    """Other names."""

    def __init__(self, child: Dataset, input_columns: Names, output_columns: Names) -> None:
        super().__init__(child)
        self._old = _check.names("input_columns", input_columns)
        self._new = _check.names("output_columns", output_columns)
        if len(self._old) != len(self._new):
            raise ValueError("Number of column names in input_columns and output_columns do not match.")

    def _where(self) -> list[int]:
        return list(range(len(self._names())))

    def _names(self) -> tuple[str, ...]:
        names = list(self.children[0]._names())
        for place, new in zip(column_places(names, self._old, "rename"), self._new):
            names[place] = new
        return _distinct(names, "rename")

    def _identity(self) -> Any:
        return "rename", self._old, self._new


class Filter(Dataset):
    """The rows that a predicate accepts."""

    def __init__(self, child: Dataset, predicate: Callable[..., Any], input_columns: Optional[Names],
                 num_parallel_workers: Optional[int]) -> None:
        super().__init__(child, num_parallel_workers=num_parallel_workers)
        if not callable(predicate):
            raise TypeError("Predicate should be a Python function or a callable Python object.")
        self._predicate = predicate
        self._inputs = None if input_columns is None else _check.names("input_columns", input_columns)

    def _own_size(self, stripped: bool) -> int:
        return sum(1 for _ in self._run_rows(Run(self)))

    def _rows(self, run: Run) -> Iterator[Row]:
        names = self._names()
        where = column_places(names, self._inputs or names, "filter")
        for position, row in enumerate(self.children[0]._run_rows(run)):
            (verdict,) = _applied(self._predicate, tuple(row[place] for place in where), f"row {position}")
            if bool(verdict):
                yield row

    def _check_under_cache(self, cached: Dataset) -> None:
        raise _rules.unsupported("FilterNode")
