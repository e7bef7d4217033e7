# SPDX-License-Identifier: Apache-2.0
"""What all sources have in common: those whose rows have ids (mappable), and streams."""
from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy as np

from . import _check, config
from ._pipeline import Dataset
from ._run import Indexed, Row, Run, shuffled
from ._stream import Stream
from .samplers import Key, Sampler, begin, choose, sample_count, sample_ids

GLOBAL_BUFFER = 10_000  # rows that a stream of unknown length is shuffled over


def damaged(path: str, where: str, what: str) -> RuntimeError:
    """The error for a file that does not hold what it should; where: byte, record, row or key."""
    return RuntimeError(f"{path}, {where}: {what}")


def decode_image(data: Any, path: str, where: str) -> np.ndarray:
    """The pixels of an encoded image, (height, width, 3) uint8 in RGB order."""
    from PIL import Image
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and others for what is no image
        raise damaged(path, where, f"the image cannot be decoded ({len(data)} bytes): {error}") from error


def read_file(path: str, where: str) -> np.ndarray:
    """The bytes of a file, (n,) uint8."""
    try:
        with open(path, "rb") as file:
            return np.frombuffer(file.read(), np.uint8)
    except OSError as error:
        raise damaged(path, where, f"the file cannot be read: {error.strerror}") from error


def file_stamp(path: str) -> tuple[str, int, int]:
    """What tells a file from another one, and from the same one after a change."""
    status = os.stat(path)
    return os.path.realpath(path), status.st_size, status.st_mtime_ns


class Source(Dataset):
    """Where rows come from."""

    by_id = True          # rows have ids 0..total()-1
    columns: tuple[str, ...] = ()
    sampler: Sampler

    def _names(self) -> tuple[str, ...]:
        return self.columns

    def _begin(self) -> None:
        begin(self.sampler)

    def label(self) -> str:
        """For people: what the rows come from."""
        return type(self).__name__

    def total(self) -> int:
        """Rows there are, whatever the sampler chooses."""
        raise NotImplementedError

    def describe(self, row_id: int) -> str:
        """The row in an error."""
        return f"row {row_id}"

    def stream_ids(self, stream: Stream, key: Key) -> Iterator[int]:
        """Numbers of an epoch's rows in a stream that may still be growing."""
        raise NotImplementedError

    def _own_size(self, stripped: bool) -> int:
        return self.total() if stripped else sample_count(self.sampler, self.total())


class MappableSource(Source):
    """Rows with ids. A sampler, shuffle or shards say which of them an epoch visits.

    num_samples           rows of an epoch at most
    num_parallel_workers  threads that read and decode
    shuffle               True unless given
    sampler               of ds.samplers, one of one's own, or a list of row ids; instead of shuffle and shards
    num_shards, shard_id  every shard gets its share of the rows
    cache                 a DatasetCache that keeps the rows
    """

    samplable = True  # False where rows can only be had one after the other

    def __init__(self, num_samples: Optional[int] = None, num_parallel_workers: Optional[int] = None,
                 shuffle: Optional[bool] = None, sampler: Any = None, num_shards: Optional[int] = None,
                 shard_id: Optional[int] = None, cache: Any = None) -> None:
        super().__init__(num_parallel_workers=num_parallel_workers, cache=cache)
        if shuffle is not None:
            _check.of_type("shuffle", shuffle, bool)
        self.sampler = choose(sampler, num_samples, shuffle, num_shards, shard_id)

    def use_sampler(self, new_sampler: Any) -> None:
        """Takes another sampler in place of the one it has."""
        self._check_samplable()
        self.sampler = choose(new_sampler, None, None, None, None)

    def add_sampler(self, new_sampler: Sampler) -> None:
        """Lets new_sampler choose from what the present one gives."""
        self._check_samplable()
        new_sampler.add_child(self.sampler)
        self.sampler = new_sampler

    def _check_samplable(self) -> None:
        if not self.samplable:
            raise ValueError("sampler, shuffle and shards need a source with __getitem__ and __len__.")

    def _load(self, row_id: int) -> Row:
        """Reads a row."""
        raise NotImplementedError

    def labels(self) -> np.ndarray:
        """The class of each row, for PKSampler."""
        raise RuntimeError(f"PKSampler needs a source with one class per row, and {type(self).__name__} is none.")

    def _own_size(self, stripped: bool) -> int:
        return self.total() if stripped else sample_count(self.sampler, self.total(), self.labels)

    def _indexed(self, run: Run) -> Optional[Indexed]:
        key, total = run.next_pass(self), self.total()
        ids = np.arange(total) if run.building else sample_ids(self.sampler, total, key, self.labels)
        return Indexed(ids, lambda position, row_id: self._load(row_id),
                       self.num_parallel_workers or config.get_num_parallel_workers())


class StreamSource(Source):
    """Rows that come one after the other. Under a cache all of them are kept, in the order of the source; num_samples,
    shuffle and shards then choose among the rows of the cache, so that shards are shares of rows, not of files."""

    by_id = False

    def __init__(self, num_samples: Optional[int], num_parallel_workers: Optional[int], shuffle: bool,
                 num_shards: Optional[int], shard_id: Optional[int], cache: Any) -> None:
        super().__init__(num_parallel_workers=num_parallel_workers, cache=cache)
        self.shuffle_rows, self.num_shards, self.shard_id = shuffle, num_shards, shard_id
        self.num_samples = _check.samples(num_samples)
        self.sampler = choose(None, num_samples, shuffle, num_shards, shard_id)

    def stream_ids(self, stream: Stream, key: Key) -> Iterator[int]:
        if stream.is_done() or (self.shuffle_rows and self.num_shards is not None):
            yield from sample_ids(self.sampler, stream.finish(), key).tolist()
            return
        # Rows are had while the build goes on
        first, step = (0, 1) if self.num_shards is None else (self.shard_id, self.num_shards)
        ids: Iterable[int] = itertools.takewhile(lambda number: stream.row(number) is not None,
                                                 itertools.count(first, step))
        if self.shuffle_rows:
            ids = shuffled(ids, GLOBAL_BUFFER, key)
        given = 0
        for number in itertools.islice(ids, self.num_samples):
            yield number
            given += 1
        if self.num_shards is not None and given != self.num_samples:  # what evens the shards out
            yield from sample_ids(self.sampler, stream.finish(), key)[given:].tolist()


def scanned(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A method without arguments whose result is kept: reading a folder or an annotation file once is enough."""
    name = f"_scanned_{method.__name__}"

    def once(self: Any) -> Any:
        if name not in self.__dict__:
            self.__dict__[name] = method(self)
        return self.__dict__[name]

    once.__doc__, once.__name__ = method.__doc__, method.__name__
    return once

