# SPDX-License-Identifier: Apache-2.0
"""Client and Session: the way to a server, and its sessions."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ._arguments import UINT32_MAX, whole
from ._capi import ffi, lib
from ._errors import NoSession, check
from ._structs import CacheStats, ServerInfo, from_struct

if TYPE_CHECKING:
    from ._cache import Cache


class Listed(NamedTuple):
    """A session as the server lists it."""

    id: int
    name: str
    kept: bool


@ffi.def_extern(error=-1)
def libcache_on_entry(entry: Any, argument: Any) -> int:
    """One line of cache_list; `argument` is the list that grows."""
    name = ffi.string(entry.session_name).decode(errors="replace")
    stats = from_struct(CacheStats, entry.stats) if entry.stats != ffi.NULL else None
    kept = bool(entry.session_flags & lib.CACHE_SESSION_KEEP)
    ffi.from_handle(argument).append((Listed(entry.session_id, name, kept), stats))
    return 0


class Client:
    """A connection to the server of this user and port. Cheap: a process has one connection per server, however many
    Clients there are.

    port         1025..65535; None: $LIBCACHE_PORT, else $MS_CACHE_PORT, else 50052
    socket_path  the server's socket itself; None: made from the port, in $LIBCACHE_DIR or /tmp/libcache-<uid>
    hostname     None or "127.0.0.1": a cache never leaves the machine
    timeout      seconds that a call may wait for the server

    Raises ServerGone if no server runs. May be used after fork, from threads, and pickled: the copy connects when it is
    first used. Works in a `with` statement.
    """

    def __init__(self, port: Optional[int] = None, *, socket_path: Optional[str] = None,
                 hostname: Optional[str] = None, timeout: float = 60.0) -> None:
        if port:
            port = whole("port", port, 65535, low=1025)
        self._options = (port, socket_path, hostname, timeout)
        self._closed = False
        self._handle: Any = None
        self._pointer()

    def _pointer(self) -> Any:
        """The C handle, connected if need be. The caller keeps it for as long as its call takes."""
        if self._closed:
            raise ValueError("the client is closed")
        handle = self._handle
        if handle is None:
            handle = self._handle = self._connect()
        return handle

    def _connect(self) -> Any:
        port, socket_path, hostname, timeout = self._options
        kept = [ffi.NULL if text is None else ffi.new("char[]", text.encode()) for text in (hostname, socket_path)]
        options = ffi.new("cache_client_options *", [ffi.sizeof("cache_client_options"), port or 0, *kept,
                                                     max(1, round(timeout * 1000))])
        out = ffi.new("cache_client **")
        check(lib.cache_connect(options, out))
        return ffi.gc(out[0], lib.cache_disconnect)

    def create_session(self, *, keep: bool = False) -> "Session":
        """A new session with a random id, which lives until it is destroyed or the server stops. The server drops
        caches that nobody has open to make room; keep=True: not those of this session."""
        if keep:
            return self._session_with(None)
        out = ffi.new("uint32_t *")
        check(lib.cache_session_create(self._pointer(), out))
        return Session(self, out[0])

    def open_session(self, name: str, *, keep: bool = False) -> "Session":
        """The session of this name (1 to 63 bytes of UTF-8, no control characters), made by whoever asks first.
        keep=True, also from one that joins, holds for the session from then on: see create_session."""
        if not isinstance(name, str):
            raise TypeError(f"a session's name is a str, not {type(name).__name__} {name!r}; for a session's id: "
                            f"session({name!r})")
        if keep:
            return self._session_with(name)
        out = ffi.new("uint32_t *")
        check(lib.cache_session_open(self._pointer(), name.encode(), out))
        return Session(self, out[0], name)

    def _session_with(self, name: Optional[str]) -> "Session":
        kept = ffi.NULL if name is None else ffi.new("char[]", name.encode())
        options = ffi.new("cache_session_options *", [ffi.sizeof("cache_session_options"), lib.CACHE_SESSION_KEEP,
                                                      kept])
        out = ffi.new("uint32_t *")
        check(lib.cache_session_create_with(self._pointer(), options, out))
        return Session(self, out[0], name)

    def session(self, session_id: int) -> "Session":
        """The session with this id, 1..2^32-1, e.g. from `cache_admin -g`. Whether it exists shows when a cache is
        opened. For one by its name: open_session."""
        instead = f"; for a session's name: open_session({session_id!r})" if isinstance(session_id, str) else ""
        return Session(self, whole("session_id", session_id, UINT32_MAX, low=1, instead=instead))

    def _entries(self) -> list[tuple[Listed, Optional[CacheStats]]]:
        entries: list[tuple[Listed, Optional[CacheStats]]] = []
        handle = ffi.new_handle(entries)
        check(lib.cache_list(self._pointer(), lib.libcache_on_entry, handle))
        return entries

    def sessions(self) -> list["Session"]:
        """All sessions of the server, ascending by id."""
        return [Session(self, listed.id, listed.name or None)
                for listed in dict.fromkeys(listed for listed, _ in self._entries())]

    def server_info(self) -> ServerInfo:
        """Settings and totals of the server."""
        info = ffi.new("cache_server_stats *", [ffi.sizeof("cache_server_stats")])
        check(lib.cache_server_info(self._pointer(), info))
        return from_struct(ServerInfo, info)

    def stop_server(self) -> None:
        """Ends the server and returns when it has ended. Sessions and caches are dropped; arrays stay readable."""
        check(lib.cache_server_stop(self._pointer()))

    def close(self) -> None:
        """Gives the connection up. Caches opened through it stay usable."""
        self._closed = True
        self._handle = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _unpickle_client, (self._options,)

    def __repr__(self) -> str:
        port, socket_path, *_ = self._options
        where = f"socket_path={socket_path!r}" if socket_path else f"port={port!r}"
        return f"<libcache.Client {where}{' closed' if self._closed else ''}>"


def _unpickle_client(options: tuple) -> Client:
    client = Client.__new__(Client)
    client._options, client._closed, client._handle = options, False, None
    return client


class Session:
    """A set of caches that live and end together. From Client.create_session, open_session or session."""

    def __init__(self, client: Client, session_id: int, name: Optional[str] = None) -> None:
        self.client = client
        self.id = session_id
        self.name = name

    def open(self, cache_id: int = 1, *, limit_bytes: int = 0, expected_rows: int = 0, tag: Optional[str] = None,
             label: Optional[str] = None, read_only: bool = False, create: bool = True, spill: bool = False,
             build: bool = False) -> "Cache":
        """Opens a cache, or makes it. Any number of processes may do so at once.

        cache_id       0..2^32-1, names the cache within the session
        limit_bytes    of the whole cache, index included, at least 1 MiB; 0: what the server may use
        expected_rows  row ids will mostly lie in 0..expected_rows-1; a hint
        tag            up to 64 bytes, what makes the rows: joining a cache with another tag raises Conflict; None joins
                       any
        label          up to 255 bytes for people, shown by cache_admin --list_sessions
        read_only      put raises PermissionDenied
        create         False: NotFound is raised if the cache does not exist
        spill          rows that memory refuses go to disk; NotSupported if the server has no folder for them
        build          rows are appended in order, through Cache.build(), and put is InvalidArgument

        The first opener's limit, spill and build hold. Whoever asks for another limit, or for spilling, and does not
        get it, gets the cache and a RuntimeWarning that says how they differ.
        Raises NoSession, Conflict, InvalidArgument, Full, ServerGone, NotFound, NotSupported.
        """
        from ._cache import Cache
        return Cache(self, cache_id, limit_bytes=limit_bytes, expected_rows=expected_rows, tag=tag, label=label,
                     read_only=read_only, create=create, spill=spill, build=build)

    def caches(self) -> list[CacheStats]:
        """What the session's caches hold, ascending by cache_id."""
        return [stats for listed, stats in self.client._entries() if listed.id == self.id and stats is not None]

    @property
    def kept(self) -> bool:
        """Whether its caches are not dropped to make room, nor for being idle. Asks the server; raises NoSession."""
        for listed, _ in self.client._entries():
            if listed.id == self.id:
                return listed.kept
        raise NoSession(f"no session has the id {self.id}: it was destroyed, or never made")

    def destroy_cache(self, cache_id: int) -> None:
        """Drops one cache: whoever uses it gets Gone; arrays stay readable. Raises NotFound."""
        check(lib.cache_destroy(self.client._pointer(), self.id, whole("cache_id", cache_id, UINT32_MAX)))

    def destroy(self) -> None:
        """Ends the session and its caches: whoever uses one gets Gone; arrays stay readable. Raises NoSession."""
        check(lib.cache_session_destroy(self.client._pointer(), self.id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and (self.id, self.client._options) == (other.id, other.client._options)

    def __hash__(self) -> int:
        return hash((self.id, self.client._options))

    def __repr__(self) -> str:
        return f"<libcache.Session {self.id}{f' {self.name!r}' if self.name else ''}>"
