# SPDX-License-Identifier: Apache-2.0
"""DatasetCache: what a script gives as cache=, and the cache that stands behind it once a pipeline uses it."""
from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Any, Optional

from .. import _link
from .._cache import Cache
from .._capi import lib
from .._client import Client
from .._errors import Conflict, Error, Full, Gone, NotSupported, OutOfMemory, ServerGone, Timeout
from ._check import INT32_MAX, UINT32_MAX, of_type, within
from ._stream import Stream

_PORTS = (1025, 65535)
_HOST = "127.0.0.1"
_TRIED_IDS = 16  # cache ids tried when the first one has another tag


class CacheError(RuntimeError):
    """The cache of a pipeline failed. `__cause__` is the libcache.Error, whose class tells what happened."""


@dataclasses.dataclass(frozen=True)
class CacheStat:
    """What a cache holds, and what this process got from it (about, where several workers read at once)."""

    avg_cache_sz: int     #: mean bytes of a row
    num_mem_cached: int   #: rows in memory
    num_disk_cached: int  #: rows on disk
    hits: int             #: rows that this process has read from the cache
    misses: int           #: rows that this process has read from the source
    cache_id: int         #: its line in cache_admin --list_sessions, and what --destroy_cache takes


class DatasetCache:
    """A cache for a pipeline: give it as cache= to a source, to keep its rows, or to map(), to keep what it makes.

        cache = ds.DatasetCache(session_id=int(os.environ["SESSION_ID"]), size=0, spilling=True)
        data = ds.MnistDataset("mnist", cache=cache)

    session_id       from cache_admin -g
    size             MB that the cache may hold; 0: what the server may use
    spilling         rows that memory refuses go to disk; the server was started with --spilldir then
    hostname, port   of the server; None: $MS_CACHE_HOST and $LIBCACHE_PORT, $MS_CACHE_PORT, else 127.0.0.1 and 50052
    num_connections, prefetch_size   accepted and checked; rows lie in shared memory, nothing is fetched ahead

    Nothing is asked of the server before a pipeline runs. Pipelines share rows, within a process and between processes,
    if they have the same session and everything from the cache down to the files is the same: files with their sizes
    and times, parameters, operations and the code of your own functions. Worker counts, samplers, shards, num_samples
    and what stands above the cache do not matter. One object serves one such pipeline.
    """

    def __init__(self, session_id: int, size: int = 0, spilling: bool = False, hostname: Optional[str] = None,
                 port: Optional[int] = None, num_connections: Optional[int] = None,
                 prefetch_size: Optional[int] = None) -> None:
        _check_session(session_id)
        _check_size(size)
        of_type("spilling", spilling, bool)
        _check_host(hostname)
        for name, value, low, high in (("port", port, *_PORTS), ("num_connections", num_connections, 1, INT32_MAX),
                                       ("prefetch_size", prefetch_size, 1, INT32_MAX)):
            if value is not None:
                within(name, value, low, high)
        self.session_id, self.size, self.spilling = session_id, size, spilling
        self.hostname, self.port = hostname, port
        self.num_connections, self.prefetch_size = num_connections, prefetch_size
        self.cache_client = Core(self)

    def get_stat(self) -> CacheStat:
        """What the cache holds. RuntimeError before a pipeline has used it."""
        return self.cache_client.stat()

    def __deepcopy__(self, memo: dict[int, Any]) -> "DatasetCache":
        """Another object on the same cache."""
        if id(self) not in memo:
            other = object.__new__(DatasetCache)
            other.__dict__.update(self.__dict__)
            memo[id(self)] = other
        return memo[id(self)]

    def __repr__(self) -> str:
        return f"<libcache.dataset.DatasetCache of session {self.session_id}>"


def _check_session(session_id: Any) -> None:
    of_type("session_id", session_id, int)
    if not 1 <= session_id <= UINT32_MAX:
        raise ValueError(f"Input is not within the required interval of [1, {UINT32_MAX}]: session_id is {session_id}. "
                         f"Take the one that cache_admin -g shows.")


def _check_size(size: Any) -> None:
    of_type("size", size, int)
    if size < 0:
        raise ValueError(f"Input size must be greater than 0, and 0 means unlimited; it is {size}.")
    if size > 2**64 - 1:
        raise ValueError(f"Input size is not within the required interval of [0, {2**64 - 1}].")


def _check_host(hostname: Any) -> None:
    if hostname is not None:
        of_type("hostname", hostname, str)
    host = hostname or os.environ.get("MS_CACHE_HOST") or _HOST
    if host != _HOST:
        raise RuntimeError(f"hostname is {host!r}: now cache client has to be on the same host with cache server, "
                           f"which is {_HOST}.")


