# SPDX-License-Identifier: Apache-2.0
"""Misses: processes that read from the source what the cache has not, for CachedLoader."""
from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any, Optional

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from .._errors import Error

# In a worker
_dataset: Any = None
_where = ""
_failure: Optional[ExceptionWrapper] = None  # of worker_init_fn


class Misses:
    """Workers that live until close(). They start with the first miss: an epoch of hits needs none."""

    def __init__(self, dataset: Any, workers: int, context: Any, seed: int,
                 init: Optional[Callable[[int], None]]) -> None:
        context = context or multiprocessing.get_context()
        self.cache = dataset.cache  # which the workers start with
        self.broken = False  # a worker was killed: the others have ended, too
        self._pool = ProcessPoolExecutor(workers, context, _begin,
                                         (dataset, workers, context.Value("i", 0), seed, init))

    def read(self, indices: list[int]) -> "Future[dict[int, Any]]":
        """For each index None, if it is in the cache now, the pickled sample, or an ExceptionWrapper."""
        read = self._pool.submit(_read, indices)
        read.add_done_callback(self._look_at)
        return read

    def _look_at(self, read: "Future[dict[int, Any]]") -> None:
        self.broken = self.broken or not read.cancelled() and isinstance(read.exception(), BrokenExecutor)

    def close(self) -> None:
        """Ends the workers as soon as they are done with what they read at the moment. Does not wait for that."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _begin(dataset: Any, workers: int, counter: Any, base_seed: int, init: Optional[Callable[[int], None]]) -> None:
    """What DataLoader does in a new worker."""
    global _dataset, _where, _failure
    threading.Thread(target=_end_with_trainer, daemon=True).start()
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    _dataset, _where = dataset, f"in CachedLoader worker process {number}"
    torch.set_num_threads(1)
    random.seed(base_seed + number)
    torch.manual_seed(base_seed + number)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=base_seed + number,
                                                        dataset=dataset)
    try:
        if init is not None:
            init(number)
    except Exception:  # noqa: BLE001 - passed on by the first read: the pool would only say that it is broken
        _failure = ExceptionWrapper(where=_where)


def _end_with_trainer() -> None:
    """A trainer that was killed cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _read(indices: Sequence[int]) -> dict[int, Any]:
    return {index: _failure or _read_one(index) for index in indices}


def _read_one(index: int) -> Any:
    try:
        sample = _dataset._sample(index)
    except Exception:  # noqa: BLE001 - the source's own error, raised where the batch is asked for
        return ExceptionWrapper(where=_where)
    try:
        if _dataset.cache is not None and index in _dataset.cache:
            return None
    except Error:
        pass  # lost in this moment
    # Plain pickle writes a tensor's numbers; multiprocessing's would put them into a file in /dev/shm
    return pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
