# SPDX-License-Identifier: Apache-2.0
"""cached_loader: keeps encoded files, for data that does not fit decoded."""
from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from typing import Any, Optional, Union

import numpy as np

from .._cache import Cache
from .._client import Session
from .._counts import HIT, MISS, Stats
from .._link import Link, Opener
from ._dataset import _workers

_FORMAT = "libcache.torch files 1"


def _stamp(path: str) -> np.ndarray:
    status = os.stat(path)
    return np.array([status.st_size, status.st_mtime_ns])


def decode_rgb(file: Any) -> Any:
    """The picture in an open file, as torchvision's own loader gives it."""
    from PIL import Image
    return Image.open(file).convert("RGB")


class cached_loader:  # noqa: N801 - used like a function
    """A `loader=` for ImageFolder that keeps the files as they are: each is read from its source once and decoded each
    time. For a data set that does not fit into memory decoded.

        ImageFolder("train", transform=augment, loader=cached_loader())

    cache     as in CachedDataset: None, a Session, or a Cache that holds nothing else
    decode    makes a sample of an open binary file
    key       names the files: change it when they change under the same names
    verify    "stat": a file that has another size or time than when it was stored is read anew. Costs a stat per use
    required  True: a lost cache raises; False: it is like never having had one
    limit_bytes, port  of the cache and of the server; 0 and None: the defaults
    spill     True: files that memory refuses go to disk, as in CachedDataset

    A row is found by its path, which stands in the row and is compared. Loaders of several data sets may share a cache.
    """

    def __init__(self, cache: Union[Cache, Session, None] = None, *, decode: Callable[[Any], Any] = decode_rgb,
                 key: str = "", verify: Optional[str] = None, required: bool = False, limit_bytes: int = 0,
                 spill: bool = False, port: Optional[int] = None) -> None:
        if verify not in (None, "stat"):
            raise ValueError(f"verify is None or 'stat', not {verify!r}")
        self.decode, self.key, self.verify = decode, key, verify
        of = f"{_FORMAT}\0{key}" + ("\0stat" if verify else "")
        self.fingerprint = hashlib.blake2b(of.encode(), digest_size=32).hexdigest()
        label = "files" + (f", key {key}" if key else "")
        self._link = Link(Opener(cache, self.fingerprint, label, 0, port, limit_bytes, spill=spill), required, _workers)
        self._link.open(cache if isinstance(cache, Cache) else None)

    def __call__(self, path: str) -> Any:
        path = os.fspath(path)
        name = path.encode("utf-8", "surrogateescape")
        row_id = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1
        stamp = [] if self.verify is None else [_stamp(path)]  # before the file is read: a later change differs
        row = self._link.get(row_id)
        if row is not None and len(row) == 2 + len(stamp) and row[0].tobytes() == name and all(
                map(np.array_equal, row[2:], stamp)):
            self._link.counts.add(HIT)
            return self.decode(io.BytesIO(row[1]))
        with open(path, "rb") as file:
            content = file.read()
        self._link.counts.add(MISS)
        if row is None:
            self._link.put(row_id, [name, content, *stamp])
        return self.decode(io.BytesIO(content))

    @property
    def cache(self) -> Optional[Cache]:
        """The cache in use; None while it is lost."""
        return self._link.found()

    def cache_stats(self) -> Stats:
        """Files from the cache and from the source, as CachedDataset.cache_stats tells it of rows."""
        return self._link.counts.stats()

    def __libcache_fingerprint__(self) -> Any:
        return self.decode  # where the bytes come from does not change what is made of them

    def __repr__(self) -> str:
        return f"<libcache.torch.cached_loader, {self.cache!r}>"
