# SPDX-License-Identifier: Apache-2.0
"""Workers of CachedLoader: processes that read from the source what the cache has not, or make whole batches."""
from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any, Optional

import numpy as np
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from .._errors import Error
from ._handover import Place, hand_over

# In a worker
_dataset: Any = None
_collate: Any = None
_where = ""
_failure: Optional[ExceptionWrapper] = None  # of worker_init_fn


class Misses:
    """Workers that live until close(). They start with the first miss: an epoch of hits needs none."""

    def __init__(self, dataset: Any, workers: int, context: Any, seed: int, init: Optional[Callable[[int], None]],
                 collate: Callable[[list[Any]], Any]) -> None:
        context = context or multiprocessing.get_context()
        self.cache = dataset._link.cache  # which the workers start with
        self.broken = False  # a worker was killed: the others have ended, too
        self._pool = ProcessPoolExecutor(workers, context, _begin,
                                         (dataset, workers, context.Value("i", 0), seed, init, collate))

    def read(self, indices: list[int]) -> "Future[dict[int, Any]]":
        """For each index None, if it is in the cache now, the pickled sample, or an ExceptionWrapper."""
        read = self._pool.submit(_read, indices)
        read.add_done_callback(self._look_at)
        return read

    def make(self, seed: int, indices: list[int], place: Optional[Place]) -> "Future[Any]":
        """A batch of the transformed and collated samples of these indices: Handed, or an ExceptionWrapper."""
        made = self._pool.submit(_make, seed, indices, place)
        made.add_done_callback(self._look_at)
        return made

    def _look_at(self, read: "Future[dict[int, Any]]") -> None:
        self.broken = self.broken or not read.cancelled() and isinstance(read.exception(), BrokenExecutor)

    def close(self) -> None:
        """Ends the workers as soon as they are done with what they read at the moment. Does not wait for that."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _begin(dataset: Any, workers: int, counter: Any, base_seed: int, init: Optional[Callable[[int], None]],
           collate: Callable[[list[Any]], Any]) -> None:
    """What DataLoader does in a new worker."""
    global _dataset, _collate, _where, _failure
    threading.Thread(target=_end_with_trainer, daemon=True).start()
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    _dataset, _collate, _where = dataset, collate, f"in CachedLoader worker process {number}"
    torch.set_num_threads(1)
    _seed(base_seed + number)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=base_seed + number,
                                                        dataset=dataset)
    try:
        if init is not None:
            init(number)
    except Exception:  # noqa: BLE001 - passed on by the first read: the pool would only say that it is broken
        _failure = ExceptionWrapper(where=_where)


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)


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
        cache = _dataset._link.cache
        if cache is not None and index in cache:
            return None
    except Error:
        pass  # lost in this moment
    # Plain pickle writes a tensor's numbers; multiprocessing's would put them into a file in /dev/shm
    return pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)


def _make(seed: int, indices: list[int], place: Optional[Place]) -> Any:
    if _failure is not None:
        return _failure
    try:
        _seed(seed)  # of this batch: whichever worker makes it, the same
        samples = _dataset.__getitems__(indices)
        with alone():  # default_collate would take the memory for a batch from /dev/shm
            batch = _collate(samples)
        return hand_over(batch, place)
    except Exception:  # noqa: BLE001 - raised where the batch is asked for
        return ExceptionWrapper(where=_where)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hides that this process is a loader's worker."""
    kept, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = kept
