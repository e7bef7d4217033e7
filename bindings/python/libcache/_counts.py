# SPDX-License-Identifier: Apache-2.0
"""Counts: how many rows came from the cache and how many from the source, summed over the processes of a loader."""
from __future__ import annotations

import dataclasses
import mmap
import os
import weakref
from typing import Any, Optional

from . import _rows

HIT, MISS, STORED = 0, 1, 2
#: why a row that was read from the source is not stored: what Full.cause says, or there is no cache at the moment
CAUSES = ("size", "server", "memory", "disk", "spill_limit", "full", "lost")
_CAUSE = 3  # the first of the counters by cause
_COUNTERS = _CAUSE + len(CAUSES)


@dataclasses.dataclass(frozen=True)
class Stats:
    """Rows since the data set was made, of this process, its loaders' workers and all copies of the data set. The
    difference of two is what came between: `before = train.cache_stats(); ...; train.cache_stats() - before`."""

    hits: int                #: rows that came from the cache
    misses: int              #: rows that came from the source
    stored: int              #: of these, rows that were put into the cache: others find them there
    refused: dict[str, int]  #: of these, rows that the cache did not take, by cause: what Full.cause says, or "lost"

    def __sub__(self, earlier: "Stats") -> "Stats":
        refused = {cause: n - earlier.refused.get(cause, 0) for cause, n in self.refused.items()}
        return Stats(self.hits - earlier.hits, self.misses - earlier.misses, self.stored - earlier.stored,
                     {cause: n for cause, n in refused.items() if n})

    def __str__(self) -> str:
        refused = "".join(f", {n} refused ({cause})" for cause, n in self.refused.items())
        return f"{self.hits} of {self.hits + self.misses} rows from the cache, {self.stored} stored{refused}"


class Counts:
    """The counters. They lie in memory that forked children share and copies in other processes find by themselves;
    a copy that comes too late for that, or is on another machine, counts for itself."""

    def __init__(self, place: Optional[tuple[str, int]] = None) -> None:
        fd = _opened(place)
        if fd is None:
            fd = os.memfd_create("libcache-counts", os.MFD_CLOEXEC)
            os.ftruncate(fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)
        self._place = f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino
        weakref.finalize(self, os.close, fd)

    def add(self, counter: int, rows: int = 1) -> None:
        """HIT, MISS or STORED."""
        _rows.add(self._memory, counter, rows)

    def refuse(self, cause: str, rows: int = 1) -> None:
        """One of CAUSES."""
        _rows.add(self._memory, _CAUSE + CAUSES.index(cause), rows)

    def stats(self) -> Stats:
        """What was counted until now."""
        counters = memoryview(self._memory).cast("q")[:_COUNTERS].tolist()
        return Stats(*counters[:_CAUSE], {cause: n for cause, n in zip(CAUSES, counters[_CAUSE:]) if n})

    def __reduce__(self) -> Any:
        return Counts, (self._place,)


def _opened(place: Optional[tuple[str, int]]) -> Optional[int]:
    """A descriptor of the counters at this place; None if they are no more."""
    if place is None:
        return None
    try:
        fd = os.open(place[0], os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_ino == place[1]:
        return fd
    os.close(fd)  # the descriptor is another file's by now
    return None
