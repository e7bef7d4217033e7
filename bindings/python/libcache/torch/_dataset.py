# SPDX-License-Identifier: Apache-2.0
"""CachedDataset: a map-style data set whose rows are read from their source once."""
from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
import torch.utils.data

from .._arguments import INT64_MAX
from .._cache import Cache
from .._client import Session
from .._counts import HIT, MISS, Stats
from .._errors import Conflict, Error
from .._fingerprint import fingerprint
from .._link import Link, Opener
from ._collate import Rows, default_collate, empty_column
from ._samples import (addresses, batch_form, cutting_up, fill_batch, pile_up, putting_together, same_columns,
                       take_apart, taking_apart, to_text)

_FORMAT = "libcache.torch sample 1"
_SCHEMA_BYTES = 3900  # of the 4,000 that a cache keeps


class RandomSampleError(ValueError):
    """The source gave two different samples for one index: caching would freeze one of them."""


class CachedDataset(torch.utils.data.Dataset):
    """The samples of `dataset`, each read from it once and by everybody on this machine from shared memory then.

        train = CachedDataset(ImageFolder("train"), transform=random_crop)    # that is all
        loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=4)

    dataset     any map-style data set. Its samples are made of tensors, arrays, numbers, str, bytes, None, PIL images,
                tuples, lists, dicts and named tuples; anything else is a SampleError that names the field
    cache       None: found by the fingerprint of `dataset`, in the session that $LIBCACHE_SESSION (an id or a name) or
                $SESSION_ID (an id) names, else one named after the user; a server is started if none runs, which
                stderr tells, and stays until cache_admin --stop. Or a libcache.Session, or a libcache.Cache that is
                used for this data set alone
    transform   applied after the cache, in each epoch anew, to the first element of a sample that is a tuple or list
                (as torchvision's is), to the whole of any other
    target_transform  the same for the second element
    sample_transform  applied after the cache to the whole sample, last
    key         names the rows in place of the fingerprint, e.g. "imagenet-v3", for what cannot be fingerprinted
    verify      "stat": a row whose source file has another size or time than when it was stored is read anew. The files
                are those of dataset.samples, or what files(index) gives
    required    True: a lost server, session or space raises; False: it is like never having had one. Rows that are
                mapped go on to be read, others come from the source; one warning per job and node, the next epoch tries
                again
    limit_bytes, port  of the cache and of the server; 0 and None: the defaults
    spill       True: rows that memory refuses go to disk; NotSupported if the server has no folder for them
                (cache_admin --start -s <folder>)

    Samples are the caller's own: writing to one changes nobody else's. Errors of the source are passed on and not
    cached, a sample keeps its index. The first row is read twice: RandomSampleError if the two differ. Works with every
    sampler and with loader workers that are forked or spawned. Attributes of `dataset` (classes, targets, ...) can be
    read through it.
    """

    def __init__(self, dataset: Any, cache: Union[Cache, Session, None] = None, *,
                 transform: Optional[Callable] = None, target_transform: Optional[Callable] = None,
                 sample_transform: Optional[Callable] = None, key: Optional[str] = None, verify: Optional[str] = None,
                 files: Optional[Callable[[int], str]] = None, required: bool = False, limit_bytes: int = 0,
                 spill: bool = False, port: Optional[int] = None) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"{type(dataset).__name__} has no __getitem__: only map-style data sets can be cached")
        if verify not in (None, "stat"):
            raise ValueError(f"verify is None or 'stat', not {verify!r}")
        self.dataset = dataset
        self.transform, self.target_transform, self.sample_transform = transform, target_transform, sample_transform
        self._files = _files_of(dataset, files) if verify else None
        self.fingerprint = fingerprint((_FORMAT, bool(verify), dataset if key is None else ("key", key)), "dataset")
        label = f"{type(dataset).__name__}, {len(dataset)} rows" + (f", key {key}" if key else "")
        self._link = Link(Opener(cache, self.fingerprint, label, len(dataset), port, limit_bytes, spill=spill),
                          required, _workers)
        self._seen: set[int] = set()  # rows whose files were compared
        self._one_by_one = False  # a source that uses the memory of its samples again
        self._know(None)
        if self._link.open(cache if isinstance(cache, Cache) else None) is not None:
            self._prepare()

    # ---- what a data set does --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._link.look()  # a sampler asks at the beginning of each epoch, in the process whose workers read the rows
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if type(index) is not int:
            index = operator.index(index)
        if self._find is not None and index >= 0 and self._link.writing:  # what is usual, by the shortest way
            try:
                row = self._find(index)
            except Error:
                row = ()  # the long way will find out and say so
            if row is None and self._known is self._link.cache:
                sample = self._read(index)
            elif row is not None and len(row) == self._columns:
                self._count(HIT)
                sample = self._make(row)
            else:
                sample = self._sample(index)
        else:
            sample = self._sample(index + len(self) if index < 0 else index)
        return self._transformed(sample) if self._has_transforms() else sample

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many samples, as DataLoader asks for them."""
        samples = self._together(np.array(indices)) if type(self).__getitem__ is CachedDataset.__getitem__ else None
        if samples is None:  # also in a subclass that does something of its own for each
            return [self[index] for index in indices]
        return list(map(self._transformed, samples)) if self._has_transforms() else samples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @property
    def cache(self) -> Optional[Cache]:
        """The cache in use; None while it is lost."""
        return self._link.found()

    def cache_stats(self) -> Stats:
        """Whether it was cached: rows from the cache, rows from the source, and what became of those, counted over
        all workers. The first row is stored when the data set is made, if nobody has done so before.

            before = train.cache_stats()
            for batch in loader: ...
            print(train.cache_stats() - before)     # 60000 of 60000 rows from the cache, 0 stored

        Rows that a loader reads ahead count when they are read."""
        return self._link.counts.stats()

    def _count(self, counter: int, rows: int = 1) -> None:
        self._link.counts.add(counter, rows)

    @property
    def rows(self) -> Rows:
        """The same data set for `collate`, which gathers whole batches: DataLoader(train.rows, collate_fn=collate)."""
        return Rows(self)

    def _has_transforms(self) -> bool:
        return not (self.transform is None and self.target_transform is None and self.sample_transform is None)

    def _transformed(self, sample: Any) -> Any:
        if self.transform is not None or self.target_transform is not None:
            if type(sample) in (tuple, list) and sample:
                parts = list(sample)
                if self.transform is not None:
                    parts[0] = self.transform(parts[0])
                if self.target_transform is not None and len(parts) > 1:
                    parts[1] = self.target_transform(parts[1])
                sample = type(sample)(parts)
            elif self.transform is not None:
                sample = self.transform(sample)
        return sample if self.sample_transform is None else self.sample_transform(sample)

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _sample(self, index: int) -> Any:
        """The sample before transforms. index: counted from the beginning."""
        if not 0 <= index <= INT64_MAX:
            raise IndexError(f"there is no sample {index} of the {len(self.dataset)} of {type(self.dataset).__name__}"
                             f"{' (counted from the beginning)' if index < 0 else ''}")
        row = self._link.get(index)
        if row is not None and self._files is not None:
            row = self._verified(index, row)
            if row is None:
                sample = self.dataset[index]
                self._count(MISS)
                return sample
        if row is None:
            return self._read(index)
        if self._known is not self._link.cache or not self._checked:
            try:
                self._know(self._link.cache)
            except Conflict:
                raise
            except Error:  # lost between two calls
                sample = self.dataset[index]
                self._count(MISS)
                return sample
        self._count(HIT)
        return self._make(row) if len(row) == self._columns else self._of_row(row)

    def _read(self, index: int) -> Any:
        """A miss: reads the source and stores what it gave. What the source raises goes through."""
        stamp = self._stamp(index)
        sample = self.dataset[index]
        self._count(MISS)
        cache = self._link.cache
        if cache is None:
            self._link.refuse()
            return sample
        if self._known is cache and self._checked:
            self._link.put(index, self._row(*self._columns_of(sample), stamp), cache)
            return sample
        try:
            self._know(cache)
            form, columns = take_apart(sample)
            if not self._checked:
                self._check(cache, index, form, columns)
        except Conflict:
            raise
        except Error:
            self._link.refuse()
            return sample
        self._link.put(index, self._row(form, columns, stamp), cache)
        return sample

    def _columns_of(self, sample: Any) -> tuple[Any, list[Any]]:
        """take_apart, if the form of the cache's rows is known."""
        try:
            columns = self._split(sample)
        except (TypeError, RuntimeError):
            columns = None
        return take_apart(sample) if columns is None else (self._form, columns)

    def _row(self, form: Any, columns: list[Any], stamp: Any) -> list[Any]:
        """The columns as they are stored. A row of another form than the cache's carries its own as a last column, and
        is known by its number of columns."""
        row = columns if stamp is None else [*columns, stamp]
        if form is self._form or form == self._form:
            return row or [0]  # a row has at least one column
        row = [*row, to_text(form)]
        return row if len(row) != self._columns else [0, *row]

    def _of_row(self, row: tuple) -> Any:
        """The sample of a row that carries its own form."""
        form = json.loads(row[-1])
        make, columns = putting_together(form)
        extra = len(row) - columns - 1 - (self._files is not None)
        return make(row[extra:])

    def _know(self, cache: Optional[Cache]) -> None:
        """Learns the form of the rows of this cache, if it has one already: the rows that carry no form have it."""
        self._known, self._checked = cache, False  # checked: the first row was read twice, by whomever
        self._form, self._make, self._cut, self._split, self._columns = None, None, None, _no_columns, -1
        self._find: Optional[Callable[[int], Any]] = None  # a row of a cache whose form is known
        names = cache.names if cache is not None else None
        if names is not None:
            self._adopt(names)

    def _prepare(self) -> None:
        """At the beginning: the first row is read here, so that workers find the form."""
        try:
            self._know(self._link.cache)
            if self._checked or not len(self):
                return
            stamp = self._stamp(0)
        except Conflict:
            raise
        except (Error, OSError):
            return  # whoever asks for the row will see it
        try:
            sample = self.dataset[0]
        except Exception:  # noqa: BLE001 - the source's own; whoever asks for this row gets it
            return
        form, columns = take_apart(sample)
        try:
            self._check(self._known, 0, form, columns)
        except Conflict:
            raise
        except Error:
            return
        self._link.put(0, self._row(form, columns, stamp), self._known)

    def _check(self, cache: Cache, index: int, form: Any, columns: list[Any]) -> None:
        """Reads a row for the second time, compares, and notes the form for everybody. Once per cache: who finds the
        form there knows that it was done."""
        again_form, again = take_apart(self.dataset[index])
        if again_form != form or not same_columns(columns, again):
            raise RandomSampleError(
                f"row {index} of {type(self.dataset).__name__} is another one each time it is read: caching would "
                f"freeze it. Take what is random (crops, flips, noise) out of the data set and give it to "
                f"CachedDataset as transform=, which is applied after the cache")
        kept = {"format": _FORMAT, "of": self.fingerprint, "form": form}
        if len(to_text(kept).encode()) > _SCHEMA_BYTES:
            kept["form"] = None  # then every row carries its form
        try:
            cache.names = [to_text(kept)]
        except Conflict:
            pass  # another process was faster
        self._adopt(cache.names)

    def _adopt(self, names: Optional[Sequence[str]]) -> None:
        try:
            found = json.loads(names[0])
        except (ValueError, IndexError, TypeError):
            found = None
        if not isinstance(found, dict) or (found.get("format"), found.get("of")) != (_FORMAT, self.fingerprint):
            raise Conflict(f"{self._known!r} holds rows of something else than this {type(self.dataset).__name__}: use"
                           f" another cache, or none and let CachedDataset find its own")
        self._form, self._checked = found["form"], True
        self._batch_where = None
        if self._form is not None:
            self._make, columns = putting_together(self._form)
            self._split, self._places_of = taking_apart(self._form) or (_no_columns, _no_columns)
            self._columns = max(1, columns + (self._files is not None))
            self._cut = cutting_up(self._form) if self._files is None else None
            self._batch_where = batch_form(self._form)
            self._find = self._known.get if self._files is None else None

    # ---- verify='stat' ---------------------------------------------------------------------------------------------

    def _stamp(self, index: int) -> Any:
        if self._files is None:
            return None
        status = os.stat(self._files(index))
        return np.array([status.st_size, status.st_mtime_ns])

    def _verified(self, index: int, row: tuple) -> Any:
        """The row, or None if its file is not the one that it was made from. Each row is looked at once per process."""
        if index in self._seen:
            return row
        stored = row[-2] if isinstance(row[-1], str) else row[-1]
        if not np.array_equal(stored, self._stamp(index)):
            return None
        self._seen.add(index)
        return row

    # ---- batches ---------------------------------------------------------------------------------------------------

    def _together(self, ids: np.ndarray) -> Optional[list[Any]]:
        """The samples of these indices, before transforms, if they are all hits or all misses and the cache is well;
        else None: then they are to be asked for one by one."""
        cache = self._link.cache
        if self._find is None or self._known is not cache or not self._link.writing or ids.dtype != np.int64:
            return None
        ids[ids < 0] += len(self)
        try:
            hits = np.count_nonzero(cache.contains(ids))
            if hits == len(ids):
                return self._cut_block(cache, ids)
        except Error:
            return None  # lost meanwhile: who asks for a row will find out
        indices = ids.tolist()
        if hits != 0 or len(set(indices)) < len(indices) or self._one_by_one or self._split is _no_columns:
            return None
        return self._read_together(ids, indices)

    def _cut_block(self, cache: Cache, ids: np.ndarray) -> Optional[list[Any]]:
        """Hits of one shape are copied into one block of memory, and each sample is its own part of it."""
        row = cache.get(ids[0]) if self._cut is not None else None
        if row is None or len(row) != self._columns:
            return None
        blocks = [np.empty((len(ids), *column.shape), column.dtype) for column in row]
        if cache._gather_rows(ids, tuple(blocks)):
            self._count(HIT, len(ids))
            return self._cut(blocks)
        self._cut = None  # rows differ in shape: to try it with each batch would be in vain
        return None

    def _read_together(self, ids: np.ndarray, indices: list[int]) -> list[Any]:
        """Misses are stored after the last one was read: the source's code and ours do not drive each other out of the
        processor's caches with every row."""
        samples: list[Any] = []
        try:
            for index in indices:
                samples.append(self.dataset[index])
        finally:
            self._count(MISS, len(samples))
            if samples:
                self._store(ids[:len(samples)], samples)
        return samples

    def _store(self, ids: np.ndarray, samples: list[Any]) -> None:
        piled = pile_up(self._form, samples)
        rows, places = piled if piled is not None else self._rows_of(samples)
        if len(set(places)) < len(places):
            self._one_by_one = True  # an array may have been written over by the next read: none of it is sure
        elif piled is not None:
            self._link.put_blocks(ids, rows, self._known)
        else:
            self._link.put_all(ids.tolist(), rows, self._known)

    def _rows_of(self, samples: list[Any]) -> tuple[list[list[Any]], list[int]]:
        """Samples as they are stored, and where their arrays lie."""
        rows, places = [], []
        split, places_of = self._split, self._places_of
        for sample in samples:
            try:
                columns = split(sample)
            except (TypeError, RuntimeError):
                columns = None
            if columns:
                places += places_of(sample)
            else:
                columns = self._row(*take_apart(sample), None)
                places += addresses(columns)
            rows.append(columns)
        return rows, list(filter(None, places))  # a tensor without numbers has no address

    def batch(self, indices: Sequence[int], pin_memory: bool = False) -> Any:
        """The samples of these indices as one batch, the same as default_collate makes of them. Columns of numbers are
        gathered from shared memory straight into the batch's tensors (pinned on request), which is the only copy."""
        cache = self._link.cache
        if not len(indices) or not self._batchable(cache):
            return default_collate([self[i] for i in indices])
        ids = np.array(indices)
        if ids.dtype != np.int64:
            return default_collate([self[i] for i in indices])
        ids[ids < 0] += len(self)
        try:
            row = cache.get(ids[0])
            if row is not None and len(row) == self._columns:
                tensors = [empty_column(column, len(ids), pin_memory) for column in row]
                if cache._gather_rows(ids, tuple(tensor.numpy() for tensor in tensors)):
                    self._count(HIT, len(ids))
                    return fill_batch(self._batch_where, tensors.__getitem__)
        except (Error, TypeError):  # lost meanwhile, or what PyTorch has no dtype for: row by row, as without a cache
            pass
        return default_collate([self._sample(i) for i in ids.tolist()])

    def next_epoch(self) -> None:
        """For who knows when an epoch begins, as CachedLoader does: looks again for a cache that was lost."""
        self._link.next_epoch()
        if self._link.cache is not None and (self._known is not self._link.cache or not self._checked):
            self._prepare()

    def _batchable(self, cache: Optional[Cache]) -> bool:
        return (cache is not None and self._known is cache and self._checked and self._batch_where is not None and
                self._files is None and not self._has_transforms() and
                type(self).__getitem__ is CachedDataset.__getitem__)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled: the copy finds the form in the cache."""
        return {**self.__dict__, "_make": None, "_cut": None, "_split": _no_columns, "_places_of": _no_columns,
                "_find": None, "_known": None, "_checked": False, "_columns": -1, "_seen": set()}

    def __repr__(self) -> str:
        return f"<libcache.torch.CachedDataset of {type(self.dataset).__name__}, {len(self)} rows, {self.cache!r}>"


def _no_columns(sample: Any) -> None:
    """taking_apart of a form that is not known."""


def _workers() -> int:
    worker = torch.utils.data.get_worker_info()
    return worker.num_workers if worker is not None else 1


def _files_of(dataset: Any, files: Optional[Callable[[int], str]]) -> Callable[[int], str]:
    if files is not None:
        return files
    if hasattr(dataset, "samples"):
        return _SampleFiles(dataset)
    raise ValueError(f"verify='stat' needs files=, a function from index to path: {type(dataset).__name__} has no "
                     f"`samples` list as ImageFolder has")


class _SampleFiles:
    """Path by index for ImageFolder and its like; pickles with the data set."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, index: int) -> str:
        return self.dataset.samples[index][0]
