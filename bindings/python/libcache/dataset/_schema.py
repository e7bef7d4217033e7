# SPDX-License-Identifier: Apache-2.0
"""Schema: names, types and shapes of the columns of TFRecordDataset and RandomDataset."""
from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _check
from .dtype import to_numpy


class Column(NamedTuple):
    """What a schema says of a column."""

    name: str
    dtype: np.dtype
    shape: Optional[tuple[int, ...]]  #: None: one dimension, or none if rank is 0
    rank: int


class Schema:
    """Columns, from a JSON file as MindSpore's, or added one by one.

        schema = ds.Schema()
        schema.add_column("image", de_type="uint8", shape=[28, 28])
    """

    def __init__(self, schema_file: Optional[str] = None) -> None:
        self.columns: list[Column] = []
        self.num_rows: Optional[int] = None
        self.dataset_type = ""
        if schema_file is not None:
            self._read(_check.file(schema_file))

    def add_column(self, name: str, de_type: Any, shape: Optional[Sequence[int]] = None) -> None:
        """Adds a column; shape None: one dimension of any length."""
        _check.of_type("name", name, str)
        listed = None if shape is None else tuple(int(extent) for extent in shape)
        self.columns.append(Column(name, to_numpy(de_type), listed, 1 if listed is None else len(listed)))

    def _read(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            self.dataset_type = content.get("datasetType", "")
            self.num_rows = content.get("numRows")
            columns = content["columns"]
            listed = columns.items() if isinstance(columns, dict) else [(item["name"], item) for item in columns]
            for name, item in listed:
                shape = tuple(map(int, item["shape"])) if "shape" in item else None
                self.columns.append(Column(name, to_numpy(item["type"]), shape, int(item.get("rank", 1))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeError(f"{path}: not a schema: {type(error).__name__} {error}") from error


def load(schema: Union[None, str, os.PathLike, Schema]) -> Optional[Schema]:
    """The schema of an argument: a path, a Schema or None."""
    if schema is None or isinstance(schema, Schema):
        return schema
    _check.of_type("schema", schema, str, os.PathLike)
    return Schema(os.fspath(schema))
