# SPDX-License-Identifier: Apache-2.0
"""Settings for all pipelines of this process: the seed of everything that is random, and the number of workers."""
from __future__ import annotations

import threading
from typing import Optional

import numpy as np

from ._check import INT32_MAX, UINT32_MAX, within

_seed: Optional[int] = None
_num_parallel_workers = 1
_prefetch_size = 20
_lock = threading.Lock()
_given_out = 0


def set_seed(seed: int) -> None:
    """Makes shuffles and random operations of pipelines whose iterators are made from now on repeatable: 0..2^32-1."""
    global _seed, _given_out
    within("seed", seed, 0, UINT32_MAX)
    with _lock:
        _seed, _given_out = seed, 0


def get_seed() -> int:
    """The seed; 5489 where none was set, and then every iterator draws another one."""
    return 5489 if _seed is None else _seed


def set_num_parallel_workers(num: int) -> None:
    """Threads of a source or map that does not say its own number."""
    global _num_parallel_workers
    within("num", num, 1, INT32_MAX)
    _num_parallel_workers = num


def get_num_parallel_workers() -> int:
    """1 unless it was set: threads pay for decoding, not for operations of a few microseconds."""
    return _num_parallel_workers


def set_prefetch_size(size: int) -> None:
    """Rows that a source or map with several workers may be ahead."""
    global _prefetch_size
    within("size", size, 1, INT32_MAX)
    _prefetch_size = size


def get_prefetch_size() -> int:
    """20 unless it was set."""
    return _prefetch_size


def next_seed() -> tuple[int, int]:
    """The seed of a new iterator: after set_seed the same sequence of them each time."""
    global _given_out
    with _lock:
        if _seed is None:
            return int(np.random.SeedSequence().entropy) & UINT32_MAX, 0
        _given_out += 1
        return _seed, _given_out
