# SPDX-License-Identifier: Apache-2.0
"""CocoDataset: pictures with the annotations of a COCO file."""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from . import _check
from ._run import Row
from ._sources import MappableSource, damaged, decode_image, file_stamp, read_file, scanned

Annotation = dict[str, Any]


class CocoDataset(MappableSource):
    """The annotated pictures of a COCO annotation file, in the order in which it lists them.

    annotation_file  JSON
    task             "Detection", "Stuff", "Keypoint", "Panoptic" or "Captioning"
    decode           False: the encoded file
    extra_metadata   adds the column "_meta-filename" with the name of the picture

    Columns: image (bytes,) uint8 or, decoded, (height, width, 3) uint8, and then, for n annotations,
        Detection   bbox (n, 4) float32, pixels left, top, width, height; category_id, iscrowd (n, 1) uint32
        Stuff       segmentation (polygons, numbers) float32, the shorter ones filled up with -1; iscrowd (n, 1) uint32
        Keypoint    keypoints (n, numbers) float32; num_keypoints (n, 1) uint32
        Panoptic    bbox (n, 4) float32; category_id, iscrowd, area (n, 1) uint32
        Captioning  captions (n, 1) str
    Further arguments: see MappableSource.
    """

    def __init__(self, dataset_dir: str, annotation_file: str, task: str = "Detection",
                 num_samples: Optional[int] = None, num_parallel_workers: Optional[int] = None,
                 shuffle: Optional[bool] = None, decode: bool = False, sampler: Any = None,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None, cache: Any = None,
                 extra_metadata: bool = False) -> None:
        super().__init__(num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache)
        self._folder, self._file = _check.folder(dataset_dir), _check.file(annotation_file)
        _check.one_of("task", task, list(_TASKS))
        _check.of_type("decode", decode, bool)
        _check.of_type("extra_metadata", extra_metadata, bool)
        self._task, self._decode, self._with_name = task, decode, extra_metadata
        columns = ("image", *_TASKS[task][0])
        self.columns = (*columns, "_meta-filename") if extra_metadata else columns

    def label(self) -> str:
        return self._file

    @scanned
    def _content(self) -> dict[str, Any]:
        try:
            with open(self._file, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:  # a JSONDecodeError tells line and column
            raise damaged(self._file, "annotation file", str(error)) from error
        for key in ("images", "annotations"):
            if not isinstance(content, dict) or not isinstance(content.get(key), list):
                raise damaged(self._file, f"key {key!r}", "the list is missing")
        return content

    @scanned
    def _images(self) -> list[tuple[str, list[Annotation]]]:
        """(file name, annotations) of each row."""
        by_image: dict[Any, list[Annotation]] = {}
        for number, annotation in enumerate(self._content()["annotations"]):
            by_image.setdefault(self._value(annotation, "image_id", f"annotation {number}"), []).append(annotation)
        found = []
        for number, image in enumerate(self._content()["images"]):
            annotations = by_image.get(self._value(image, "id", f"image {number}"))
            if annotations:
                found.append((self._value(image, "file_name", f"image {number}"), annotations))
        if not found:
            raise damaged(self._file, "key 'images'", f"none of the images has annotations for {self._task}")
        return found

    def _value(self, item: Any, key: str, where: str) -> Any:
        if not isinstance(item, dict) or key not in item:
            raise damaged(self._file, where, f"{key!r} is missing")
        return item[key]

    @scanned
    def _categories(self) -> dict[Any, tuple[str, Annotation]]:
        """id -> (name, all that the file says)."""
        listed = self._content().get("categories")
        if not isinstance(listed, list):
            raise damaged(self._file, "key 'categories'", "the list is missing")
        return {self._value(item, "id", f"category {number}"): (self._value(item, "name", f"category {number}"), item)
                for number, item in enumerate(listed)}

    def total(self) -> int:
        return len(self._images())

    def describe(self, row_id: int) -> str:
        return f"row {row_id}, {os.path.join(self._folder, self._images()[row_id][0])}"

    def _load(self, row_id: int) -> Row:
        name, annotations = self._images()[row_id]
        path = os.path.join(self._folder, name)
        where = f"row {row_id}, annotations of {name}"
        try:
            columns = _TASKS[self._task][1](self, annotations, where)
        except (TypeError, ValueError) as error:
            raise damaged(self._file, where, f"the annotation is not as it should be: {error}") from error
        image = read_file(path, f"row {row_id}")
        row = [decode_image(image, path, f"row {row_id}") if self._decode else image, *columns]
        return tuple([*row, np.array(os.path.splitext(name)[0])] if self._with_name else row)

    # ---- the tasks --------------------------------------------------------------------------------------------------

    def _column(self, annotations: list[Annotation], key: str, where: str) -> np.ndarray:
        return np.array([[self._value(each, key, where)] for each in annotations], np.int64).astype(np.uint32)

    def _boxes(self, annotations: list[Annotation], where: str) -> np.ndarray:
        boxes = [self._value(each, "bbox", where) for each in annotations]
        if any(len(box) != 4 for box in boxes):
            raise ValueError("a bbox needs 4 numbers")
        return np.array(boxes, np.float32)

    def _checked_categories(self, annotations: list[Annotation], where: str) -> np.ndarray:
        for each in annotations:
            if self._value(each, "category_id", where) not in self._categories():
                raise damaged(self._file, f"{where}, annotation {each.get('id')}",
                              f"category_id {each['category_id']} is not among the categories")
        return self._column(annotations, "category_id", where)

    def _detection(self, annotations: list[Annotation], where: str) -> list[np.ndarray]:
        return [self._boxes(annotations, where), self._checked_categories(annotations, where),
                self._column(annotations, "iscrowd", where)]

    def _stuff(self, annotations: list[Annotation], where: str) -> list[np.ndarray]:
        polygons: list[list[float]] = []
        for each in annotations:
            segmentation = self._value(each, "segmentation", where)
            polygons += [segmentation["counts"]] if isinstance(segmentation, dict) else segmentation
        return [_filled(polygons), self._column(annotations, "iscrowd", where)]

    def _keypoint(self, annotations: list[Annotation], where: str) -> list[np.ndarray]:
        points = [self._value(each, "keypoints", where) for each in annotations]
        return [_filled(points), self._column(annotations, "num_keypoints", where)]

    def _panoptic(self, annotations: list[Annotation], where: str) -> list[np.ndarray]:
        segments = [segment for each in annotations for segment in self._value(each, "segments_info", where)]
        return [self._boxes(segments, where), self._checked_categories(segments, where),
                self._column(segments, "iscrowd", where), self._column(segments, "area", where)]

    def _captioning(self, annotations: list[Annotation], where: str) -> list[np.ndarray]:
        return [np.array([[str(self._value(each, "caption", where))] for each in annotations])]

    def _class_indexing(self) -> dict[str, Any]:
        if self._task not in ("Detection", "Panoptic"):
            return {}
        things = [[item["isthing"]] if self._task == "Panoptic" and "isthing" in item else []
                  for _, item in self._categories().values()]
        return {name: [number, *thing] for (number, (name, _)), thing in zip(self._categories().items(), things)}

    def _num_classes(self) -> Optional[int]:
        return len(self._class_indexing()) or None

    def _identity(self) -> Any:
        stamps = [file_stamp(path) for name, _ in self._images()
                  if os.path.exists(path := os.path.join(self._folder, name))]
        return "CocoDataset", file_stamp(self._file), stamps, self._task, self._decode, self.columns


def _filled(lists: list[list[float]]) -> np.ndarray:
    """Lists of numbers as rows of equal length, (lists, numbers) float32."""
    rows = np.full((len(lists), max(map(len, lists))), -1, np.float32)
    for row, numbers in zip(rows, lists):
        row[:len(numbers)] = numbers
    return rows


_TASKS: dict[str, tuple[tuple[str, ...], Callable[[CocoDataset, list[Annotation], str], list[np.ndarray]]]] = {
    "Detection": (("bbox", "category_id", "iscrowd"), CocoDataset._detection),
    "Stuff": (("segmentation", "iscrowd"), CocoDataset._stuff),
    "Keypoint": (("keypoints", "num_keypoints"), CocoDataset._keypoint),
    "Panoptic": (("bbox", "category_id", "iscrowd", "area"), CocoDataset._panoptic),
    "Captioning": (("captions",), CocoDataset._captioning),
}
