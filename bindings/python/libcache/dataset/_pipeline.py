# SPDX-License-Identifier: Apache-2.0
"""Dataset: a node of a pipeline, with everything that can be done to one.

Nodes are descriptions. What they give is made by a Run, in one of two ways: rows that have ids come from
fetch(position, id), through all maps and caches on the way (_pass); others come one after the other (_rows).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from .._errors import Error
from . import _check, _rules
from ._cache import DatasetCache
from ._identity import identity
from ._run import Indexed, Row, Run, rows_of, shuffled
from ._tensor import from_stored, to_stored
from .samplers import sample_count

if TYPE_CHECKING:
    from ._iterators import DictIterator, TupleIterator
    from ._sources import Source

Names = Union[str, Sequence[str]]


class Dataset:
    """A pipeline up to and including this node. Its methods give new nodes and change nothing.

    Columns have names; a row is one array per column. Nothing is read before an iterator or a getter needs it.
    """

    def __init__(self, *children: "Dataset", num_parallel_workers: Optional[int] = None, cache: Any = None) -> None:
        _check.workers(num_parallel_workers)
        if cache is not None:
            _rules.check_argument(cache)
        self.children = children
        self.num_parallel_workers = num_parallel_workers
        self.cache: Optional[DatasetCache] = cache

    # ---- what can be put on top -------------------------------------------------------------------------------------

    def map(self, operations: Any, input_columns: Optional[Names] = None, output_columns: Optional[Names] = None,
            column_order: Optional[Names] = None, num_parallel_workers: Optional[int] = None,
            python_multiprocessing: bool = False, cache: Optional[DatasetCache] = None) -> "Dataset":
        """Applies an operation, or a list of them one after the other, to columns of each row.

        operations       of vision and transforms, or functions: each gets one array per column, and gives one array,
                         or a tuple of them
        input_columns    given to the first operation; None: the first column
        output_columns   names of what the last one gives; None: those of input_columns
        column_order     columns to keep, in this order
        num_parallel_workers    threads; rows keep their order
        python_multiprocessing  accepted; threads do the work
        cache            keeps the rows that come out. Functions of your own under a cache are promised not to be
                         random with vision.not_random
        """
        from ._operations import Map
        return Map(self, operations, input_columns, output_columns, column_order, num_parallel_workers, cache)

    def batch(self, batch_size: int, drop_remainder: bool = False,
              num_parallel_workers: Optional[int] = None) -> "Dataset":
        """Rows in groups, stacked along a new first axis. drop_remainder: a last, smaller group is left out."""
        from ._operations import Batch
        return Batch(self, batch_size, drop_remainder, num_parallel_workers)

    def shuffle(self, buffer_size: int) -> "Dataset":
        """Rows in random order as far as a buffer of that many reaches, another one in each epoch."""
        from ._operations import ShuffleRows
        return ShuffleRows(self, buffer_size)

    def repeat(self, count: Optional[int] = None) -> "Dataset":
        """The rows that many times; without end for None or -1."""
        from ._operations import Repeat
        return Repeat(self, count)

    def take(self, count: int = -1) -> "Dataset":
        """The first rows; all for -1."""
        from ._operations import Take
        return Take(self, count)

    def skip(self, count: int) -> "Dataset":
        """All but the first rows."""
        from ._operations import Skip
        return Skip(self, count)

    def zip(self, datasets: Union["Dataset", Sequence["Dataset"]]) -> "Dataset":
        """The columns of several pipelines side by side, as long as all of them have rows."""
        from ._operations import Zip
        return Zip((self, *(datasets if isinstance(datasets, (list, tuple)) else (datasets,))))

    def concat(self, datasets: Union["Dataset", Sequence["Dataset"]]) -> "Dataset":
        """The rows of several pipelines with the same columns, one pipeline after the other."""
        from ._operations import Concat
        return Concat((self, *(datasets if isinstance(datasets, (list, tuple)) else (datasets,))))

    def __add__(self, datasets: Any) -> "Dataset":
        return self.concat(datasets)

    def project(self, columns: Names) -> "Dataset":
        """These columns, in this order."""
        from ._operations import Project
        return Project(self, columns)

    def rename(self, input_columns: Names, output_columns: Names) -> "Dataset":
        """Other names for some columns."""
        from ._operations import Rename
        return Rename(self, input_columns, output_columns)

    def filter(self, predicate: Callable[..., Any], input_columns: Optional[Names] = None,
               num_parallel_workers: Optional[int] = None) -> "Dataset":
        """The rows for which predicate(column, ...) is true; None: it gets all columns."""
        from ._operations import Filter
        return Filter(self, predicate, input_columns, num_parallel_workers)

    def apply(self, apply_func: Callable[["Dataset"], "Dataset"]) -> "Dataset":
        """apply_func(self)"""
        made = apply_func(self)
        if not isinstance(made, Dataset):
            raise TypeError("apply_func must return a dataset.")
        return made

    def split(self, sizes: Sequence[Union[int, float]], randomize: bool = True) -> list["Dataset"]:
        """The rows in parts: numbers of rows, or shares that add up to 1. The parts are disjoint. randomize: each is a
        random choice, the same in every epoch (and every run after config.set_seed)."""
        from ._split import split
        return split(self, sizes, randomize)

    # ---- iterating --------------------------------------------------------------------------------------------------

    def create_dict_iterator(self, num_epochs: int = -1, output_numpy: bool = False,
                             do_copy: bool = True) -> "DictIterator":
        """Rows as dicts, column name -> array. A loop over the iterator is one epoch; num_epochs of them can be had,
        -1: any number. output_numpy: plain arrays, else such that answer asnumpy(). do_copy=False: rows of a cache may
        be read-only views of it."""
        from ._iterators import DictIterator
        return DictIterator(self, num_epochs, output_numpy, do_copy)

    def create_tuple_iterator(self, columns: Optional[Names] = None, num_epochs: int = -1, output_numpy: bool = False,
                              do_copy: bool = True) -> "TupleIterator":
        """Rows as lists of arrays, of these columns or all; else as create_dict_iterator."""
        from ._iterators import TupleIterator
        node = self if columns is None else self.project(columns)
        return TupleIterator(node, num_epochs, output_numpy, do_copy)

    def __iter__(self) -> "TupleIterator":
        return self.create_tuple_iterator(num_epochs=1)

    # ---- getters ----------------------------------------------------------------------------------------------------

    def get_col_names(self) -> list[str]:
        """Names of the columns."""
        _rules.check_tree(self)
        return list(self._names())

    def get_dataset_size(self) -> int:
        """Rows (or batches) of an epoch; -1: without end. A filter is run to count them."""
        _rules.check_tree(self)
        return self._size()

    def get_batch_size(self) -> int:
        """Rows in one batch; 1 without batch()."""
        _rules.check_tree(self)
        return self._first_answer("batch_size", 1)

    def get_repeat_count(self) -> int:
        """The count of the last repeat(); 1 without one."""
        _rules.check_tree(self)
        return self._first_answer("count_of_repeat", 1)

    def output_shapes(self) -> list[list[int]]:
        """The shape of each column, as the first row has it."""
        return [list(column.shape) for column in self._first_row()]

    def output_types(self) -> list[np.dtype]:
        """The dtype of each column, as the first row has it."""
        return [np.dtype(np.str_) if column.dtype.kind == "U" else column.dtype for column in self._first_row()]

    def num_classes(self) -> Optional[int]:
        """How many classes the source has; None where it has none."""
        _rules.check_tree(self)
        return next((found for node in self._nodes() if (found := node._num_classes()) is not None), None)

    def get_class_indexing(self) -> dict[str, Any]:
        """Class name -> number, for sources that have names; {} elsewhere."""
        _rules.check_tree(self)
        return next((found for node in self._nodes() if (found := node._class_indexing())), {})

    def _first_answer(self, attribute: str, default: int) -> int:
        node: Optional[Dataset] = self
        while node is not None:
            if hasattr(node, attribute):
                return getattr(node, attribute)
            node = node.children[0] if node.children else None
        return default

    def _first_row(self) -> Row:
        _rules.check_tree(self)
        rows = self._run_rows(Run(self))  # not an iterator of the user's: shards must not be counted on by it
        try:
            return next(rows)
        except StopIteration:
            raise RuntimeError("The pipeline has no rows, and so no shapes and types.") from None
        finally:
            rows.close()

    def _num_classes(self) -> Optional[int]:
        return None

    def _class_indexing(self) -> dict[str, Any]:
        return {}

    # ---- for nodes to say -------------------------------------------------------------------------------------------

    def _names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.children[0]._names()

    def _own_size(self, stripped: bool) -> int:
        """Rows of an epoch. stripped: of a source everything, as a cache keeps it."""
        return self.children[0]._size(stripped)

    def _indexed(self, run: Run) -> Optional[Indexed]:
        """A new pass by ids, or None: only _rows can."""
        return None

    def _rows(self, run: Run) -> Iterator[Row]:
        """The rows of a new pass."""
        raise NotImplementedError

    def _identity(self) -> Any:
        """What this node does, for telling which pipelines have the same rows."""
        raise NotImplementedError

    def _check_under_cache(self, cached: "Dataset") -> None:
        """RuntimeError if this node may not stand below a cache, or carry one."""

    def _begin(self) -> None:
        """An iterator is being made."""

    # ---- how they are run -------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator["Dataset"]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child._nodes()

    def _source(self) -> "Source":
        """The first source below."""
        node: Any = self
        while node.children:
            node = node.children[0]
        return node

    def _size(self, stripped: bool = False) -> int:
        if self.cache is not None and not stripped and not self._source().by_id:
            return sample_count(self._source().sampler, self._own_size(True))
        return self._own_size(stripped)

    def _run_rows(self, run: Run) -> Iterator[Row]:
        """The rows of a new pass, through the cache if this node has one."""
        if self.cache is not None and not run.building and not self._source().by_id:
            yield from self._stream_rows(run)
            return
        indexed = self._pass(run)
        yield from self._rows(run) if indexed is None else rows_of(indexed)

    def _pass(self, run: Run) -> Optional[Indexed]:
        """A new pass by ids, through the cache if this node has one."""
        if self.cache is not None and not run.building and not self._source().by_id:
            return None
        indexed = self._indexed(run)
        if indexed is None or self.cache is None or run.building:
            return indexed
        link = run.once(self, self._open_by_id)
        return indexed._replace(fetch=self._through_cache(link, indexed.fetch))

    def _label(self) -> str:
        words = [type(node).__name__ for node in self._nodes()]
        return f"{' over '.join(words)}, {self._source().label()}"

    def _open_by_id(self) -> Any:
        core = self.cache.cache_client  # type: ignore[union-attr]
        return core.by_id(identity(self), self._label(), self._source().total(), list(self._names()))

    def _open_stream(self) -> Any:
        core = self.cache.cache_client  # type: ignore[union-attr]
        return core.stream(identity(self), self._label(), list(self._names()), self._to_build)

    def _through_cache(self, link: Any, fetch: Callable[[int, int], Row]) -> Callable[[int, int], Row]:
        core = self.cache.cache_client  # type: ignore[union-attr]

        def fetch_cached(position: int, row_id: int) -> Row:
            found = link.get(row_id)
            if found is not None:
                core.hits += 1
                return tuple(map(from_stored, found))
            core.misses += 1
            row = fetch(position, row_id)
            link.put(row_id, list(map(to_stored, row)))
            return row

        return fetch_cached

    def _stream_rows(self, run: Run) -> Iterator[Row]:
        core = self.cache.cache_client  # type: ignore[union-attr]
        key = run.next_pass(self)
        stream = run.once(self, self._open_stream)
        try:
            core.ask_server()
            with stream.reading():
                ids = self._source().stream_ids(stream, key)
                for node in self._nodes():  # a shuffle below a cache shuffles what comes out of it
                    if (size := getattr(node, "buffer_size", None)) is not None:
                        ids = shuffled(ids, size, run.next_pass(node))
                for number in ids:
                    row = stream.row(number)
                    core.hits += 1
                    yield tuple(map(from_stored, row))
        except Error as error:
            raise core.explained(error) from error

    def _to_build(self, skip: int) -> Iterator[list[Any]]:
        """The rows from the skip-th on, as a cache stores them."""
        run = Run(self, building=True)
        if not any(hasattr(node, "count_of_repeat") for node in self._nodes()):
            run.skip, skip = skip, 0  # the source does not even parse them
        core = self.cache.cache_client  # type: ignore[union-attr]
        for row in itertools.islice(self._run_rows(run), skip, None):
            core.misses += 1
            yield list(map(to_stored, row))
