# SPDX-License-Identifier: Apache-2.0
"""Link: the cache of a data set that may be lost and found again while an epoch runs."""
from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np

from ._arguments import UINT32_MAX
from ._cache import Cache
from ._capi import lib
from ._client import Client, Session
from ._counts import STORED, Counts
from ._errors import Conflict, Error, Full, Gone, InvalidArgument, NoSession, NotSupported, ServerGone
from ._notices import first_to_tell, lives, this_process, warn

_UNKNOWN_ROWS = 10_000  # an epoch's rows where nobody said how many there are
_TRIED_IDS = 16      # cache ids tried when the first one has another tag
_LABEL_BYTES = lib.CACHE_MAX_LABEL_BYTES
_RETURN = "Return"   # the mark of having told that rows are read again
_CUT = "…"           # ends a label that was cut


def server_folder() -> str:
    return os.environ.get("LIBCACHE_DIR") or f"/tmp/libcache-{os.geteuid()}"


def connect_or_start(port: Optional[int]) -> Client:
    """A client; starts a server if none runs. Of many that start one, whoever has its socket first succeeds. The others
    need not wait here: their Client waits until it serves, and a start that cannot succeed never will."""
    try:
        return Client(port)
    except ServerGone:
        admin = _find_admin()
        if admin is None:
            raise
    words = [admin, "--start", *(["-p", str(port)] if port else [])]
    with tempfile.TemporaryFile() as output:  # a pipe would stay open in the server
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    try:
        client = Client(port)
    except ServerGone as error:
        raise ServerGone(f"{error}; '{' '.join(words)}' said: {said}") from error
    if done.returncode == 0:  # it stays when this process ends, which nobody would expect without a word
        _tell_of_start(client)
    return client


def _tell_of_start(client: Client) -> None:
    try:
        info = client.server_info()
    except Error:
        return
    print(f"libcache: started a server on port {info.port} (pid {info.keeper_pid}); cache_admin --stop -p {info.port} "
          f"ends it", file=sys.stderr, flush=True)


def _find_admin() -> Optional[str]:
    """cache_admin beside the library in use, else on the PATH."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        libraries = {line.split(maxsplit=5)[5].strip() for line in maps if "/libcache.so" in line}
    for library in libraries:
        folder = os.path.dirname(library)
        while len(folder) > 1:  # <prefix>/lib, <prefix>/lib/x86_64-linux-gnu
            if os.access(beside := os.path.join(folder, "bin", "cache_admin"), os.X_OK):
                return beside
            folder = os.path.dirname(folder)
    return shutil.which("cache_admin")


def chosen_session() -> tuple[str, Union[int, str]]:
    """What names the session, and its id or name: LIBCACHE_SESSION (an id or a name) or SESSION_ID (an id), else the
    user."""
    for variable in ("LIBCACHE_SESSION", "SESSION_ID"):
        value = os.environ.get(variable, "")
        if value and (value.isdecimal() or variable == "SESSION_ID"):
            return variable, _session_id(variable, value)
        if value:
            return variable, value
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return "the user", user[:40]


def _session_id(variable: str, value: str) -> int:
    if value.isdecimal() and 1 <= int(value) <= UINT32_MAX:
        return int(value)
    instead = "; for a session's name set LIBCACHE_SESSION" if variable == "SESSION_ID" else ""
    raise InvalidArgument(f"{variable} is {value!r}: a session's id is a number in 1..{UINT32_MAX}, as cache_admin -g "
                          f"gives it{instead}")


def cut(label: str) -> str:
    """As much of a label as a cache keeps: 255 bytes of UTF-8, and no part of a character."""
    label = label.encode(errors="replace").replace(b"\0", b" ").decode()  # what UTF-8 or C has no way to write
    if len(label.encode()) <= _LABEL_BYTES:
        return label
    return label.encode()[:_LABEL_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT


class Opener:
    """How to open a data set's cache: again in another process, or when it was lost. Pickles."""

    def __init__(self, cache: Any, tag: str, label: str, rows: int, port: Optional[int], limit_bytes: int,
                 build: bool = False, spill: bool = False) -> None:
        if not (cache is None or isinstance(cache, (Cache, Session))):
            instead = {int: f"; for a session's id: Client().session({cache!r})",
                       str: f"; for a session's name: Client().open_session({cache!r})"}.get(type(cache), "")
            raise TypeError(f"cache is a Session, a Cache or None, not {type(cache).__name__} {cache!r}{instead}")
        self.given, self.build, self.spill = cache, build, spill
        self.tag, self.label, self.rows, self.port, self.limit_bytes = tag, cut(label), rows, port, limit_bytes

    def __call__(self, start: bool = False) -> Cache:
        given = self.given
        if isinstance(given, Cache):
            return self._open(given.session, given.cache_id, given.tag)
        if isinstance(given, Session):
            return self._open_in(given)
        by, name = chosen_session()  # before a server is started for nothing
        client = connect_or_start(self.port) if start else Client(self.port)
        try:
            return self._open_in(client.session(name) if isinstance(name, int) else client.open_session(name))
        except NoSession as error:
            if not isinstance(name, int):
                raise
            raise NoSession(f"{by} names session {name}, which does not exist; unset it, or export one from "
                            f"cache_admin -g") from error

    def _open_in(self, session: Session) -> Cache:
        first = int(self.tag[:8], 16)
        for i in range(_TRIED_IDS):  # 32 bits of the tag name the cache; the whole tag decides
            try:
                return self._open(session, (first + i) % 2**32, self.tag)
            except Conflict:
                if i == _TRIED_IDS - 1:
                    raise
        raise AssertionError

    def _open(self, session: Session, cache_id: int, tag: Optional[str]) -> Cache:
        return session.open(cache_id, limit_bytes=self.limit_bytes, expected_rows=self.rows, tag=tag, label=self.label,
                            build=self.build, spill=self.spill)


