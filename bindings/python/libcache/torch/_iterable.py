# SPDX-License-Identifier: Apache-2.0
"""CachedIterable: an iterable data set whose samples are read from their source once, in a build phase."""
from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

import torch
import torch.utils.data

from .._cache import Cache
from .._client import Session
from .._counts import HIT, MISS, STORED, Stats
from .._errors import Error, Full
from .._fingerprint import fingerprint
from .._link import Link, Opener
from .._stream import Stream
from ._dataset import RandomSampleError, _workers
from ._misses import alone
from ._samples import putting_together, same_columns, take_apart, to_text

_FORMAT = "libcache.torch stream 1"
_END = object()


class CachedIterable(torch.utils.data.IterableDataset):
    """The samples of an iterable data set, in its order. One process of the machine reads them from it and appends them
    to the cache; every rank, worker and epoch has them from there, also while they are being appended.

        train = CachedIterable(records)
        loader = DataLoader(train, batch_size=64, num_workers=4)

    dataset     any data set that can be iterated over more than once, giving the same samples. Samples are made of
                what CachedDataset takes
    cache, key, required, limit_bytes, spill, port  as in CachedDataset
    transform   applied after the cache, in each epoch anew, to the whole sample
    share       (rank, ranks): every ranks-th sample from the rank-th on. (0, 1): all of them
    patience    seconds to wait for a sample that another process is to append; then this one reads the source itself

    Workers of a DataLoader share the samples among them: each comes once. The source is iterated over as without
    workers (get_worker_info() is None for it), since one process reads it for all. If that process is killed, the next
    one goes on after the last sample that it appended. The first sample is read twice: RandomSampleError if the two
    differ. Shuffle behind the cache: it keeps the order of the build.

    A lost server, session or space is like never having had one: the samples come from the source.
    """

    def __init__(self, dataset: Any, cache: Union[Cache, Session, None] = None, *,
                 transform: Optional[Callable[[Any], Any]] = None, key: Optional[str] = None,
                 share: tuple[int, int] = (0, 1), patience: float = 60.0, required: bool = False,
                 limit_bytes: int = 0, spill: bool = False, port: Optional[int] = None) -> None:
        if hasattr(dataset, "__next__") or not hasattr(dataset, "__iter__"):
            raise TypeError(f"a {type(dataset).__name__} cannot be iterated over more than once: give CachedIterable "
                            f"what makes it, an object whose __iter__ begins anew")
        if not 0 <= share[0] < share[1]:
            raise ValueError(f"share is (rank, ranks) with 0 <= rank < ranks, not {share}")
        self.dataset, self.transform, self.share, self.patience = dataset, transform, share, patience
        self.fingerprint = fingerprint((_FORMAT, dataset if key is None else ("key", key)), "dataset")
        label = f"{type(dataset).__name__}, a stream" + (f", key {key}" if key else "")
        self._link = Link(Opener(cache, self.fingerprint, label, 0, port, limit_bytes, build=True, spill=spill),
                          required, _workers)
        self._link.open()
        self._makers: dict[str, Callable[[tuple], Any]] = {}  # by form
        self._own = range(0)  # samples that this process has appended since it began to iterate

    @property
    def cache(self) -> Optional[Cache]:
        """The cache in use; None while it is lost."""
        return self._link.found()

    def cache_stats(self) -> Stats:
        """Whether it was cached, over all workers, as CachedDataset.cache_stats tells it: samples that came from the
        cache, samples that were read from the source, and what became of those.

        The process that appends reads for all: such a sample is a miss that was stored in the count of the data set
        that reads it, and a hit in that of every other worker or rank that gets it. While the cache is built with
        workers or ranks, hits and misses are more than the samples, therefore. What a builder that takes over reads
        to get to where the last one stopped, and the second look at the first sample, are not counted."""
        return self._link.counts.stats()

    def _appended(self, number: int) -> None:
        self._link.counts.add(MISS)
        self._link.counts.add(STORED)
        self._own = range(self._own.start if number == self._own.stop else number, number + 1)

    def __iter__(self) -> Iterator[Any]:
        self._link.next_epoch()
        number, step = self._numbers()
        cache = self._link.cache
        stream = Stream.shared(cache, self._columns, self._appended) if cache is not None else None
        self._own = range(0)
        while stream is not None:
            try:
                row = stream.row(number, step, self.patience)
            except Error as error:
                self._link.lost(error)
                if isinstance(error, Full):
                    with contextlib.suppress(Error):
                        stream.leave()  # nobody shall wait for what will not come
                break
            if row is None:
                return
            if number not in self._own:
                self._link.counts.add(HIT)
            yield self._finished(self._sample(row))
            number += step
        for place, sample in enumerate(self._samples()):
            if place == number:
                self._link.counts.add(MISS)
                self._link.refuse()
                yield self._finished(sample)
                number += step

    def _numbers(self) -> tuple[int, int]:
        """(first, step) of the samples of this rank and worker."""
        rank, ranks = self.share
        worker = torch.utils.data.get_worker_info()
        return (rank, ranks) if worker is None else (rank + ranks * worker.id, ranks * worker.num_workers)

    def _finished(self, sample: Any) -> Any:
        return sample if self.transform is None else self.transform(sample)

    def _samples(self) -> Iterator[Any]:
        with alone():  # a source that sees that it runs in a worker gives a share of its samples only
            samples = iter(self.dataset)
        while True:
            with alone():
                sample = next(samples, _END)
            if sample is _END:
                return
            yield sample

    def _columns(self, skip: int) -> Iterator[list[Any]]:
        """The rows from the skip-th on. Each ends with its form."""
        for number, sample in enumerate(self._samples()):
            if number >= skip or number == 0:
                form, columns = take_apart(sample)
            if number == 0:
                self._compare(form, columns)
            if number >= skip:
                yield [*columns, to_text(form)]

    def _compare(self, form: Any, columns: list[Any]) -> None:
        again_form, again = take_apart(next(self._samples(), None))
        if again_form != form or not same_columns(columns, again):
            raise RandomSampleError(
                f"the first sample of {type(self.dataset).__name__} is another one each time it is read: caching would "
                f"freeze it. Take what is random (shuffling, crops, noise) out of the data set and do it behind the "
                f"cache, e.g. with transform=")

    def _sample(self, row: tuple) -> Any:
        make = self._makers.get(row[-1])
        if make is None:
            make = self._makers[row[-1]] = putting_together(json.loads(row[-1]))[0]
        return make(row)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled."""
        return {**self.__dict__, "_makers": {}}

    def __repr__(self) -> str:
        return f"<libcache.torch.CachedIterable of {type(self.dataset).__name__}, {self._link.cache!r}>"
