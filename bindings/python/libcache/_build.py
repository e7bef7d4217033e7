# SPDX-License-Identifier: Apache-2.0
"""Build: rows of a source without an index, appended in order by one process while all others read along."""
from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Optional

from ._capi import ffi, lib
from ._errors import Error, InvalidArgument, Timeout, check

if TYPE_CHECKING:
    from ._cache import Cache

_SLICE_MS = 200  # Python's signal handlers run between two waits of this length


class Build:
    """The right to append rows to a cache, from Cache.build(). One process at a time has it, until done() or leave(),
    the last close of the cache in this process, or its end.

        with session.open(1, build=True) as cache, cache.build() as build:
            for sample in itertools.islice(source, build.resume_at, None):
                build.append(*sample)                   # -> 0, 1, 2, ...

    The `with` block says done() at its end, and leave() if an exception ends it: then the cache stays unfinished, and
    who builds next goes on where this one stopped. Rows are readable at once, by everybody. Threads may append at once.

    A cache that is Full keeps what it has. Wait for room and append the same row again, or leave():

        except libcache.Full as error:                  # error.cause tells who can make room
            build.leave()                               # later, here or elsewhere: cache.build(), from resume_at on
    """

    def __init__(self, cache: "Cache") -> None:
        rows = ffi.new("int64_t *")
        #: True: the build is done, there is nothing to append
        self.complete = check(lib.cache_build_begin(_handle(cache), rows)) == 1
        #: rows that are there already: skip so many in the source. The builder before may have been killed
        self.resume_at: int = rows[0]
        self._cache = cache

    def append(self, *columns: Any) -> int:
        """Stores the next row and returns its id. columns as in Cache.put. Raises Full (no id is used: it may be tried
        again when there is room), Building (this process is not the builder any more), Gone, ServerGone, Timeout."""
        return self._cache._append(*columns)

    def done(self) -> None:
        """Says that the source has ended; whoever wait()s for it goes on."""
        check(lib.cache_build_done(_handle(self._cache)))
        self.complete = True

    def leave(self) -> None:
        """Stops building before the end of the source. The rows stay, and whoever calls Cache.build() next, which may
        be this process, goes on after them; until then wait() raises Building. Does nothing if this process does not
        build (any more)."""
        leave_build(self._cache)

    def __enter__(self) -> "Build":
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        if kind is None and not self.complete:
            self.done()
        elif kind is not None:
            with contextlib.suppress(Error, ValueError):  # a lost server, a closed cache: the first exception tells
                self.leave()

    def __repr__(self) -> str:
        return f"<libcache.Build of {self._cache!r}{', complete' if self.complete else ''}>"


def leave_build(cache: "Cache") -> None:
    """Build.leave, for who has no Build at hand."""
    try:
        check(lib.cache_build_leave(_handle(cache)))
    except InvalidArgument:
        pass  # not the builder


def wait_for_build(cache: "Cache", timeout: Optional[float]) -> None:
    """Cache.wait."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_MS if deadline is None else max(0, round((deadline - time.monotonic()) * 1000))
        try:
            check(lib.cache_build_wait(_handle(cache), min(left, _SLICE_MS)))
            return
        except Timeout:
            if left <= _SLICE_MS and deadline is not None:
                raise


def _handle(cache: "Cache") -> Any:
    return ffi.cast("cache *", cache._mapping().address)