class Link:
    """The cache, or nothing for as long as it is lost: get() gives None then and put() does nothing.

    What is lost is tried again when the next epoch begins. That is when a new process (a loader's worker lives for one
    epoch) makes its first use, or when this one has asked for its share of the rows, or for the same row again.
    """

    def __init__(self, opener: Opener, required: bool, workers: Callable[[], int]) -> None:
        self._opener, self._required, self._workers = opener, required, workers
        self._cache: Optional[Cache] = None
        self.writing = False         # there is a cache, and no put failed
        self._pid = os.getpid()
        self._owner = this_process()  # whose end ends the job that is warned once
        self._fresh = True           # no failure in this process yet
        self._first: Optional[int] = None  # the row at which the cache was lost
        self._asked = 0              # rows asked for since
        self.counts = Counts()
        self._cause = "lost"         # why a row is not stored while `writing` is False: one of _counts.CAUSES

    def open(self, cache: Optional[Cache] = None) -> Optional[Cache]:
        """At the beginning: starts a server if need be."""
        try:
            self._use(cache or self._opener(start=True))
        except (Conflict, InvalidArgument):
            raise  # waiting will not mend it
        except Error as error:
            if isinstance(error, NotSupported) and self._opener.spill:
                raise  # nor this: the server has no folder
            self._lose(0, error)
        else:
            self._forget_warnings()
        return self._cache

    @property
    def cache(self) -> Optional[Cache]:
        return self._cache

    def look(self) -> None:
        """Finds out whether the cache was destroyed, which a process whose workers read the rows does not notice, and
        opens it again then."""
        if self._cache is None or self._required:  # if it is required, the next read raises
            return
        try:
            0 in self._cache  # noqa: B015 - raises
        except Gone as error:
            self._lose(0, error, reading=True)
        except (Error, ValueError):
            pass  # the next read tells; a handle that the user has closed

    def found(self) -> Optional[Cache]:
        """The cache, for who asks for the handle: one that was lost is tried again."""
        self.look()
        if self._cache is None:
            self._try_again()
        return self._cache

    def lost(self, error: Error) -> None:
        """For who uses the cache itself, and failed."""
        self._lose(0, error)

    def next_epoch(self) -> None:
        """For who knows when an epoch begins: tries again what was lost."""
        self.look()
        if not self.writing or not self._served():
            self._try_again()

    def _served(self) -> bool:
        """Whether the cache's server is there. Reads go on without it, so that this process need not notice; but each
        worker that it forks would, at its first miss, and would not keep that row."""
        try:
            self._cache.session.client.server_info()  # type: ignore[union-attr]
        except ServerGone:
            return False
        except (Error, ValueError):
            pass  # the next read tells
        return True

    def _use(self, cache: Cache) -> None:
        self._cache, self.writing = cache, True

    def get(self, index: int) -> Any:
        """The row, or None: a miss, or there is no cache at the moment."""
        if not self.writing:
            self._look_again(index)
            if self._cache is None:
                return None
        try:
            return self._cache.get(index)  # type: ignore[union-attr]
        except Error as error:
            return self.get(index) if self._lose(index, error, reading=True) else None

    def put(self, index: int, columns: list[Any], into: Optional[Cache] = None) -> None:
        """Stores the row, if there is a cache that takes it. into: the cache that it is made for; one that was found in
        its place meanwhile does not know yet what its rows are made of, and does not get it."""
        if not self._takes(into):
            self.refuse()
            return
        try:
            if self._cache.put(index, *columns):
                self.counts.add(STORED)
        except Error as error:
            self._not_put(index, columns, error, into)

    def _takes(self, into: Optional[Cache]) -> bool:
        return self.writing and self._cache is not None and into in (None, self._cache)

    def put_all(self, indices: Sequence[int], rows: Sequence[list[Any]], into: Optional[Cache] = None) -> None:
        """put() for each of these rows; what is usual, that all of them fit, by a shorter way and counted at once."""
        done = self._put_first(indices, rows, into) if self._takes(into) else 0
        for index, columns in zip(indices[done:], rows[done:]):
            self.put(index, columns, into)

    def put_blocks(self, ids: np.ndarray, blocks: tuple[np.ndarray, ...], into: Optional[Cache] = None) -> None:
        """put() for each of these rows, by one call. Each block holds one column of all of them."""
        done, error = 0, None
        if self._takes(into):
            try:
                done, stored, error = self._cache._put_rows(ids, blocks)  # type: ignore[union-attr]
                self.counts.add(STORED, stored)
            except Error as raised:  # a copy that could not be attached
                error = raised
        if error is not None:
            self._not_put(int(ids[done]), [block[done] for block in blocks], error, into)
            done += 1
        for i in range(done, len(ids)):
            self.put(int(ids[i]), [block[i] for block in blocks], into)

    def _put_first(self, indices: Sequence[int], rows: Sequence[list[Any]], into: Optional[Cache]) -> int:
        """How many of these rows are seen to: all, or those up to one that failed."""
        put = self._cache.put  # type: ignore[union-attr]
        done = stored = 0
        try:
            for index, columns in zip(indices, rows):
                done += 1
                stored += put(index, *columns)
        except Error as error:
            self._not_put(index, columns, error, into)
        finally:
            self.counts.add(STORED, stored)
        return done

    def _not_put(self, index: int, columns: list[Any], error: Error, into: Optional[Cache]) -> None:
        if self._lose(index, error):
            self.put(index, columns, into)
        else:
            self.refuse()

    def refuse(self) -> None:
        """Counts a row that is not stored, since there is no cache that takes it."""
        self.counts.refuse(self._cause)

    def _lose(self, index: int, error: Error, reading: bool = False) -> bool:
        """Notes a failure; True if the cache was found again at once."""
        if self._required:
            raise error
        if self._pid != os.getpid():
            self._pid, self._fresh = os.getpid(), True
        first_failure, self._fresh = self._fresh, False
        lost = self._cache
        self._cause = "lost" if not isinstance(error, Full) else error.cause or "full"
        self.writing, self._first, self._asked = False, index, 0
        if reading or isinstance(error, Gone):
            self._cache = None
        # Reads of a mapping that is there go on without a server. A forked worker has its parent's handle, which may
        # have been lost in an epoch before.
        if lost is not None and first_failure and not isinstance(error, Full) and self._try_again():
            self._tell_of_return(lost, error)
            return True
        self._warn(error)
        return False

    def _look_again(self, index: int) -> None:
        self._asked += 1
        share = -(-(self._opener.rows or _UNKNOWN_ROWS) // max(1, self._workers()))
        if self._pid == os.getpid():
            if self._asked <= share and not (index == self._first and self._asked > 1):
                return
        self._pid, self._first, self._asked = os.getpid(), index, 0
        self._try_again()

    def _try_again(self) -> bool:
        try:
            self._use(self._opener())
        except Error:
            return False
        return True

    # ---- one warning per node and job ------------------------------------------------------------------------------

    def _mark(self, kind: str) -> str:
        return os.path.join(server_folder(), f"warned.{self._opener.tag[:16]}.{kind}")

    def _first_to_tell(self, kind: str, what: str = "") -> bool:
        if not lives(self._owner):  # a copy that outlives the process that made it
            self._owner = this_process()
        return first_to_tell(self._mark(kind), self._owner, what)

    def _warn(self, error: Error) -> None:
        if not self._first_to_tell(type(error).__name__):
            return
        if isinstance(error, Full):
            what = "is full: rows beyond it come from the source"
        elif isinstance(error, NoSession):
            what = "cannot be opened: rows come from the source"
        else:
            what = "is not there: rows come from the source until it is back"
        warn(f"the cache of {self._opener.label} {what}. {error}")

    def _tell_of_return(self, lost: Cache, error: Error) -> None:
        """Found again at once, but maybe empty: the source is read again, which takes its time."""
        old, new = lost.session.id, self._cache.session.id  # type: ignore[union-attr]
        if isinstance(error, ServerGone):
            what = f"the server of session {old} has ended"
        elif isinstance(error, Gone):
            what = f"{'' if old != new else f'cache {lost.cache_id} of '}session {old} was destroyed"
        else:
            return
        if self._first_to_tell(_RETURN, str(new)):
            warn(f"{what}: rows are read again into session {new} (the cache of {self._opener.label})")

    def _forget_warnings(self) -> None:
        for kind in (*(cls.__name__ for cls in Error.__subclasses__()), _RETURN):
            try:
                os.unlink(self._mark(kind))
            except OSError:
                pass

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pid": 0, "_fresh": True}
