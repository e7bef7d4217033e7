# SPDX-License-Identifier: Apache-2.0
"""Stream: the rows of a source without ids, numbered by a cache as they are appended.

One process at a time builds: a thread of it appends what the source gives, while the process reads any row of the
stream. The thread does not wait for the reader: a reader of another process may need the next row while this one waits
for that other process, as ranks do for each other. Everybody reads along at once. A process that reads no more gives
the build up, and one that is killed has done so: whoever needs the next row goes on where it stopped.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

from .._build import Build, leave_build
from .._cache import Cache
from .._errors import Building, Corrupt, Error, Timeout

_LOOK_SECONDS = 0.02  # how long to wait for a row of another builder before looking whether it is there
_shared: "weakref.WeakValueDictionary[Any, Stream]" = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class Stream:
    """Rows by number.

    reopen  gives a handle on the cache again
    source  source(k) gives the columns of the rows from the k-th on; a builder that takes over has k rows already
    """

    def __init__(self, cache: Cache, reopen: Callable[[], Cache],
                 source: Callable[[int], Iterator[Sequence[Any]]]) -> None:
        self._cache: Optional[Cache] = cache
        self._reopen, self._source = reopen, source
        self._users = 0                            # readings that go on
        self._count: Optional[int] = None          # rows, once the build is done
        self._error: Optional[BaseException] = None  # what ended the thread, for whoever needs the row it was at
        self._forget_thread()

    def _forget_thread(self) -> None:
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._appended = 0       # by the thread, with what was there before
        self._stopping = False
        self._pid = os.getpid()

    @classmethod
    def shared(cls, cache: Cache, reopen: Callable[[], Cache], source: Callable[[int], Iterator[Sequence[Any]]],
               key: Any) -> "Stream":
        """One per cache and process, since two that build would append every row twice. `cache` is closed where there
        is one already: the build can only be given up with the last handle."""
        with _shared_lock:
            stream = _shared.get((os.getpid(), key))
            if stream is not None and stream._is_alive():
                cache.close()
            else:
                stream = _shared[(os.getpid(), key)] = cls(cache, reopen, source)
            return stream

    def _is_alive(self) -> bool:
        try:
            self.cache.get(0)
        except Error:
            return False
        return True

    @property
    def cache(self) -> Cache:
        """The handle."""
        if self._cache is None:
            self._cache = self._reopen()
        return self._cache

    @contextlib.contextmanager
    def reading(self) -> Iterator["Stream"]:
        """For as long as rows are needed."""
        with self._lock():
            self._users += 1
        try:
            yield self
        finally:
            with self._lock():
                self._users -= 1
                unused = self._users == 0
            if unused:
                self._give_up()

    def row(self, number: int) -> Any:
        """The stored columns of row `number`, waited for if need be; None beyond the last one. Raises what the source
        raises. Within reading()."""
        while True:
            count = self._count
            found = self.cache.get(number)
            if found is not None or (count is not None and number >= count):
                return found
            if count is not None:
                raise Corrupt(f"row {number} of {self.cache!r}, which was built with {count} rows, is not there: destroy "
                              f"the cache")
            self._wait(number)

    def finish(self) -> int:
        """Waits for the end of the build. The number of rows."""
        while self._count is None:
            self._wait(self._appended)
        return self._count

    def build_here(self) -> int:
        """Builds in this thread, or waits for the builder there is, to the end. The number of rows. For sources that do
        not bear a thread."""
        with self.reading():
            while self._count is None:
                build = self._claim()
                if build is not None:
                    self._append_all(build)
                elif self._count is None:
                    with contextlib.suppress(Timeout, Building):
                        self.cache.wait(_LOOK_SECONDS)
        return self._count

    def is_done(self) -> bool:
        """Whether the build has ended. If nobody builds, this process does from now on."""
        with self._lock():
            if self._count is None and self._thread is None:
                self._begin()
        return self._count is not None

    def _lock(self) -> threading.Condition:
        if self._pid != os.getpid():  # a forked child has neither the thread nor the right to build
            self._forget_thread()
        return self._changed

    def _wait(self, number: int) -> None:
        """Until something has changed, or a little while."""
        with self._lock():
            if self._count is not None or number < self._appended:
                return
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._thread is None:
                self._begin()
            if self._thread is not None:
                self._changed.wait(_LOOK_SECONDS)
            if self._thread is not None or self._count is not None:
                return
        with contextlib.suppress(Timeout, Building):  # the row may be there, or the build be free to be taken over
            self.cache.wait(_LOOK_SECONDS)

    # ---- building ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Starts the thread, if nobody builds. Under the lock."""
        build = self._claim()
        if build is not None:
            self._thread = threading.Thread(target=self._build, args=(build,), name="libcache-build", daemon=True)
            self._thread.start()

    def _claim(self) -> Optional[Build]:
        """The right to build; None if another process has it, or the build is done."""
        try:
            build = self.cache.build()
        except Building:
            return None
        self._appended, self._stopping = build.resume_at, False
        if build.complete:
            self._count = build.resume_at
        return None if build.complete else build

    def _build(self, build: Build) -> None:
        """The thread."""
        try:
            self._append_all(build)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _append_all(self, build: Build) -> None:
        """Appends to the end of the source, or until it is told to stop."""
        with contextlib.closing(self._source(build.resume_at)) as rows:  # type: ignore[type-var]
            for columns in rows:
                build.append(*columns)
                with self._changed:
                    self._appended += 1
                    self._changed.notify_all()
                    if self._stopping:
                        return
        build.done()
        self._count = self._appended

    def _give_up(self) -> None:
        """Lets another process build, if this one reads no more."""
        self._stop()
        with self._lock():
            if self._users == 0 and self._count is None and self._thread is None and self._cache is not None:
                with contextlib.suppress(Error):
                    leave_build(self._cache)  # arrays of rows may keep the handle open
                self._cache.close()
                self._cache = self._error = None

    def _stop(self) -> None:
        with self._lock():
            thread, self._stopping = self._thread, True
        if thread not in (None, threading.current_thread()):  # the collector may close an iterator in any thread
            thread.join()


@atexit.register
def _stop_all() -> None:
    """A thread that still appends while the interpreter is taken down would be killed at any instruction."""
    for stream in list(_shared.values()):
        if stream._pid == os.getpid():
            stream._stop()
