# SPDX-License-Identifier: Apache-2.0
"""Cache: a handle on one cache, and Reservation: a row that is written in place."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _rows
from ._arguments import UINT32_MAX, UINT64_MAX, whole
from ._build import Build, wait_for_build
from ._capi import ffi, lib
from ._client import Client, Session
from ._columns import DTYPES, storable
from ._errors import Gone, NotFound, check, last_message, make_error
from ._notices import warn
from ._structs import CacheStats, from_struct

_rows.connect_python(make_error, storable)

_SCAN_ROWS = 4096  # row ids asked for at a time


class Cache(_rows.Rows):
    """A store of rows in shared memory, from Session.open. A row has an id (an integer >= 0) and one or more columns,
    each an array; it never changes once it is stored.

        cache.put(7, image, label)      -> True if this call stored it
        cache.get(7)                    -> (image, label) without a copy, or None
        cache.gather(ids, 0, out=batch) -> column 0 of many rows, copied into one array
        cache.contains(ids), 7 in cache, cache[7] (NotFound on a miss), len(cache), for row_id in cache

    close() ends the handle; arrays from get() stay readable for as long as they live. Threads may share a handle. It
    may be used after fork: reads go on at once, the first put of a child gives it a place of its own to write. It
    pickles to a few hundred bytes; the copy attaches to the same cache when it is first used and raises Gone if that
    no longer exists.
    """

    def __init__(self, session: Session, cache_id: int = 1, *, limit_bytes: int = 0, expected_rows: int = 0,
                 tag: Optional[str] = None, label: Optional[str] = None, read_only: bool = False, create: bool = True,
                 spill: bool = False, build: bool = False) -> None:
        self.session = session
        self.cache_id = whole("cache_id", cache_id, UINT32_MAX)
        self.tag = tag
        self._read_only = read_only
        self._closed = False
        flags = (lib.CACHE_READ_ONLY if read_only else 0) | (0 if create else lib.CACHE_NO_CREATE) | (
            lib.CACHE_BUILD if build else 0)
        self._open(flags, whole("limit_bytes", limit_bytes, UINT64_MAX),
                   whole("expected_rows", expected_rows, UINT64_MAX), spill, label)

    def _open(self, flags: int, limit_bytes: int = 0, expected_rows: int = 0, spill: bool = False,
              label: Optional[str] = None) -> None:
        kept = [ffi.NULL if text is None else ffi.new("char[]", text.encode()) for text in (self.tag, label)]
        options = ffi.new("cache_options *", [ffi.sizeof("cache_options"), flags, limit_bytes, expected_rows,
                                              int(spill), 0, *kept])
        out = ffi.new("cache **")
        if check(lib.cache_open(self.session.client._pointer(), self.session.id, self.cache_id, options, out)) == 1:
            warn(last_message())
        self._adopt(int(ffi.cast("uintptr_t", out[0])))

    def _attach(self) -> None:
        """Called when a handle without a mapping is used: one that was unpickled, or closed."""
        if self._closed:
            raise ValueError(f"cache {self.cache_id} of session {self.session.id} is closed")
        try:
            self._open(lib.CACHE_NO_CREATE | (lib.CACHE_READ_ONLY if self._read_only else 0))
        except NotFound as error:
            raise Gone(f"cache {self.cache_id} of session {self.session.id}, to which this copy belongs, is no more: "
                       f"{error}") from error

    def reserve(self, row_id: int, *columns: Any) -> Optional["Reservation"]:
        """Room for a row that is written in place, e.g. by a decoder, without a copy. None if the row is there already.

        columns: for each column a pair (dtype, shape), or an array or buffer whose dtype and shape to take.

            if (row := cache.reserve(7, ("uint8", (32, 32, 3)), ("int64", ()))) is not None:
                with row:                                  # commits at the end, aborts on an exception
                    decode_into(row.columns[0])
                    row.columns[1][()] = label

        Nobody sees the row before its commit. Raises what put raises.
        """
        if not columns:
            raise TypeError("reserve(row_id, column, ...) takes at least one column")
        row_id = _rows.row_id(row_id)
        specs = [_column_spec(column, position) for position, column in enumerate(columns)]
        mapping = self._mapping()
        array, shapes = _column_structs(specs)
        out = ffi.new("cache_reservation **")
        code = check(lib.cache_reserve(ffi.cast("cache *", mapping.address), row_id, array, len(specs), out))
        if code == 1:
            return None
        views = tuple(mapping.array(int(ffi.cast("uintptr_t", array[i].data)), array[i].dtype, shape)
                      for i, (_, shape) in enumerate(specs))
        return Reservation(mapping, row_id, out[0], views)

    def build(self) -> Build:
        """Makes this process the builder of a cache opened with build=True: see Build. Raises Building while another
        process is it: read along meanwhile, or wait()."""
        return Build(self)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the build of the cache is done, at most `timeout` seconds; None: for ever. Raises Timeout, and
        Building if it is not done and nobody builds (any more): take over with build()."""
        wait_for_build(self, timeout)

    def stat(self) -> CacheStats:
        """What the cache holds, read from shared memory without asking the server."""
        mapping = self._mapping()
        stats = ffi.new("cache_stats *", [ffi.sizeof("cache_stats")])
        check(lib.cache_stat(ffi.cast("cache *", mapping.address), stats))
        return from_struct(CacheStats, stats)

    def ids(self) -> NDArray[np.int64]:
        """The ids of all rows, in no particular order. Rows added meanwhile may be among them."""
        mapping = self._mapping()
        cursor, parts = ffi.new("uint64_t *"), []
        while True:
            part = np.empty(_SCAN_ROWS, np.int64)
            n = check(lib.cache_scan(ffi.cast("cache *", mapping.address), cursor, ffi.from_buffer("int64_t[]", part),
                                     len(part)))
            if n == 0:
                return np.concatenate(parts) if parts else np.empty(0, np.int64)
            parts.append(part[:n])

    @property
    def names(self) -> Optional[tuple[str, ...]]:
        """Names of the columns, e.g. ("image", "label"); None as long as nobody set them. Once set they stay: setting
        the same ones is allowed, others raise Conflict. UTF-8, 4,000 bytes in all with a 0 after each."""
        mapping = self._mapping()
        size = ffi.new("size_t *", 4096)
        buffer = ffi.new("char[]", size[0])
        try:
            check(lib.cache_schema_get(ffi.cast("cache *", mapping.address), buffer, size))
        except NotFound:
            return None
        return tuple(name.decode() for name in ffi.buffer(buffer, size[0])[:].split(b"\0")[:-1])

    @names.setter
    def names(self, names: Sequence[str]) -> None:
        mapping = self._mapping()
        kept = [ffi.new("char[]", name.encode()) for name in names]
        check(lib.cache_schema_set(ffi.cast("cache *", mapping.address), ffi.new("char *[]", kept), len(kept)))

    def flush(self) -> None:
        """Waits until every row put by this process is as safe as it gets; rows in memory are when put returns."""
        mapping = self._mapping()
        check(lib.cache_flush(ffi.cast("cache *", mapping.address)))

    def close(self) -> None:
        """Ends this handle. The rows stay, and arrays from get() stay readable; the memory is unmapped from this
        process with the last of them. Using the handle afterwards raises ValueError."""
        self._closed = True
        self._release()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of rows."""
        stats = self.stat()
        return stats.rows_in_memory + stats.rows_spilled

    def __bool__(self) -> bool:
        """True: a handle is there, however many rows it has."""
        return True

    def __iter__(self) -> Iterator[int]:
        """The ids of all rows, as ids() gives them."""
        return iter(self.ids().tolist())

    def __reduce__(self) -> Any:
        if self._closed:
            raise ValueError(f"cache {self.cache_id} of session {self.session.id} is closed and cannot be pickled")
        return _unpickle_cache, (self.session.client, self.session.id, self.session.name, self.cache_id, self.tag,
                                 self._read_only)

    def __repr__(self) -> str:
        return (f"<libcache.Cache {self.cache_id} of session {self.session.id}"
                f"{', read-only' if self._read_only else ''}{', closed' if self._closed else ''}>")


def _unpickle_cache(client: Client, session_id: int, name: Optional[str], cache_id: int, tag: Optional[str],
                    read_only: bool) -> Cache:
    cache = Cache.__new__(Cache)
    cache.session = Session(client, session_id, name)
    cache.cache_id, cache.tag, cache._read_only, cache._closed = cache_id, tag, read_only, False
    return cache


Spec = tuple[np.dtype, tuple[int, ...]]


def _column_spec(column: Union[tuple[DTypeLike, Sequence[int]], Any], position: int) -> Spec:
    if isinstance(column, tuple) and len(column) == 2 and not isinstance(column[0], (int, float)):
        dtype, shape = np.dtype(column[0]), column[1]
        if dtype not in DTYPES:
            raise TypeError(f"column {position}: dtype {dtype} cannot be stored")
        return dtype, tuple(int(extent) for extent in ((shape,) if isinstance(shape, int) else shape))
    if isinstance(column, bytes):
        return np.dtype(np.uint8), (len(column),)
    array = storable(column, position)
    return array.dtype, array.shape


def _column_structs(specs: list[Spec]) -> tuple[Any, list[Any]]:
    """A C array of columns without data, and the shapes that it points to, which must live as long."""
    array, shapes = ffi.new("cache_column[]", len(specs)), []
    for column, (dtype, shape) in zip(array, specs):
        shapes.append(ffi.new("int64_t[]", list(shape) or 1))
        column.bytes = math.prod(shape) * dtype.itemsize
        column.shape, column.dtype, column.ndim = shapes[-1], DTYPES[dtype], len(shape)
    return array, shapes


class Reservation:
    """A row that is being written in place, from Cache.reserve. End it with commit() or abort(), or use it in a `with`
    statement. One that is simply dropped is aborted. It belongs to the process that made it: in a forked child its
    arrays are not mapped, and touching them ends the child."""

    def __init__(self, mapping: _rows.Mapping, row_id: int, handle: Any, columns: tuple[np.ndarray, ...]) -> None:
        self.row_id = row_id
        #: one writable array per column, in shared memory; do not write to them, or to views of them, after commit()
        #: or abort()
        self.columns = columns
        self._mapping = mapping
        self._handle = handle

    def commit(self) -> bool:
        """Publishes the row. True if it was stored, False if another process was faster with this id."""
        return check(lib.cache_commit(self._end())) == 0

    def abort(self) -> None:
        """Gives the room back. Does nothing if the reservation has ended."""
        if self._handle is not None:
            check(lib.cache_abort(self._end()))

    def _end(self) -> Any:
        if self._handle is None:
            raise ValueError(f"the reservation of row {self.row_id} has ended")
        for column in self.columns:
            column.flags.writeable = False
        handle, self._handle = self._handle, None
        return handle

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        if self._handle is None:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            lib.cache_abort(self._end())  # what it says is nobody's business any more

    def __repr__(self) -> str:
        return f"<libcache.Reservation of row {self.row_id}{'' if self._handle is not None else ', ended'}>"
