# SPDX-License-Identifier: Apache-2.0
"""Stream: the rows of a source without an index, numbered by a cache as they are appended.

One process at a time builds: it appends what the source gives. Everybody reads along at once. When the builder is gone
before the end, whoever needs the next row takes over where it stopped.
"""
from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

from ._build import Build, leave_build
from ._cache import Cache
from ._errors import Building, Error, Timeout

Source = Callable[[int], Iterator[Sequence[Any]]]

_LOOK_SECONDS = 0.02  # how long to wait for another builder before looking whether the row is there
_shared: "weakref.WeakValueDictionary[Any, Stream]" = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class Stream:
    """Rows by number; of a cache that was opened with build=True.

    source    source(k) gives the columns of the rows from the k-th on; a builder that takes over has k rows already
    appended  is called with the number of each row that this process has appended
    """

    def __init__(self, cache: Cache, source: Source, appended: Callable[[int], None] = lambda number: None) -> None:
        self.cache = cache
        self._source, self._tell = source, appended
        self._build: Optional[Build] = None
        self._rows: Optional[Iterator[Sequence[Any]]] = None  # while this process builds
        self._appended = 0                                    # rows that are there, as far as the builder knows
        self._count: Optional[int] = None                     # once the build is done
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def shared(cls, cache: Cache, source: Source, appended: Callable[[int], None] = lambda number: None) -> "Stream":
        """One per cache and process, for as long as somebody holds it: two that build would append every row twice."""
        key = os.getpid(), cache.session, cache.cache_id
        with _shared_lock:
            stream = _shared.get(key)
            if stream is None or not stream._alive():
                stream = _shared[key] = cls(cache, source, appended)
            return stream

    def _alive(self) -> bool:
        try:
            self.cache.get(0)
        except (Error, ValueError):  # destroyed, or closed; the new handle will tell
            return False
        return True

    def row(self, number: int, ahead: int = 0, patience: float = float("inf")) -> Any:
        """The stored columns of row `number`, built or waited for if need be; None beyond the last one. Raises what
        the source raises, and Timeout when somebody else builds and that row has not come for `patience` seconds.

        ahead  a builder appends so many rows beyond this one first: those that the others, who may be waited for by
               this process in turn, need at the same time
        """
        deadline = None
        while True:
            count = self._count  # before looking: a row that comes last is not overlooked
            found = self.cache.get(number)
            if count is not None and (found is not None or number >= count):
                return found
            if found is not None and (self._rows is None or self._appended > number + ahead):
                return found
            if self._rows is None and deadline is None:
                deadline = time.monotonic() + patience
            elif deadline is not None and time.monotonic() > deadline:
                raise Timeout(f"row {number} of {self.cache!r} has not come for {patience} seconds: another process "
                              f"builds the cache and does not go on")
            self._advance()

    def leave(self) -> None:
        """Builds no more: whoever needs the next row goes on, which may be this process. For a builder that cannot, or
        whose rows nobody here reads any more."""
        if self._pid != os.getpid():  # nor is the lock this process's: a thread of the parent may have held it
            return
        with self._lock:
            if self._build is not None and self._count is None:
                self._build = self._rows = None
                leave_build(self.cache)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # lost, closed, or the interpreter ends
            self.leave()

    def _advance(self) -> None:
        """One step: appends a row, becomes the builder, learns that the build is done, or waits a little."""
        if self._pid != os.getpid():  # a child does not go on with what its parent builds
            self._pid, self._build, self._rows, self._lock = os.getpid(), None, None, threading.Lock()
        with self._lock:
            if self._count is None and self._rows is None:
                self._begin()
            if self._rows is not None:
                self._append()
                return
        if self._count is None:
            try:
                self.cache.wait(_LOOK_SECONDS)
            except (Timeout, Building):
                pass  # the row may be there, or the build be free to be taken over

    def _begin(self) -> None:
        try:
            build = self.cache.build()
        except Building:
            return
        if build.complete:
            self._count = build.resume_at
        else:
            self._build, self._rows, self._appended = build, self._source(build.resume_at), build.resume_at

    def _append(self) -> None:
        assert self._build is not None and self._rows is not None
        rows, self._rows = self._rows, None  # whoever comes after a failure begins where the cache is then
        for columns in rows:
            number = self._build.append(*columns)
            self._appended, self._rows = number + 1, rows
            self._tell(number)
            return
        self._build.done()
        self._begin()  # tells how many there are
