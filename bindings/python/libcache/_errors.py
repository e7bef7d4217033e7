# SPDX-License-Identifier: Apache-2.0
"""Exceptions, one class per code of libcache.h, each with the library's own sentence as its message."""
from __future__ import annotations

from ._capi import ffi, lib


class Error(Exception):
    """What every failure of libcache is. `code` is the number in libcache.h, e.g. -1003 for CACHE_EFULL; str() gives
    one sentence that says what was tried, on what, and what to do next."""

    code: int = 0

    def __str__(self) -> str:  # KeyError, which NotFound is too, would show the repr
        return str(self.args[0]) if self.args else ""


class InvalidArgument(Error, ValueError):
    """An argument is not allowed; the message names it."""
    code = lib.CACHE_EINVAL


class NotFound(Error, KeyError):
    """There is no such row, cache or list of names. For a row this is a miss: read the source."""
    code = lib.CACHE_ENOTFOUND


class Full(Error):
    """The limit of the cache, or what the server may use, is used up: go on without caching. `cause` says which, as
    cache_full_cause(3) does: "size", "server", "memory", "disk", "spill_limit", or "" where it is not known."""
    code = lib.CACHE_EFULL
    cause: str = ""


class Gone(Error):
    """The session or the cache was destroyed. Arrays that exist stay readable; open another cache."""
    code = lib.CACHE_EGONE


class ServerGone(Error, ConnectionError):
    """No server is reachable, or it has ended: start one (cache_admin --start) and connect anew."""
    code = lib.CACHE_ESERVER


class VersionMismatch(Error):
    """The server is of another major version; the message names both."""
    code = lib.CACHE_EVERSION


class Conflict(Error):
    """The cache exists with another tag, or with other column names: use another cache id."""
    code = lib.CACHE_ECONFLICT


class Building(Error):
    """Another process is building this cache, or nobody is: read along, wait, or take over with Cache.build()."""
    code = lib.CACHE_EBUILDING


class Corrupt(Error):
    """What stands in shared memory is damaged: destroy the cache and report the message."""
    code = lib.CACHE_ECORRUPT


class IOFailed(Error, OSError):
    """A system call failed; the message names it and its errno."""
    code = lib.CACHE_EIO


class NoSession(Error, LookupError):
    """No session has this id: make one (cache_admin -g, or Client.create_session)."""
    code = lib.CACHE_ENOSESSION


class OutOfMemory(Error, MemoryError):
    """This process has no memory or no address space left."""
    code = lib.CACHE_ENOMEM


class PermissionDenied(Error, PermissionError):
    """The server belongs to another user, or the handle is read-only."""
    code = lib.CACHE_EPERM


class Timeout(Error, TimeoutError):
    """The server gave no answer before the deadline: it hangs, or the machine is overloaded."""
    code = lib.CACHE_ETIMEOUT


class NotSupported(Error, NotImplementedError):
    """This version, server or kernel cannot do it; the message says which."""
    code = lib.CACHE_ENOTSUP


class LimitReached(Error):
    """A fixed limit is reached (sessions, caches, writers, descriptors); the message names it."""
    code = lib.CACHE_ELIMIT


_CAUSES = {lib.CACHE_FULL_SIZE: "size", lib.CACHE_FULL_SERVER: "server", lib.CACHE_FULL_MEMORY: "memory",
           lib.CACHE_FULL_DISK: "disk", lib.CACHE_FULL_SPILL_LIMIT: "spill_limit"}
_BY_CODE = {cls.code: cls for cls in Error.__subclasses__()}


def make_error(code: int, message: str) -> Error:
    """The exception for a code; Error itself for one that a newer library may bring. In the thread of the call."""
    error = _BY_CODE.get(code, Error)(message)
    error.code = code
    if isinstance(error, Full):
        error.cause = _CAUSES.get(lib.cache_full_cause(), "")
    return error


def check(code: int) -> int:
    """Passes a call's result on, or raises what the library says about it. To be called in the thread of the call."""
    if code >= 0:
        return code
    raise make_error(code, last_message() or ffi.string(lib.cache_strerror(code)).decode())


def last_message() -> str:
    """What this thread's last call had to say."""
    return ffi.string(lib.cache_last_error()).decode(errors="replace")
