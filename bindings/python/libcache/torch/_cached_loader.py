# SPDX-License-Identifier: Apache-2.0
"""CachedLoader: a DataLoader whose batches are gathered in the trainer's own process."""
from __future__ import annotations

import collections
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Optional

import numpy as np
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data import Subset

from .. import _rows
from .._cache import Cache
from .._counts import HIT
from .._errors import Error
from ._collate import default_collate
from ._dataset import CachedDataset
from ._handover import Slots
from ._handover import Slot as HandoverSlot
from ._misses import Misses
from ._ring import Ring, Slot, pinning
from ._samples import fill_batch

_LEAST_AHEAD = 2  # batches prepared before they are asked for


class CachedLoader:
    """DataLoader for a CachedDataset: the same batches in the same order, by a shorter way.

        for images, labels in CachedLoader(train, batch_size=64, shuffle=True, num_workers=4): ...

    Hits are copied once, from shared memory into the batch, by a thread of this process that never has Python's GIL,
    while the trainer computes. Nothing passes through a worker or /dev/shm. Workers read only what the cache has not;
    an epoch of hits starts none. Errors of the source are raised where their batch is asked for; the batches after it
    can be had then.

    The arguments are those of torch.utils.data.DataLoader and mean the same; dataset may also be a Subset of a
    CachedDataset. What differs:

    memory      of a batch that was dropped, with all views of it, is used for a later one
    pin_memory  batches are made in pinned memory, not copied there; without a CUDA device a warning says that they are
                not
    prefetch_factor  batches that are prepared ahead, per worker; at least 2 in all

    Transforms, a collate_fn, samples that default_collate makes no tensors of (text) and verify='stat' need Python, as
    does an epoch that begins while the cache is lost: workers make such batches whole, and hand them over in memory
    that belongs to no file system. Random numbers are seeded for each batch: which worker makes it does not matter.
    Without workers, with batch_size=None or pinned memory a plain DataLoader does it.
    """

    def __init__(self, dataset: Any, batch_size: Optional[int] = 1, shuffle: Optional[bool] = None,
                 sampler: Optional[Iterable[int]] = None, batch_sampler: Optional[Iterable[list[int]]] = None,
                 num_workers: int = 0, collate_fn: Optional[Callable[[list[Any]], Any]] = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
                 worker_init_fn: Optional[Callable[[int], None]] = None, multiprocessing_context: Any = None,
                 generator: Optional[torch.Generator] = None, *, prefetch_factor: int = 2,
                 persistent_workers: bool = False) -> None:
        self._rows, self._ids = _rows_of(dataset)
        self._pinned = pinning(pin_memory)
        self._own_collate = collate_fn is not None
        # Checks the arguments, makes the samplers, and stands in where nothing can be gathered
        self._plain: Any = torch.utils.data.DataLoader(
            dataset, batch_size=batch_size, shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler,
            num_workers=num_workers, collate_fn=collate_fn, pin_memory=self._pinned, drop_last=drop_last,
            timeout=timeout, worker_init_fn=worker_init_fn, multiprocessing_context=multiprocessing_context,
            generator=generator, prefetch_factor=prefetch_factor, persistent_workers=persistent_workers)
        self._ahead = max(_LEAST_AHEAD, num_workers * prefetch_factor)
        self._ring = Ring(self._ahead + 2, self._pinned)  # one more is computed with, one more just dropped
        self._misses: Optional[Misses] = None
        self._slot_bytes = 0  # of a batch that workers make, as far as it is known

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        return len(self._plain)

    def __iter__(self) -> Iterator[Any]:
        self._rows.next_epoch()
        if self._plain.batch_sampler is not None:
            if not self._own_collate and self._rows._batchable(self._rows._link.cache):
                return _GatheredEpoch(self)
            if self._plain.num_workers and not self._pinned:
                return _MadeEpoch(self)
        return iter(self._plain)

    def __getattr__(self, name: str) -> Any:
        """What DataLoader has: dataset, batch_size, sampler, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._plain, name)

    def __del__(self) -> None:
        if self.__dict__.get("_misses") is not None:
            self._misses.close()  # type: ignore[union-attr]

    def _start_workers(self, seed: int) -> Misses:
        return Misses(self._rows, self._plain.num_workers, self._plain.multiprocessing_context, seed,
                      self._plain.worker_init_fn, self._plain.collate_fn)

    def _persistent_workers(self, seed: int) -> Misses:
        """Those of the last epoch, unless what they have is a cache that was lost, or they died."""
        if self._misses is not None and (self._misses.broken or self._misses.cache is not self._rows._link.cache):
            self._misses.close()
            self._misses = None
        if self._misses is None:
            self._misses = self._start_workers(seed)
        return self._misses


class _Epoch:
    """The iterator of a CachedLoader; what its two kinds share. _prepare() begins with the next batch, or notes that
    there is none; _complete() gives the batch that was prepared."""

    def __init__(self, loader: CachedLoader) -> None:
        self._loader, self._dataset = loader, loader._rows
        self._timeout = loader._plain.timeout or None
        # DataLoader draws this number before its sampler draws anything: with the same seed, the same order
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader._plain.generator).item())
        self._sampler = iter(loader._plain.batch_sampler)
        self._misses: Optional[Misses] = None  # of this epoch alone
        self._batches: collections.deque[Any] = collections.deque()
        self._ended = False

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:
        while not self._ended and len(self._batches) < self._loader._ahead:
            self._prepare()
        if not self._batches:
            self.close()
            raise StopIteration
        return self._complete(self._batches.popleft())

    def close(self) -> None:
        """Ends the epoch early; so does dropping the iterator."""
        self._ended = True
        self._batches.clear()
        if self._misses is not None:
            self._misses.close()
            self._misses = None

    def __del__(self) -> None:
        if self.__dict__.get("_misses") is not None:
            self.close()

    def _workers(self) -> Misses:
        if self._loader._plain.persistent_workers:
            return self._loader._persistent_workers(self._seed)
        if self._misses is None:
            self._misses = self._loader._start_workers(self._seed)
        return self._misses

    def _result(self, future: "Future[Any]") -> Any:
        try:
            return future.result(self._timeout)
        except FutureTimeout:
            raise RuntimeError(f"CachedLoader waited {self._timeout} seconds in vain for rows from the source: give "
                               f"it a longer timeout=, or see what the workers are doing") from None


class _Batch:
    """One that is being prepared."""

    __slots__ = ("ids", "slot", "reads", "fresh")

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids
        self.slot: Optional[Slot] = None  # set: the gatherer fills it
        self.reads: list["Future[dict[int, Any]]"] = []
        self.fresh: list[int] = []  # rows that workers read for this batch, and counted


class _GatheredEpoch(_Epoch):
    """Of batches that are gathered by a thread, where their rows are in the cache."""

    def __init__(self, loader: CachedLoader) -> None:
        super().__init__(loader)
        self._gatherer = _rows.Gatherer()
        self._reading: dict[int, "Future[dict[int, Any]]"] = {}

    # ---- ahead of its turn -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        indices = next(self._sampler, None)
        if indices is None:
            self._ended = True
            return
        batch = _Batch(self._loader._ids(indices))
        self._batches.append(batch)
        cache = self._dataset._link.cache
        try:
            missing = batch.ids if cache is None else batch.ids[~cache.contains(batch.ids)]
            if not len(missing):
                batch.slot = self._slot(cache, batch.ids)
                if batch.slot is not None:
                    self._gatherer.submit(cache, batch.ids, batch.slot.arrays)
                return
        except Error:
            missing = batch.ids  # the cache is lost; who reads them will find out
        if self._loader._plain.num_workers:
            batch.reads, batch.fresh = self._read(missing.tolist())

    def _read(self, missing: list[int]) -> tuple[list["Future[dict[int, Any]]"], list[int]]:
        """Has the workers read these rows, and tells which. What they read already, for another batch, is waited
        for."""
        reads = {id(read): read for read in map(self._reading.get, missing) if read is not None}
        fresh = [index for index in dict.fromkeys(missing) if index not in self._reading]
        if fresh:
            read = self._workers().read(fresh)
            self._reading.update(dict.fromkeys(fresh, read))
            reads[id(read)] = read
        return list(reads.values()), fresh

    def _slot(self, cache: Optional[Cache], ids: np.ndarray) -> Optional[Slot]:
        """Room for rows like the first of these. None if it is not there, or not what tensors are made of."""
        row = cache.get(ids[0]) if cache is not None and len(ids) else None
        if row is None or len(row) != self._dataset._columns or self._dataset._known is not cache:
            return None
        try:
            return self._loader._ring.take(tuple((column.dtype, (len(ids), *column.shape)) for column in row))
        except (TypeError, AttributeError):  # a dtype that PyTorch has not; text
            return None

    # ---- at its turn -----------------------------------------------------------------------------------------------

    def _complete(self, batch: _Batch) -> Any:
        if batch.slot is not None and self._gatherer.result():
            self._dataset._count(HIT, len(batch.ids))
            return self._tensors(batch.slot)
        read: dict[int, Any] = {}
        for future in batch.reads:
            read.update(self._result(future))
        for index in read:
            self._reading.pop(index, None)
        given = {index: read[index] for index in batch.ids.tolist() if read.get(index) is not None}
        for value in given.values():
            if isinstance(value, ExceptionWrapper):
                value.reraise()
        gathered = self._gathered(batch, given)
        if gathered is not None:
            return gathered
        samples = [pickle.loads(given[index]) if index in given else self._dataset._sample(index)
                   for index in batch.ids.tolist()]
        self._dataset._count(HIT, -sum(index not in given for index in batch.fresh))  # the worker has counted them
        return default_collate(samples)

    def _gathered(self, batch: _Batch, given: dict[int, bytes]) -> Any:
        """The batch, if its rows are all in the cache by now; else None."""
        cache = self._dataset._link.cache
        if given or not batch.reads or cache is None:
            return None
        try:
            slot = self._slot(cache, batch.ids)
            if slot is not None and cache._gather_rows(batch.ids, slot.arrays):
                self._dataset._count(HIT, len(batch.ids) - len(batch.fresh))
                return self._tensors(slot)
        except Error:
            pass
        return None

    def _tensors(self, slot: Slot) -> Any:
        return fill_batch(self._dataset._batch_where, slot.tensors.__getitem__)


class _MadeEpoch(_Epoch):
    """Of batches that take Python: workers make them."""

    def __init__(self, loader: CachedLoader) -> None:
        super().__init__(loader)
        self._slots = Slots(loader._ahead + 2, loader._slot_bytes)
        self._numbers = itertools.count()

    def close(self) -> None:
        for made, _ in self._batches:
            made.cancel()
        super().close()

    def _prepare(self) -> None:
        indices = next(self._sampler, None)
        if indices is None:
            self._ended = True
            return
        slot = self._slots.take()
        made = self._workers().make(self._seed + next(self._numbers), self._loader._ids(indices).tolist(),
                                    slot.place if slot is not None else None)
        self._batches.append((made, slot))

    def _complete(self, batch: "tuple[Future[Any], Optional[HandoverSlot]]") -> Any:
        handed = self._result(batch[0])
        if isinstance(handed, ExceptionWrapper):
            self._slots.give_back(batch[1])
            handed.reraise()
        unpacked = self._slots.unpack(batch[1], handed)
        self._loader._slot_bytes = self._slots.size
        return unpacked


def _rows_of(dataset: Any) -> tuple[CachedDataset, Callable[[list[int]], np.ndarray]]:
    """The CachedDataset within, and the function from indices of `dataset` to its row ids."""
    if isinstance(dataset, Subset) and type(dataset).__getitem__ is Subset.__getitem__:
        rows, ids_of = _rows_of(dataset.dataset)
        chosen = np.asarray(dataset.indices, np.int64)
        return rows, lambda indices: ids_of(chosen[np.asarray(indices, np.int64)])
    if not isinstance(dataset, CachedDataset):
        raise TypeError(f"CachedLoader loads a CachedDataset or a Subset of one, not a {type(dataset).__name__}: make "
                        f"one with CachedDataset(dataset)")

    def ids(indices: Any) -> np.ndarray:
        numbers = np.asarray(indices, np.int64)
        return np.where(numbers < 0, numbers + len(dataset), numbers)
    return dataset, ids
