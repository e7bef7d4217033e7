# SPDX-License-Identifier: Apache-2.0
"""What may stand below a cache, in the words that the original's tests look for."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._cache import DatasetCache
from ._check import of_type

if TYPE_CHECKING:
    from ._pipeline import Dataset


def check_argument(cache: Any) -> None:
    """cache= of a source or a map."""
    of_type("cache", cache, DatasetCache)
    if os.environ.get("MS_INDEPENDENT_DATASET") in ("True", "true"):
        raise RuntimeError("Dataset Cache is not supported in Dataset Independent mode: unset MS_INDEPENDENT_DATASET, "
                           "or use no cache.")


def check_tree(root: "Dataset") -> None:
    """RuntimeError if a cache stands over something whose rows it cannot keep."""
    for node in root._nodes():
        if node.cache is not None:
            _check_random(node)
            _check_below(node)


def _check_below(cached: "Dataset") -> None:
    """The nearest fault is told: what stands under it is out of reach."""
    node = cached
    while True:
        node._check_under_cache(cached)
        if not node.children:
            return
        node = node.children[0]
        if node.cache is not None:
            raise RuntimeError("Nested cache operations: a cache below another one would never be read. Leave one out.")


def _check_random(cached: "Dataset") -> None:
    for node in cached._nodes():
        for operation in getattr(node, "operations", ()):
            if is_random(operation):
                raise RuntimeError(
                    f"MapNode containing random operation is not supported as a descendant of cache: "
                    f"{name_of(operation)} would be frozen in what it gave first. Put it into a map above the cache "
                    f"or, if it gives the same for the same input, mark it with vision.not_random.")


def is_random(operation: Any) -> bool:
    """Whether the operation says so; a function that says nothing might be."""
    return bool(getattr(operation, "random", True))


def name_of(operation: Any) -> str:
    return getattr(operation, "__qualname__", None) or type(operation).__name__


def unsupported(node_name: str) -> RuntimeError:
    return RuntimeError(f"{node_name} is not supported as a descendant operator under a cache. Put the cache below it.")