class Core:
    """What all copies of one DatasetCache share: the cache it is bound to, once a pipeline has used it."""

    def __init__(self, options: DatasetCache) -> None:
        self._options = options
        self._lock = threading.Lock()
        self.tag: Optional[str] = None
        self.label, self.rows = "", 0
        self._link: Optional[_link.Link] = None
        self._stream: Optional[Stream] = None
        self.hits = self.misses = 0

    def by_id(self, tag: str, label: str, rows: int, names: list[str]) -> "_link.Link":
        """The cache of a source whose rows have ids. What is lost later is lost with a warning: see Link."""
        self._bind(tag, label, rows)
        with self._lock:
            if self._link is None:
                first = self._first(names, build=False)
                self._link = _link.Link(self, False, lambda: 1)
                self._link.open(first)
        return self._link

    def stream(self, tag: str, label: str, names: list[str], source: Callable[[int], Any]) -> Stream:
        """The cache of a source without ids. source(k) gives its rows from the k-th on."""
        self._bind(tag, label, 0)
        with self._lock:
            if self._stream is None:
                self._stream = Stream.shared(self._first(names, build=True), lambda: self(build=True), source,
                                             (self._port(), self._options.session_id, tag))
        return self._stream

    def _bind(self, tag: str, label: str, rows: int) -> None:
        if self.tag is not None and self.tag != tag:
            raise RuntimeError(f"Cannot re-use a cache for a different tree! This DatasetCache holds the rows of "
                               f"{self.label}; make another one for {label}, with the same session_id if you like.")
        self.tag, self.label, self.rows = tag, label, rows

    def _first(self, names: list[str], build: bool) -> Cache:
        try:
            cache = self(build=build)
            cache.names = names
        except Error as error:
            raise self.explained(error) from error
        return cache

    def __call__(self, start: bool = False, build: bool = False) -> Cache:
        """Opens the cache: at the beginning, and when Link tries again."""
        session = Client(self._options.port, hostname=self._options.hostname).session(self._options.session_id)
        first = int(self.tag[:8], 16)
        for attempt in range(_TRIED_IDS):  # 32 bits of the tag name the cache; the whole tag decides
            try:
                return session.open((first + attempt) % 2**32, limit_bytes=min(self._options.size * 2**20, 2**63 - 1),
                                    expected_rows=self.rows, tag=self.tag, label=_link.cut(self.label),
                                    spill=self._options.spilling, build=build)
            except Conflict:
                if attempt == _TRIED_IDS - 1:
                    raise
        raise AssertionError

    def stat(self) -> CacheStat:
        if self._link is None and self._stream is None:
            raise CacheError("Unexpected error. The cache was not used yet: run a pipeline that has it as cache=.")
        try:
            cache = self._stream.cache if self._stream is not None else self._link.cache
            stats = (cache or self()).stat()  # Link has none while it is lost
        except Error as error:
            raise self.explained(error) from error
        rows = stats.rows_in_memory + stats.rows_spilled
        stored = stats.row_bytes + stats.spilled_bytes
        return CacheStat(max(1, stored // rows) if rows else 0, stats.rows_in_memory, stats.rows_spilled, self.hits,
                         self.misses, stats.cache_id)

    def _port(self) -> int:
        given = self._options.port or os.environ.get("LIBCACHE_PORT") or os.environ.get("MS_CACHE_PORT")
        return int(given or lib.CACHE_DEFAULT_PORT)

    def explained(self, error: Error) -> CacheError:
        """The error in the original's terms, which scripts look for, followed by ours."""
        if isinstance(error, Gone) and self._server_is_gone():
            error = ServerGone(str(error))
        if isinstance(error, (ServerGone, Timeout)):
            kind = (f"Network error. Cache server with port {self._port()} is unreachable. Make sure the server is "
                    f"running. Start it as this user: cache_admin --start -p {self._port()}.")
        elif isinstance(error, NotSupported) and self._options.spilling:
            kind = "Server is not set up with spill support: start it with --spilldir, or say spilling=False."
        elif isinstance(error, (Full, OutOfMemory)):
            kind = "Out of memory. Drop sessions (cache_admin -d), choose another size=, or say spilling=True."
        else:
            kind = "Unexpected error."
        return CacheError(f"{kind} ({error})")

    def _server_is_gone(self) -> bool:
        try:
            self.ask_server()
        except Error:
            return True
        return False

    def ask_server(self) -> None:
        """Raises an Error if no server runs. Rows that are mapped could be read without one."""
        Client(self._options.port, hostname=self._options.hostname).server_info()

    def __getstate__(self) -> dict[str, Any]:
        """For a process of its own: it opens the cache itself."""
        kept = {name: value for name, value in self.__dict__.items() if name != "_lock"}
        return {**kept, "_link": None, "_stream": None, "hits": 0, "misses": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
