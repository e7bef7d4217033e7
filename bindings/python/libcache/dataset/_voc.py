# SPDX-License-Identifier: Apache-2.0
"""VOCDataset: pictures and annotations of the Pascal VOC challenges."""
from __future__ import annotations

import os
from typing import Any, Optional
from xml.etree import ElementTree

import numpy as np

from . import _check
from ._run import Row
from ._sources import MappableSource, damaged, decode_image, file_stamp, read_file, scanned

_LISTS = {"Segmentation": "Segmentation", "Detection": "Main"}
_FLAGS = ("difficult", "truncated")


class VOCDataset(MappableSource):
    """The pictures that ImageSets/<Segmentation or Main>/<usage>.txt of a VOC folder lists, in its order.

    task            "Segmentation" or "Detection"
    usage           name of the list
    class_indexing  name -> number, and objects of other names are left out; None: the names found, in order. Detection
    decode          False: the encoded files
    extra_metadata  adds the column "_meta-filename" with the name of the picture

    Columns of Segmentation: image and target, (bytes,) uint8 or, decoded, (height, width, 3) uint8. Of Detection:
    image; bbox (objects, 4) float32, pixels left, top, width, height; label, difficult and truncate, (objects, 1)
    uint32. Further arguments: see MappableSource.
    """

    def __init__(self, dataset_dir: str, task: str = "Segmentation", usage: str = "train",
                 class_indexing: Optional[dict[str, int]] = None, num_samples: Optional[int] = None,
                 num_parallel_workers: Optional[int] = None, shuffle: Optional[bool] = None, decode: bool = False,
                 sampler: Any = None, num_shards: Optional[int] = None, shard_id: Optional[int] = None,
                 cache: Any = None, extra_metadata: bool = False) -> None:
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache)
        self._folder = _check.folder(dataset_dir)
        _check.one_of("task", task, list(_LISTS))
        _check.of_type("usage", usage, str)
        _check.of_type("decode", decode, bool)
        _check.of_type("extra_metadata", extra_metadata, bool)
        if class_indexing is not None:
            _check.of_type("class_indexing", class_indexing, dict)
            if task == "Segmentation":
                raise ValueError("class_indexing is not supported in Segmentation task.")
        self._list = os.path.join(self._folder, "ImageSets", _LISTS[task], f"{usage}.txt")
        if not os.path.isfile(self._list):
            raise ValueError(f"The file {self._list} does not exist or permission denied!")
        self._detection, self._given_classes, self._decode = task == "Detection", class_indexing, decode
        self._with_name = extra_metadata
        columns = ("image", "bbox", "label", "difficult", "truncate") if self._detection else ("image", "target")
        self.columns = (*columns, "_meta-filename") if extra_metadata else columns

    def label(self) -> str:
        return self._list

    @scanned
    def _ids(self) -> list[str]:
        with open(self._list, encoding="utf-8") as lines:
            ids = [line.split()[0] for line in lines if line.strip()]
        if not ids:
            raise RuntimeError(f"{self._list} lists no pictures.")
        return ids

    def total(self) -> int:
        return len(self._ids())

    def describe(self, row_id: int) -> str:
        return f"row {row_id}, {self._path('JPEGImages', row_id, 'jpg')}"

    def _path(self, kind: str, row_id: int, ending: str) -> str:
        return os.path.join(self._folder, kind, f"{self._ids()[row_id]}.{ending}")

    def _image(self, kind: str, row_id: int, ending: str) -> np.ndarray:
        path = self._path(kind, row_id, ending)
        data = read_file(path, f"row {row_id}")
        return decode_image(data, path, f"row {row_id}") if self._decode else data

    def _load(self, row_id: int) -> Row:
        if self._detection:
            further = self._annotation(row_id)
        else:
            further = [self._image("SegmentationClass", row_id, "png")]
        columns = [self._image("JPEGImages", row_id, "jpg"), *further]
        if self._with_name:
            columns.append(np.array(self._ids()[row_id]))
        return tuple(columns)

    def _annotation(self, row_id: int) -> list[np.ndarray]:
        path, classes = self._path("Annotations", row_id, "xml"), self._classes()
        objects = [(name, box, flags) for name, box, flags in _objects(path, f"row {row_id}") if name in classes]
        if not objects:
            raise damaged(path, f"row {row_id}", f"it has no object of the classes {list(classes)}")
        labels = np.array([[classes[name]] for name, _, _ in objects], np.uint32)
        flags = np.array([flags for _, _, flags in objects], np.uint32)
        return [np.array([box for _, box, _ in objects], np.float32), labels, flags[:, :1], flags[:, 1:]]

    @scanned
    def _classes(self) -> dict[str, int]:
        if self._given_classes is not None:
            return self._given_classes
        names = set()
        for row_id in range(self.total()):
            try:
                names.update(name for name, _, _ in _objects(self._path("Annotations", row_id, "xml"), ""))
            except RuntimeError:
                continue  # an error of its row, when that is read
        return {name: number for number, name in enumerate(sorted(names))}

    def _num_classes(self) -> Optional[int]:
        return len(self._classes()) if self._detection else None

    def _class_indexing(self) -> dict[str, Any]:
        return self._classes() if self._detection else {}

    def _identity(self) -> Any:
        kinds = [("JPEGImages", "jpg"), ("Annotations", "xml") if self._detection else ("SegmentationClass", "png")]
        stamps = [file_stamp(path) for row_id in range(self.total()) for kind, ending in kinds
                  if os.path.exists(path := self._path(kind, row_id, ending))]
        return "VOCDataset", file_stamp(self._list), stamps, self._given_classes, self._decode, self.columns


def _objects(path: str, where: str) -> list[tuple[str, list[float], list[int]]]:
    """(name, left top width height, flags) of each object in an annotation file."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise damaged(path, where, f"the annotation cannot be read: {error}") from error
    found = []
    for number, node in enumerate(root.iter("object")):
        called = f"{where}, object {number}"
        try:
            left, top, right, bottom = (float(node.findtext(f"bndbox/{side}") or "")
                                        for side in ("xmin", "ymin", "xmax", "ymax"))
            flags = [int(node.findtext(flag, "0")) for flag in _FLAGS]
        except ValueError as error:
            raise damaged(path, called, f"a number of the object is missing or is none: {error}") from error
        name = node.findtext("name")
        if not name:
            raise damaged(path, called, "it has no name")
        if right <= left or bottom <= top:
            raise damaged(path, called, f"the bounding box from ({left:g}, {top:g}) to ({right:g}, {bottom:g}) is "
                                        f"empty")
        found.append((name, [left, top, right - left, bottom - top], flags))
    if not found:
        raise damaged(path, where, "the annotation has no object")
    return found
