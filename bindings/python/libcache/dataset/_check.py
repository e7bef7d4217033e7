# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, in the words that scripts and tests of the original look for."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1


def of_type(name: str, value: Any, *types: type) -> None:
    """TypeError unless value is of one of the types; a bool is no int."""
    if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
        return
    wanted = ", ".join(kind.__name__ for kind in types)
    shown = value if value != "" else '""'
    raise TypeError(f"Argument {name} with value {shown} is not of type [{wanted}], but got {type(value).__name__}.")


def within(name: str, value: Any, low: int, high: int) -> None:
    """TypeError for what is no int, ValueError for one outside [low, high]."""
    of_type(name, value, int)
    if not low <= value <= high:
        raise ValueError(f"Input {name} is not within the required interval of [{low}, {high}].")


def one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"Input {name} is not within the valid set of {list(allowed)}.")


def folder(path: Any) -> str:
    """The path of a folder that can be read, as a str."""
    of_type("dataset_dir", path, str, os.PathLike)
    path = os.fspath(path)
    if not (os.path.isdir(path) and os.access(path, os.R_OK)):
        raise ValueError(f"The folder {path} does not exist or is not a directory or permission denied!")
    return path


def file(path: Any) -> str:
    """The path of a file that can be read, as a str."""
    of_type("filename", path, str, os.PathLike)
    path = os.fspath(path)
    if not (os.path.isfile(path) and os.access(path, os.R_OK)):
        raise ValueError(f"The file {path} does not exist or permission denied!")
    return path


def names(name: str, value: Any) -> list[str]:
    """A str or a list of different ones, as a list."""
    listed = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else None
    if listed is None:
        of_type(name, value, str, list, tuple)
    for each in listed:
        of_type(name, each, str)
    if len(set(listed)) != len(listed):
        raise ValueError(f"{name}: one of the names {listed} stands there twice.")
    return listed


def shards(num_shards: Optional[int], shard_id: Optional[int]) -> None:
    """Both or neither, and the id among the shards."""
    if num_shards is None and shard_id is not None:
        raise RuntimeError("shard_id is specified but num_shards is not.")
    if num_shards is None:
        return
    within("num_shards", num_shards, 1, INT32_MAX)
    if shard_id is None:
        raise RuntimeError("num_shards is specified and currently requires shard_id as well.")
    within("shard_id", shard_id, 0, num_shards - 1)


def samples(num_samples: Optional[int]) -> Optional[int]:
    """num_samples, with None for "all", which 0 means too."""
    if num_samples is None:
        return None
    of_type("num_samples", num_samples, int)
    if not 0 <= num_samples < 2**63:
        raise ValueError("num_samples exceeds the boundary between 0 and 9223372036854775807(INT64_MAX)!")
    return num_samples or None


def workers(num_parallel_workers: Optional[int]) -> None:
    if num_parallel_workers is not None:
        within("num_parallel_workers", num_parallel_workers, 1, INT32_MAX)
