# SPDX-License-Identifier: Apache-2.0
"""libcache: rows of a data set in shared memory, read once from their source and by everybody from there.

    import libcache, numpy as np

    session = libcache.Client().open_session("mnist")    # needs a server: cache_admin --start
    with session.open(cache_id=1, expected_rows=60_000) as cache:
        cache.put(7, np.zeros((28, 28), np.uint8), 3)    # a row: an image and a label
        image, label = cache.get(7)                      # read-only views of shared memory, no copy; None: a miss
        batch = cache.gather([7, 7, 7], column=0)        # (3, 28, 28): one column of many rows, copied

Client, Session and Cache are what the server's sessions and caches look like from here. Every process of the machine
that opens the same (session, cache id) sees the same rows. Handles may be used after fork and from threads, and they
pickle to a few hundred bytes: whoever unpickles one attaches when it is first used.

Rows never change and are never evicted. What fails raises a subclass of libcache.Error; a miss is not a failure.
For PyTorch see libcache.torch: CachedDataset(dataset) is the one line for training.
"""
from ._build import Build
from ._cache import Cache, Reservation
from ._capi import ffi as _ffi, lib as _lib
from ._client import Client, Session
from ._errors import (Building, Conflict, Corrupt, Error, Full, Gone, InvalidArgument, IOFailed, LimitReached,
                      NoSession, NotFound, NotSupported, OutOfMemory, PermissionDenied, ServerGone, Timeout,
                      VersionMismatch)
from ._fingerprint import FingerprintError, fingerprint
from ._structs import CacheStats, ServerInfo

__all__ = ["Build", "Building", "Cache", "CacheStats", "Client", "Conflict", "Corrupt", "Error", "FingerprintError",
           "Full", "Gone", "IOFailed", "InvalidArgument", "LimitReached", "NoSession", "NotFound", "NotSupported",
           "OutOfMemory", "PermissionDenied", "Reservation", "ServerGone", "ServerInfo", "Session", "Timeout",
           "VersionMismatch", "fingerprint"]

__version__: str = _ffi.string(_lib.cache_version()).decode()
