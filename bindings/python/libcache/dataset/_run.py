# SPDX-License-Identifier: Apache-2.0
"""Run: one execution of a pipeline, for as long as an iterator lives."""
from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import config

if TYPE_CHECKING:
    from ._pipeline import Dataset

Row = tuple[np.ndarray, ...]
Fetch = Callable[[int, int], Row]  # (position in the epoch, row id)


class Indexed(NamedTuple):
    """A pass over rows that can be made one by one from their ids."""

    ids: np.ndarray   #: in the order of the pass
    fetch: Fetch
    workers: int      #: threads that the nodes below ask for


class Run:
    """Seeds and pass numbers of one iterator. Nodes keep nothing of their own, so that any number of iterators may run
    over one pipeline.

    building  rows are made for a cache, in the order of the source: nothing is shuffled, sharded or left out
    """

    def __init__(self, root: "Dataset", building: bool = False) -> None:
        self.building = building
        self.skip = 0  # rows at the beginning of the source that a cache has already
        self._seed = (0,) if building else config.next_seed()
        self._numbers = {id(node): number for number, node in enumerate(root._nodes())}
        self._passes: dict[int, int] = collections.Counter()
        self._root = root  # its nodes are known by id
        self._opened: dict[int, Any] = {}

    def next_pass(self, node: "Dataset") -> tuple[int, ...]:
        """The key of a new pass over this node: (seed ..., node, epoch)."""
        self._passes[id(node)] += 1
        return (*self._seed, self._numbers[id(node)], self._passes[id(node)] - 1)

    def once(self, node: "Dataset", make: Callable[[], Any]) -> Any:
        """What make() gave for this node when it was first needed: finding a cache means looking at all its files."""
        if id(node) not in self._opened:
            self._opened[id(node)] = make()
        return self._opened[id(node)]


def in_order(function: Callable[..., Any], arguments: Iterable[tuple], workers: int) -> Iterator[Any]:
    """function(*argument) for each argument, in their order, made by that many threads. What one raises is raised in
    its place."""
    if workers <= 1:
        yield from itertools.starmap(function, arguments)
        return
    waiting: collections.deque[Future] = collections.deque()
    remaining = iter(arguments)
    ahead = max(workers, config.get_prefetch_size())
    with ThreadPoolExecutor(workers, "libcache-dataset") as pool:
        try:
            for argument in remaining:
                waiting.append(pool.submit(function, *argument))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the consumer may have gone, or a row have failed
            for future in waiting:
                future.cancel()


def rows_of(indexed: Indexed) -> Iterator[Row]:
    """The rows of a pass."""
    return in_order(indexed.fetch, enumerate(indexed.ids.tolist()), indexed.workers)


def shuffled(items: Iterable[Any], buffer_size: int, key: tuple[int, ...]) -> Iterator[Any]:
    """The items in random order, as far as a buffer of that many reaches."""
    rng = np.random.default_rng(key)
    buffer: list[Any] = []
    for item in items:
        buffer.append(item)
        if len(buffer) >= buffer_size:
            yield _taken(buffer, rng)
    while buffer:
        yield _taken(buffer, rng)


def _taken(buffer: list[Any], rng: np.random.Generator) -> Any:
    """An item of the buffer, which its last one then replaces."""
    place = int(rng.integers(len(buffer)))
    item, buffer[place] = buffer[place], buffer[-1]
    buffer.pop()
    return item
