# SPDX-License-Identifier: Apache-2.0
"""The result structures of libcache.h as Python classes, field by field under the same names."""
from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from ._capi import ffi

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """What one cache holds. Bytes are memory pages made unless said otherwise."""

    session_id: int
    cache_id: int
    huge_pages: int          #: 1: the data area may be on huge pages
    rows_in_memory: int
    rows_spilled: int
    row_bytes: int           #: column bytes of the rows in memory: what was stored
    limit_bytes: int         #: as opened; what the server allowed if opened with 0
    charged_bytes: int       #: counted against the limit: header, tables, index and data
    granted_bytes: int       #: of these, lent to writers and not yet filled
    used_bytes: int          #: of these, rows with their headers and padding
    dead_bytes: int          #: room of rows that a killed writer left unpublished
    index_bytes: int         #: of these, the index
    free_bytes: int          #: of these, made and lent to nobody
    largest_free_bytes: int  #: the longest run a single row could still get
    index_levels: int
    layouts: int             #: distinct lists of dtypes and shapes, stored once each
    writers: int             #: processes attached for writing
    generation: int          #: starts of the server's broker that this cache has seen
    tag: str
    label: str
    readers: int             #: connections that have the cache open; -1 where only the server knows
    populated_bytes: int     #: pages made and not given back, index and tables included
    huge_page_bytes: int     #: of the data area, on huge pages
    spilled_bytes: int       #: column bytes of the spilled rows
    spill_file_bytes: int    #: file space lent to this cache
    page_table_bytes: int    #: of this process, for its mappings of this cache; -1 from Session.caches()
    idle_ms: int             #: since the last process left it, 0 while one has it open; -1 from Cache.stat()
    state: int               #: 1: live. 2: destroyed, its memory still mapped by somebody
    kept: int                #: 1: of a session made with keep=True; 0 from Cache.stat()


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """Settings and totals of a server."""

    port: int                #: the number that names the server
    tcp_port: int            #: the port bound on 127.0.0.1; 0: another user's server has it
    workers: int
    log_level: int           #: 0..4
    supervised: int          #: 1: a broker that dies is started anew
    keeper_pid: int
    broker_pid: int
    version_major: int
    version_minor: int
    version_patch: int
    huge_pages: int          #: 1: regions are on huge pages
    generation: int          #: how many brokers have served, this one included
    memory_limit_bytes: int  #: what all caches together may hold
    memory_used_bytes: int
    sessions: int
    caches: int
    clients: int
    messages: int            #: requests answered since the broker started
    hostname: str
    spill_dir: str           #: "" without spilling
    backing_reason: str      #: why regions are on huge pages or not: a sentence
    log_path: str
    socket_path: str
    server_path: str
    headroom_bytes: int      #: caching stops while less than this is available
    available_bytes: int     #: the smallest of what the machine and the cgroups have left
    spill_limit_bytes: int   #: of all spill files; 0: as much as the file system gives
    spill_used_bytes: int    #: file space lent to caches


def from_struct(cls: type[T], struct: Any) -> T:
    """Reads a C structure into the class that describes it."""
    values = [getattr(struct, field.name) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return cls(*(ffi.string(value).decode(errors="replace") if isinstance(value, ffi.CData) else value
                 for value in values))
