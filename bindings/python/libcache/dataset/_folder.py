# SPDX-License-Identifier: Apache-2.0
"""ImageFolderDataset: a folder of pictures for each class."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from . import _check
from ._run import Row
from ._sources import MappableSource, decode_image, read_file, scanned

_EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".webp")


class ImageFolderDataset(MappableSource):
    """One folder per class, with pictures in it. Classes and files are in the order of their names.

    extensions      of the files to take; None: those of pictures
    class_indexing  class name -> number, and only these classes; None: numbered in order
    decode          False: the encoded file

    Columns: image (bytes,) uint8 or, decoded, (height, width, 3) uint8; label () int32. Further arguments: see
    MappableSource. Under a cache, the list of files and the times of the folders tell whether something has changed; a
    file that is written over in place under its name is not noticed.
    """

    columns = ("image", "label")

    def __init__(self, dataset_dir: str, num_samples: Optional[int] = None, num_parallel_workers: Optional[int] = None,
                 shuffle: Optional[bool] = None, sampler: Any = None, extensions: Optional[Sequence[str]] = None,
                 class_indexing: Optional[dict[str, int]] = None, decode: bool = False,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None, cache: Any = None) -> None:
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache)
        self._folder = _check.folder(dataset_dir)
        self._extensions = None if extensions is None else tuple(_check.names("extensions", extensions))
        if class_indexing is not None:
            _check.of_type("class_indexing", class_indexing, dict)
        _check.of_type("decode", decode, bool)
        self._given_classes, self._decode = class_indexing, decode

    def label(self) -> str:
        return self._folder

    @scanned
    def _classes(self) -> dict[str, int]:
        with os.scandir(self._folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        if self._given_classes is None:
            return {name: number for number, name in enumerate(names)}
        missing = sorted(set(self._given_classes) - set(names))
        if missing:
            raise RuntimeError(f"{self._folder} has no folders {missing}, which class_indexing names.")
        return {name: self._given_classes[name] for name in names if name in self._given_classes}

    @scanned
    def _files(self) -> list[tuple[str, int]]:
        """(path below the folder, class) of each row."""
        found = []
        for name, number in self._classes().items():
            with os.scandir(os.path.join(self._folder, name)) as entries:
                files = sorted(entry.name for entry in entries if self._wanted(entry.name) and entry.is_file())
            found += [(os.path.join(name, file), number) for file in files]
        if not found:
            raise RuntimeError(f"{self._folder} has no pictures in its folders {list(self._classes())}. Check the path "
                               f"and extensions=.")
        return found

    def _wanted(self, name: str) -> bool:
        if self._extensions is None:
            return name.lower().endswith(_EXTENSIONS)
        return name.endswith(self._extensions)

    def total(self) -> int:
        return len(self._files())

    def describe(self, row_id: int) -> str:
        return f"row {row_id}, {os.path.join(self._folder, self._files()[row_id][0])}"

    def _load(self, row_id: int) -> Row:
        name, number = self._files()[row_id]
        path = os.path.join(self._folder, name)
        image = read_file(path, f"row {row_id}")
        if self._decode:
            image = decode_image(image, path, f"row {row_id}")
        return image, np.array(number, np.int32)

    def labels(self) -> np.ndarray:
        return np.array([number for _, number in self._files()])

    def _num_classes(self) -> int:
        return len(self._classes())

    def _class_indexing(self) -> dict[str, Any]:
        return self._classes()

    def _identity(self) -> Any:
        times = [os.stat(os.path.join(self._folder, name)).st_mtime_ns for name in self._classes()]
        return "ImageFolderDataset", os.path.realpath(self._folder), self._files(), times, self._decode
