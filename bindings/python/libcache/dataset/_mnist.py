# SPDX-License-Identifier: Apache-2.0
"""MnistDataset: pictures and labels in IDX files."""
from __future__ import annotations

import gzip
import os
from typing import Any, Optional

import numpy as np

from . import _check
from ._run import Row
from ._sources import MappableSource, damaged, file_stamp, scanned

_IMAGES, _LABELS = 2051, 2049  # the first word of the files
_PARTS = {"test": ("t10k",), "train": ("train",), "all": ("t10k", "train")}


class MnistDataset(MappableSource):
    """The MNIST files of a folder, plain or with .gz behind their names.

    dataset_dir  has train-images-idx3-ubyte, train-labels-idx1-ubyte and the two of t10k
    usage        "train", "test", or None and "all" for the test rows followed by the training rows; None is satisfied
                 with one of them

    Columns: image (28, 28, 1) uint8, label () uint32. Further arguments: see MappableSource.
    """

    columns = ("image", "label")

    def __init__(self, dataset_dir: str, usage: Optional[str] = None, num_samples: Optional[int] = None,
                 num_parallel_workers: Optional[int] = None, shuffle: Optional[bool] = None, sampler: Any = None,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None, cache: Any = None) -> None:
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache)
        self._folder = _check.folder(dataset_dir)
        if usage is not None:
            _check.one_of("usage", usage, ["train", "test", "all"])
        self._usage = usage

    def label(self) -> str:
        return self._folder

    def _paths(self) -> list[tuple[str, str]]:
        """(images, labels) of each part."""
        found = []
        for part in _PARTS[self._usage or "all"]:
            pair = [_existing(os.path.join(self._folder, f"{part}-{kind}-ubyte"))
                    for kind in ("images-idx3", "labels-idx1")]
            if None not in pair:
                found.append((pair[0], pair[1]))
            elif self._usage is not None:
                raise RuntimeError(f"{self._folder} has no {part}-images-idx3-ubyte and {part}-labels-idx1-ubyte.")
        if not found:
            raise RuntimeError(f"{self._folder} has no MNIST files (train-images-idx3-ubyte and the like).")
        return found  # type: ignore[return-value]

    @scanned
    def _parts(self) -> list["_Part"]:
        return [_Part(*pair) for pair in self._paths()]

    def total(self) -> int:
        return sum(part.rows for part in self._parts())

    def _load(self, row_id: int) -> Row:
        for part in self._parts():
            if row_id < part.rows:
                return part.load(row_id)
            row_id -= part.rows
        raise IndexError(row_id)

    def labels(self) -> np.ndarray:
        return np.concatenate([part.label_bytes[8:8 + part.rows] for part in self._parts()])

    def _identity(self) -> Any:
        return "MnistDataset", [tuple(map(file_stamp, pair)) for pair in self._paths()]


def _existing(path: str) -> Optional[str]:
    return next((name for name in (path, path + ".gz") if os.path.exists(name)), None)


def _bytes_of(path: str) -> np.ndarray:
    if not path.endswith(".gz"):
        return np.memmap(path, np.uint8, "r") if os.path.getsize(path) else np.empty(0, np.uint8)
    try:
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), np.uint8)
    except (OSError, EOFError) as error:
        raise damaged(path, "gzip stream", str(error)) from error


class _Part:
    """Two files that belong together."""

    def __init__(self, image_path: str, label_path: str) -> None:
        self._paths = image_path, label_path
        self._images, self.label_bytes = _bytes_of(image_path), _bytes_of(label_path)
        self.rows, height, width = _header(self._images, image_path, _IMAGES, 3)
        (labels,) = _header(self.label_bytes, label_path, _LABELS, 1)
        if labels != self.rows:
            raise damaged(label_path, "byte 4", f"it announces {labels} labels, and {image_path} {self.rows} images")
        self._shape = (height, width, 1)

    def load(self, row: int) -> Row:
        size = self._shape[0] * self._shape[1]
        image = self._images[16 + row * size:16 + (row + 1) * size]
        label = self.label_bytes[8 + row:9 + row]
        for found, expected, path, start in ((image, size, self._paths[0], 16 + row * size),
                                             (label, 1, self._paths[1], 8 + row)):
            if len(found) < expected:
                raise damaged(path, f"row {row}, byte {start}", f"the file ends at byte {start + len(found)}, and the "
                                                               f"row has {expected} bytes")
        return np.array(image).reshape(self._shape), np.array(label[0], np.uint32)


def _header(data: np.ndarray, path: str, magic: int, dimensions: int) -> list[int]:
    words = data[:4 + 4 * dimensions].tobytes()
    if len(words) < 4 + 4 * dimensions:
        raise damaged(path, "byte 0", f"the file has {len(words)} bytes, too few for the header of an IDX file")
    found, *extents = np.frombuffer(words, ">u4").tolist()
    if found != magic:
        raise damaged(path, "byte 0", f"the first word of the file is {found}, and that of an IDX file of this kind is "
                                      f"{magic}")
    return extents
