# SPDX-License-Identifier: Apache-2.0
"""Cifar10Dataset and Cifar100Dataset: the binary versions of CIFAR."""
from __future__ import annotations

import os
from typing import Any, Optional

import numpy as np

from . import _check
from ._run import Row
from ._sources import MappableSource, damaged, file_stamp, scanned

_PIXELS = 3 * 32 * 32


class _Cifar(MappableSource):
    """Files of rows that are label bytes and a picture, plane by plane."""

    label_count = 1
    files: dict[str, tuple[str, ...]] = {}

    def __init__(self, dataset_dir: str, usage: Optional[str] = None, num_samples: Optional[int] = None,
                 num_parallel_workers: Optional[int] = None, shuffle: Optional[bool] = None, sampler: Any = None,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None, cache: Any = None) -> None:
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache)
        self._folder = _check.folder(dataset_dir)
        if usage is not None:
            _check.one_of("usage", usage, ["train", "test", "all"])
        self._usage = usage or "all"

    def label(self) -> str:
        return self._folder

    @property
    def _row_bytes(self) -> int:
        return self.label_count + _PIXELS

    def _paths(self) -> list[str]:
        kinds = ("train", "test") if self._usage == "all" else (self._usage,)
        paths = [os.path.join(self._folder, name) for kind in kinds for name in self.files[kind]]
        found = [path for path in paths if os.path.exists(path)]
        if not found:
            raise RuntimeError(f"{self._folder} has none of {', '.join(map(os.path.basename, paths))}.")
        return found

    @scanned
    def _parts(self) -> list[tuple[str, np.ndarray, int]]:
        """(path, bytes, rows) of each file. A row that is cut off counts, and is an error when it is read."""
        parts = []
        for path in self._paths():
            if os.path.getsize(path) == 0:
                raise damaged(path, "byte 0", "the file is empty")
            data = np.memmap(path, np.uint8, "r")
            parts.append((path, data, -(-len(data) // self._row_bytes)))
        return parts

    def total(self) -> int:
        return sum(rows for _, _, rows in self._parts())

    def _load(self, row_id: int) -> Row:
        for path, data, rows in self._parts():
            if row_id < rows:
                start = row_id * self._row_bytes
                row = data[start:start + self._row_bytes]
                if len(row) < self._row_bytes:
                    raise damaged(path, f"row {row_id}, byte {start}", f"the file ends at byte {len(data)}, and the "
                                                                       f"row has {self._row_bytes} bytes")
                image = np.ascontiguousarray(row[self.label_count:].reshape(3, 32, 32).transpose(1, 2, 0))
                return (image.view(np.ndarray), *(np.array(byte, np.uint32) for byte in row[:self.label_count]))
            row_id -= rows
        raise IndexError(row_id)

    def labels(self) -> np.ndarray:
        return np.concatenate([data[self.label_count - 1::self._row_bytes][:rows] for _, data, rows in self._parts()])

    def _identity(self) -> Any:
        return type(self).__name__, list(map(file_stamp, self._paths()))


class Cifar10Dataset(_Cifar):
    """CIFAR-10, binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin, or some of them.

    usage  "train", "test", or None and "all" for both, in this order

    Columns: image (32, 32, 3) uint8, label () uint32. Further arguments: see MappableSource.
    """

    columns = ("image", "label")
    files = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}

    def _num_classes(self) -> int:
        return 10


class Cifar100Dataset(_Cifar):
    """CIFAR-100, binary version: train.bin and test.bin, or one of them.

    Columns: image (32, 32, 3) uint8, coarse_label () uint32, fine_label () uint32. See Cifar10Dataset.
    """

    columns = ("image", "coarse_label", "fine_label")
    label_count = 2
    files = {"train": ("train.bin",), "test": ("test.bin",)}

    def _num_classes(self) -> int:
        return 100
