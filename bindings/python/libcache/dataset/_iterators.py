# SPDX-License-Identifier: Apache-2.0
"""Iterators over a pipeline. A loop over one is an epoch."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from . import _rules
from ._check import INT32_MAX, of_type, within
from ._pipeline import Dataset
from ._run import Row, Run
from ._tensor import Tensor, own


class _Epochs:
    """The rows of one epoch after the other."""

    def __init__(self, dataset: Dataset, num_epochs: int) -> None:
        _rules.check_tree(dataset)
        self._dataset = dataset
        self._run = Run(dataset)
        for node in dataset._nodes():
            node._begin()
        self._left = num_epochs
        self._rows: Optional[Iterator[Row]] = None

    def next_row(self) -> Optional[Row]:
        """The next row, or None at the end of an epoch."""
        if self._rows is None:
            if self._left == 0:
                raise RuntimeError("EOF buffer encountered. User tries to fetch data beyond the specified number of "
                                   "epochs: make another iterator, or this one with a larger num_epochs.")
            self._left -= self._left > 0
            self._rows = self._dataset._run_rows(self._run)
        row = next(self._rows, None)
        if row is None:
            self._rows = None
        return row

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()  # type: ignore[attr-defined]


class _Iterator:
    def __init__(self, dataset: Dataset, num_epochs: int, output_numpy: bool, do_copy: bool) -> None:
        of_type("num_epochs", num_epochs, int)
        if num_epochs != -1:
            within("num_epochs", num_epochs, 1, INT32_MAX)
        of_type("output_numpy", output_numpy, bool)
        self._names = None if isinstance(self, TupleIterator) else dataset.get_col_names()
        self._numpy, self._copy = output_numpy, do_copy
        self._runtime_context = _Epochs(dataset, num_epochs)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        row = self._runtime_context.next_row()
        if row is None:
            raise StopIteration
        return self._form([self._item(column) for column in row])

    def stop(self) -> None:
        """Ends the iterator: it can no longer be used, and its threads are gone."""
        context = self.__dict__.pop("_runtime_context", None)
        if context is not None:
            context.close()

    def _item(self, column: np.ndarray) -> Any:
        item = own(column) if self._copy else column
        return item if self._numpy else item.view(Tensor)

    def _form(self, items: list[Any]) -> Any:
        raise NotImplementedError


class DictIterator(_Iterator):
    """Rows as dicts, from Dataset.create_dict_iterator."""

    def _form(self, items: list[Any]) -> dict[str, Any]:
        return dict(zip(self._names, items))  # type: ignore[arg-type]


class TupleIterator(_Iterator):
    """Rows as lists, from Dataset.create_tuple_iterator."""

    def _form(self, items: list[Any]) -> list[Any]:
        return items
